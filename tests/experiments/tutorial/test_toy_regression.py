"""The tutorial's six points: targets A12 and A13 in short form, and the figure."""

import math
from itertools import pairwise
from statistics import median

import pytest

from experiments._runner.compose import compose, fitted
from experiments.tutorial import toy_regression
from pyrobbb.data import ToyPoints
from pyrobbb.training import history


def test_a12_toy_regression_has_the_tutorial_s_losses_and_widens_off_the_data(tmp_path):
    result = fitted(compose("toy_regression", ["draws=20"], folder=tmp_path))
    found = toy_regression.numbers(result)
    losses = [6 * row.free_energy for row in history.read(tmp_path / "history.csv")]
    assert found["loss"]["first"] == pytest.approx(losses[0])
    assert found["loss"]["median of last 100"] == pytest.approx(median(losses[-100:]))
    assert 220 < found["loss"]["median of last 100"] < 335  # mean 278, sd 10 over 20 seeds
    spread = found["sd of the draws"]
    assert math.log(spread["5.0"] / spread["1.5"]) > math.log(1.25)  # mean 1.31, sd 0.18
    fit = toy_regression.plain(result.data.to("cpu"), epochs=10, every=5)
    assert len(toy_regression.figure(result, fit).axes) == 6


def test_a13_the_plain_network_s_descent_never_rises():
    """Full-batch descent by small steps; the loop is the one of every fit."""
    data = ToyPoints().load()
    after = toy_regression.squared_errors(toy_regression.plain(data, epochs=1000, every=250))
    errors = [toy_regression.untrained(data, 0), *after.values()]
    assert len(errors) == 5
    assert all(later < earlier for earlier, later in pairwise(errors))
