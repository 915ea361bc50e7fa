"""Predictive bands of several models on several ranges."""

from functools import partial

import numpy as np
import pytest

from pyrobbb.figures.band_grid import Curves, band_grid


def test_band_grid_draws_each_model_on_each_range():
    x, rng = np.linspace(-1, 1, 11), np.random.default_rng(0)
    many, one = Curves(x, rng.normal(size=(50, 11))), Curves(x, np.zeros((1, 11)))
    draw = partial(band_grid, x_train=[0.0], y_train=[0.0])
    figure = draw({"a": [many, many], "b": [one, one]}, y_limits=[(-1, 1), None], x_label="x (m)")
    axes = np.array(figure.axes).reshape(2, 2)
    assert [a.get_title(loc="left") for a in axes[0]] == ["a", "b"]
    assert axes[0, 1].get_ylim() == (-1, 1)
    assert axes[1, 0].get_xlabel() == "x (m)"
    assert len(axes[0, 0].collections) == 1  # the band
    assert len(axes[0, 1].collections) == 0  # a single function has none
    low = axes[0, 0].collections[0].get_paths()[0].vertices[:, 1].min()
    assert low == pytest.approx(np.quantile(many.draws, 0.025, axis=0).min())
    with pytest.raises(ValueError, match="same ranges"):
        draw({"a": [many], "b": [one, one]})
    with pytest.raises(ValueError, match=r"draws must have shape \(S, 11\)"):
        Curves(x, np.zeros((3, 4)))
