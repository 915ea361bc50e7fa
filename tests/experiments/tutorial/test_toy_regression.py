"""The tutorial's six points: targets A12 and A13 in short form, and the figure."""

import pytest

from experiments._runner.compose import compose, fitted
from experiments.tutorial import toy_regression
from pyrobbb.training import history


def test_a12_a13_toy_regression_has_the_tutorial_s_losses_and_widens_off_the_data(tmp_path):
    result = fitted(compose("toy_regression", ["draws=20"], folder=tmp_path))
    result.metrics["folder"] = str(tmp_path)
    fit = toy_regression.plain(result.data.to("cpu"), epochs=20_000)
    curve = {row.epoch: row.nll for row in fit.history.rows}
    found = toy_regression.numbers(result)
    assert 1500 <= found["loss"]["first"] <= 8000
    assert 255 <= found["loss"]["median of last 100"] <= 350
    assert found["sd of the draws"]["5.0"] >= 2 * found["sd of the draws"]["1.5"]
    assert curve[20_000] <= 1e-2
    losses = [6 * row.free_energy for row in history.read(tmp_path / "history.csv")]
    assert toy_regression.numbers(result, draws=10)["loss"]["first"] == pytest.approx(losses[0])
    assert len(toy_regression.figure(result, fit).axes) == 6
