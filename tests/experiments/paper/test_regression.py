"""The paper's curve: target A14 in short form, the plain network beside it, and the figure."""

import pytest
import torch

from experiments._runner.build import ConfigError
from experiments._runner.compose import compose, fitted
from experiments.paper import regression as paper_regression
from pyrobbb.data import PaperCurve


def test_a14_is_judged_by_its_bounds():
    """Whether a full fit meets them is for `experiments.paper.regression` to say (docs/results.md)."""

    def lines(rmse, ratio):
        return paper_regression.targets({"rmse inside": rmse, "IQR(1.2) / IQR inside": ratio})

    held, missed = lines(0.018, 4.2), lines(0.05, 2.4)
    assert len(held) == len(missed) == 2
    assert all(line.endswith("holds") for line in held), held
    assert all(line.endswith("missed") for line in missed), missed


def test_the_plain_network_beside_the_paper_regression_follows_its_overrides(tmp_path):
    changes = ["model.hidden=[7]", "optim.lr=0.02", "batch_size=50", "epochs=30", "data.N=300", "draws=5"]
    result = fitted(compose("paper_regression", [*changes, "data.noise=0.1"], folder=tmp_path))
    fit = paper_regression.plain(result)
    assert [tuple(p.shape) for p in fit.network.parameters()] == [(7, 1), (7,), (2, 7), (2,)]
    assert len(fit.history.rows) == 30
    assert fit.history.rows[-1].lr == 0.02
    found = paper_regression.numbers(result, draws=20)
    x = torch.tensor([[1.2]])
    assert found["truth"]["1.2"] == pytest.approx(float(PaperCurve(noise=0.1).truth(x)))
    assert found["truth"]["1.2"] != pytest.approx(float(PaperCurve().truth(x)), abs=0.01)
    paper_regression.figure(result, fit, tmp_path / "figure.png", draws=50)
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    with pytest.raises(ConfigError, match="this experiment is about paper_curve, got"):
        paper_regression.main(["data=noisy_sine", f"folder={tmp_path / 'other'}"])
    assert not (tmp_path / "other").exists()
