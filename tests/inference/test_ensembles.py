"""Mixtures of chains: weights by stacking, and predictions that follow them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine_fakes import classes, network, normal, values
from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.inference import MAP, stacking_weights
from pyrobbb.inference.ensemble import stacked
from pyrobbb.posterior import Posterior
from pyrobbb.training.trainer import fit


def test_stacking_finds_the_maximum_of_the_mixture_score():
    scores = normal(2, 40, dtype=torch.float64)
    grid = torch.linspace(0, 1, 20_001, dtype=torch.float64)[1:-1]
    mixed = torch.logaddexp(grid.log()[:, None] + scores[0], (1 - grid).log()[:, None] + scores[1])
    w = stacked(scores)
    assert abs(float(w[0] - grid[mixed.sum(1).argmax()])) < 2e-4
    assert float(w.sum()) == pytest.approx(1.0)


def test_stacking_leaves_out_what_is_always_worse_and_is_symmetric():
    good = normal(1, 30, dtype=torch.float64)
    assert stacked(torch.cat([good, good - 1])).tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert stacked(torch.cat([good, good])).tolist() == pytest.approx([0.5, 0.5])


@pytest.fixture(scope="module")
def ensemble():
    data = classes(validation=20)
    make = lambda: BayesianNetwork(nn.Linear(3, 3), priors.Normal(), likelihoods.Categorical())  # noqa: E731
    return fit(make, None, data, inference=MAP(), chains=3, epochs=2, progress=None), data


def test_a_weighted_posterior_averages_its_chains_by_their_weights(ensemble):
    posterior, data = ensemble
    x, y = data.validation.x, data.validation.y
    each = torch.stack([posterior.predict(x, chains=[c], draws=1).probs for c in range(3)])
    weighted = Posterior(posterior.chains, weights=(2.0, 1.0, 1.0))
    assert weighted.weights == (0.5, 0.25, 0.25)
    expected = (torch.tensor([0.5, 0.25, 0.25])[:, None, None] * each).sum(0)
    torch.testing.assert_close(weighted.predict(x, draws=4).probs, expected)
    torch.testing.assert_close(weighted.predict(x, draws=4, mean_weights=True).probs, expected)
    torch.testing.assert_close(posterior.predict(x, mean_weights=True).probs, each.mean(0))
    best = stacking_weights(posterior, x, y, draws=1)
    held = Posterior(posterior.chains, weights=best).predict(x, y, draws=1000).log_predictive.sum()
    assert float(held) >= float(posterior.predict(x, y).log_predictive.sum()) - 1e-3


def test_weights_are_saved_and_loaded(ensemble, tmp_path):
    posterior, _ = ensemble
    Posterior(posterior.chains, weights=(1, 2, 1)).save(tmp_path)
    model = BayesianNetwork(nn.Linear(3, 3), priors.Normal(), likelihoods.Categorical())
    assert Posterior.load(tmp_path, model, MAP().guide(model, None)).weights == (0.25, 0.5, 0.25)


@pytest.mark.parametrize(
    "weights", [(1.0,), (1.0, -1.0, 1.0), (0.0, 0.0, 0.0), ("a", 1, 1), (float("nan"), 1, 1)]
)
def test_weights_that_are_no_mixture_are_refused(ensemble, weights):
    with pytest.raises(ValueError, match="weights must be"):
        Posterior(ensemble[0].chains, weights=weights)


def test_counts_follow_the_weights_by_largest_remainders():
    data = values()
    make = lambda: BayesianNetwork(network(width=2), priors.Normal(), likelihoods.Normal(0.1))  # noqa: E731
    posterior = fit(make, None, data, inference=MAP(), chains=2, epochs=1, progress=None)
    posterior.weights = (0.9, 0.1)
    prediction = posterior.predict(data.train.x, draws=5)
    assert [len(part.mean) for part in prediction.components] == [9, 1]
    posterior.weights = (1.0, 0.0)
    assert len(posterior.predict(data.train.x, draws=5).means) == 10


def test_points_without_priors_are_averaged_by_their_weights_too():
    make = lambda: BayesianNetwork(nn.Linear(3, 3), priors.Deterministic(), likelihoods.Categorical())  # noqa: E731
    data = classes()
    posterior = fit(make, None, data, chains=2, epochs=1, progress=None)
    one, other = (posterior.predict(data.train.x, chains=[c]).probs for c in range(2))
    posterior.weights = (0.9, 0.1)
    torch.testing.assert_close(posterior.predict(data.train.x).probs, 0.9 * one + 0.1 * other)


def test_chains_that_are_not_in_the_mixture_are_refused(ensemble):
    posterior = Posterior(ensemble[0].chains, weights=(1, 0, 0))
    x = ensemble[1].validation.x
    for chains, reason in (([1, 2], "weight 0"), ([0, 5], "less than 3"), ([0, -1], "at least 0")):
        with pytest.raises(ValueError, match=reason):
            posterior.predict(x, chains=chains)
    torch.testing.assert_close(posterior.predict(x, chains=[0, 0]).probs, posterior.predict(x).probs)
