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
    lines = toy_regression.targets(toy_regression.numbers(result), [curve])
    assert len(lines) == 4
    assert all(line.endswith("holds") for line in lines), lines
    losses = [6 * row.free_energy for row in history.read(tmp_path / "history.csv")]
    assert toy_regression.numbers(result, draws=10)["loss"]["first"] == pytest.approx(losses[0])
    toy_regression.figure(result, fit, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
