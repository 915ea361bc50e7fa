"""Titles, legends and axis labels of the figures of single studies."""

import math

import numpy as np
import pytest

from experiments.paper.figures import band_grid
from experiments.reproductions.grid_report import heat_map
from experiments.reproductions.training_choices import error_curves
from experiments.tutorial.mnist_report import detection, prediction_bars


def test_figures_say_what_they_show():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(10), size=3)
    bars = prediction_bars(rng.uniform(size=(3, 8, 8)), {"a": probs, "b": probs}, ["x", "y", "z"], "")
    assert [axes.get_title(loc="left") for axes in bars.axes if axes.images] == ["x", "y", "z"]
    drawn = heat_map({"one": [[1.0, math.nan]]}, rows=("R", ["r"]), columns=("C", ["a", "b"]), title="")
    assert [text.get_text() for text in drawn.axes[0].texts] == ["1.00", "stopped"]
    assert (drawn.axes[0].get_xlabel(), drawn.axes[0].get_ylabel()) == ("C", "R")
    broken = {"validation_errors": [], "stopped": "why", "stopped_epoch": 1, "stopped_share": 0.4}
    curves = error_curves({"p": {"fine": {"validation_errors": [3.0, 2.0]}, "broken": broken}}, "")
    assert curves.axes[0].get_xlabel() == "epoch"
    assert [text.get_text() for text in curves.axes[0].get_legend().texts] == ["fine", "broken (not finite)"]
    both = detection({"entropy": (rng.uniform(size=50), rng.uniform(size=50) + 1)}, "")
    assert both.axes[0].get_legend().texts[1].get_text() == "entropy (1.000)"
    assert (both.axes[1].get_xlabel(), both.axes[1].get_ylabel()) == ("uncertainty (bits)", "density (1/bit)")
    with pytest.raises(ValueError, match="nothing to show"):
        heat_map({"": [[math.nan]]}, rows=("", ["r"]), columns=("", ["a"]), title="")


def test_band_grid_draws_each_model_on_each_range():
    x, rng = np.linspace(-1, 1, 11), np.random.default_rng(0)
    many, one = (x, rng.normal(size=(50, 11))), (x, np.zeros((1, 11)))
    models = {"a": [many, many], "b": [one, one]}
    points = np.zeros(1)
    figure = band_grid(models, points, points, truth=[x, x], y_limits=[(-1, 1), (-2, 2)], title="")
    axes = np.array(figure.axes).reshape(2, 2)
    assert [a.get_title(loc="left") for a in axes[0]] == ["a", "b"]
    assert axes[0, 1].get_ylim() == (-1, 1)
    assert axes[1, 0].get_xlabel() == "x"
    assert len(axes[0, 0].collections) == 1  # the band
    assert len(axes[0, 1].collections) == 0  # a single function has none
    low = axes[0, 0].collections[0].get_paths()[0].vertices[:, 1].min()
    assert low == pytest.approx(np.quantile(many[1], 0.025, axis=0).min())
