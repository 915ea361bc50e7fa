"""Titles, legends and axis labels of the figures of many fits."""

import math

import numpy as np
import pytest

from pyrobbb.figures.detection import detection
from pyrobbb.figures.error_curves import Curve, error_curves
from pyrobbb.figures.heat_map import heat_map
from pyrobbb.figures.prediction_bars import prediction_bars
from pyrobbb.figures.trade_off import Path as Line
from pyrobbb.figures.trade_off import trade_off


def test_figures_say_what_they_show():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(10), size=3)
    bars = prediction_bars(rng.uniform(size=(3, 8, 8)), {"a": probs, "b": probs}, ["x", "y", "z"], columns=2)
    assert [axes.get_title(loc="left") for axes in bars.axes if axes.images] == ["x", "y", "z"]
    drawn = heat_map(
        {"one": [[1.0, math.nan]]},
        rows=["r"],
        columns=["a", "b"],
        row_name="R",
        column_name="C",
        value_name="V",
    )
    assert [text.get_text() for text in drawn.axes[0].texts] == ["1.00", "stopped"]
    assert (drawn.axes[0].get_xlabel(), drawn.axes[0].get_ylabel()) == ("C", "R")
    curves = error_curves({"p": {"fine": Curve([3.0, 2.0]), "broken": Curve([], 0.4)}})
    assert curves.axes[0].get_xlabel() == "epoch"
    assert [text.get_text() for text in curves.axes[0].get_legend().texts] == ["fine", "broken (not finite)"]
    both = detection({"entropy": (rng.uniform(size=50), rng.uniform(size=50) + 1)}, unit="bits")
    assert both.axes[0].get_legend().texts[1].get_text() == "entropy (1.000)"
    assert (both.axes[1].get_xlabel(), both.axes[1].get_ylabel()) == ("uncertainty (bits)", "density (1/bit)")
    line = Line(["1", "2"], np.ones((2, 3)), {"error (%)": np.ones((2, 3))})
    assert trade_off({"rate": line}, x_label="F (nats)").axes[0].get_xlabel() == "F (nats)"
    with pytest.raises(ValueError, match="must be equally long"):
        prediction_bars(rng.uniform(size=(2, 8, 8)), {"a": probs}, ["x", "y", "z"])
    with pytest.raises(ValueError, match=r"must have shape \(1, 2\)"):
        heat_map({"": [[1.0]]}, rows=["r"], columns=["a", "b"], row_name="", column_name="", value_name="")
