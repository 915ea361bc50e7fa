"""The paper's curve: target A14 in short form, the plain network beside it, and the figure."""

import pytest
import torch

from experiments._runner.build import ConfigError
from experiments._runner.compose import compose, fitted
from experiments.paper import regression as paper_regression
from pyrobbb.data import PaperCurve


def test_a14_the_median_follows_the_curve_on_the_data(tmp_path):
    """Whether the interval widens enough off them is for `experiments.paper.regression` to say."""
    result = fitted(compose("paper_regression", ["draws=20", "data.test=50"], folder=tmp_path))
    found = paper_regression.numbers(result)
    assert found["rmse inside"] <= 0.09  # mean 0.021, sd 0.010 over three seeds; of a constant 0.16
    assert found["IQR(1.2) / IQR inside"] > 0


def test_the_plain_network_beside_the_paper_regression_follows_its_overrides(tmp_path):
    changes = ["model.hidden=[7]", "optim.lr=0.02", "batch_size=50", "epochs=30", "data.N=300", "draws=5"]
    result = fitted(compose("paper_regression", [*changes, "data.noise=0.1"], folder=tmp_path))
    fit = paper_regression.plain(result)
    assert [tuple(p.shape) for p in fit.function().parameters()] == [(7, 1), (7,), (2, 7), (2,)]
    assert len(fit.history.rows) == 30
    assert fit.history.rows[-1].lr == 0.02
    found = paper_regression.numbers(result, draws=20)
    x = torch.tensor([[1.2]])
    assert found["truth"]["1.2"] == pytest.approx(float(PaperCurve(noise=0.1).truth(x)))
    assert found["truth"]["1.2"] != pytest.approx(float(PaperCurve().truth(x)), abs=0.01)
    assert len(paper_regression.figure(result, fit, draws=50).axes) == 2
    with pytest.raises(ConfigError, match="this experiment is about paper_curve, got"):
        paper_regression.main(["data=noisy_sine", f"folder={tmp_path / 'other'}"])
    assert not (tmp_path / "other").exists()
