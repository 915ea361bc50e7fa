"""R-hat of functions, and the comparison of restarts and of priors."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from experiments.studies import posterior_checks
from pyrobbb import Posterior, likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import NoisySine
from pyrobbb.evaluation.diagnostics import function_draws, r_hat
from pyrobbb.evaluation.leave_one_out import compare
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.models.mlp import mlp


@pytest.fixture(scope="module")
def data():
    return NoisySine(N=30, validation=0, test=5).load()


def test_r_hat_of_functions_tells_agreement_from_disagreement(data):
    model = mlp(data.spec, priors.Normal(), likelihoods.Normal(0.1), hidden=[4])
    same, other = MeanFieldNormal(model), MeanFieldNormal(model)
    for guide in (same, other):
        with isolated(0):  # each its own parameter store: outside, Pyro would share one `loc` between both
            guide(data.train.x, data.train.y)
    x = data.test.x[:3]
    agree = function_draws(Posterior([(model, same), (model, same)]), x, draws=100)
    assert agree.shape == (2, 100, 3, 1)
    assert r_hat(agree).max() < 1.07  # mean 1.017, sd 0.009 over 20 seeds
    with torch.no_grad():
        other.loc += 1.0
    assert r_hat(function_draws(Posterior([(model, same), (model, other)]), x, draws=100)).min() > 1.5


def test_the_whole_check_in_small(tmp_path, capsys):
    small = ["chains=2", "data.N=20", "epochs=2", "draws=20", "export_weights=20"]
    posterior_checks.main([*small, f"folder={tmp_path}"])
    found = json.loads((tmp_path / "record.json").read_text())
    for prior in posterior_checks.PRIORS:
        (largest,) = (value for name, value in found[prior].items() if name.endswith("the weights, largest"))
        assert largest > 1
    trees = {
        n: posterior_checks.arviz_io.load(tmp_path / n / "posterior.nc") for n in ("mixture", "Gaussian")
    }
    table = compare(trees)
    assert set(table.index) == set(found["compare"]) == {"mixture", "Gaussian"}
    assert table["elpd"].is_monotonic_decreasing
    assert table["elpd_diff"].iloc[0] == 0
    assert ((table["k_bad"] >= 0) & (table["k_bad"] <= 1)).all()
    assert "20 points of the paper's curve, 2 restarts under each prior" in capsys.readouterr().out


def test_dropout_is_off_where_functions_are_asked_for():
    x, y = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(5, 1)
    network = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    model = BayesianNetwork(network, priors.Normal(), likelihoods.Normal(0.1), 5)
    guide = MeanFieldNormal(model)
    with isolated(0):
        guide(x, y)
    before = torch.get_rng_state()
    posterior = Posterior([(model, guide)])
    np.testing.assert_array_equal(
        function_draws(posterior, x, draws=3), function_draws(posterior, x, draws=3)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert all(module.training for module in model.network.modules()), "left as it was"
