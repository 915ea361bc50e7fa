"""Where a guide starts: from a point estimate, or with a sigma in units of the fan-in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from engine_fakes import classes, network
from pyrobbb import fit, likelihoods, priors
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.initializers import FanInRho, FromRun
from pyrobbb.mean_field import MeanFieldNormal


def test_a_guide_starts_where_a_point_estimate_ended(tmp_path: Path) -> None:
    data = classes(30)
    point = BayesianNetwork(network(), priors.Deterministic(), likelihoods.Categorical())
    trained = fit(point, None, data, epochs=2, batch_size=10, folder=tmp_path, progress=None).model
    model = BayesianNetwork(network(seed=1), priors.Normal(), likelihoods.Categorical(), 30)
    guide = MeanFieldNormal(model, init_loc=FromRun(str(tmp_path)))
    guide()
    locs, _ = guide.loc_and_scale()
    for name, value in trained.network.named_parameters():
        assert torch.equal(locs[name], value)
    wider = BayesianNetwork(nn.Linear(3, 3), priors.Normal(), likelihoods.Categorical(), 30)
    with pytest.raises(ValueError, match="has no point estimate for 'weight', which is of shape"):
        MeanFieldNormal(wider, init_loc=FromRun(str(tmp_path)))()
    with pytest.raises(CheckpointError):
        FromRun(str(tmp_path / "nowhere"))


def test_sigma_starts_in_units_of_the_fan_in() -> None:
    convolution = nn.Sequential(nn.Conv2d(3, 2, 5), nn.Flatten(), nn.Linear(2, 4))
    model = BayesianNetwork(convolution, priors.Normal(), likelihoods.Categorical(), 30)
    guide = MeanFieldNormal(model, init_rho=FanInRho(0.5, bias_sigma=0.02))
    guide()
    _, scales = guide.loc_and_scale()
    expected = {"0.weight": 0.5 / 75**0.5, "0.bias": 0.02, "2.weight": 0.5 / 2**0.5, "2.bias": 0.02}
    for name, sigma in expected.items():
        torch.testing.assert_close(scales[name], torch.full_like(scales[name], sigma))
    with pytest.raises(ValueError, match="gain"):
        FanInRho(0.0)
