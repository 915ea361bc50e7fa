"""Target A11: the posterior predictive, its entropies, and the tutorial's geometric mean."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from experiments.tutorial import mnist_uncertainty as tutorial_uncertainty
from pyrobbb import likelihoods, priors
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.evaluation.metrics import classification_metrics
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.posterior import Posterior


def log_probs(draws=30, scale=4.0):
    logits = scale * torch.randn(draws, 40, 10, generator=torch.Generator().manual_seed(0))
    return logits.log_softmax(-1)


@pytest.mark.parametrize("scale", [0.1, 4.0, 30.0])
def test_a11_the_posterior_predictive_is_a_probability_and_its_entropies_are_ordered(scale):
    found = tutorial_uncertainty.uncertainty(log_probs(scale=scale))
    np.testing.assert_allclose(found["probs"].sum(-1), 1, atol=1e-6)
    assert (found["entropy"] >= found["expected"] - 1e-6).all()
    assert found["entropy"].max() <= math.log2(10) + 1e-6
    np.testing.assert_allclose(found["entropy"] - found["expected"], found["information"], atol=1e-9)


def test_a11_the_geometric_mean_is_no_probability_and_its_entropy_no_entropy():
    given = log_probs()
    found = tutorial_uncertainty.uncertainty(given)
    mean = given.mean(0).exp()
    with pytest.raises(ValueError, match="sum to 1"):
        classification_metrics(mean, torch.zeros(len(mean), dtype=torch.long))
    assert (found["geometric_sum"] < 0.5).all()
    assert found["printed"].mean() < 0.5 * found["entropy"].mean()
    # the tutorial's own two lines, on the same draws
    preds = torch.exp(given.mean(dim=0))
    theirs = -torch.mean((torch.log2(preds + 1e-10) * preds).sum(dim=1)).item()
    assert found["printed"].mean() == pytest.approx(theirs, rel=1e-5)


def test_agreeing_draws_make_all_three_entropies_one():
    found = tutorial_uncertainty.uncertainty(log_probs(draws=1).expand(7, -1, -1))
    for name in ("expected", "geometric", "printed"):
        np.testing.assert_allclose(found[name], found["entropy"], atol=1e-6)


def test_draws_of_a_network_with_dropout_are_those_of_prediction():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    model = BayesianNetwork(network, priors.Normal(), likelihoods.Categorical(), 10)
    guide = MeanFieldNormal(model)
    guide(torch.zeros(1, 4))
    x, posterior = torch.randn(6, 4), Posterior([(model, guide)])
    again = [tutorial_uncertainty.draw_log_probs(posterior, x, draws=3, seed=2) for _ in range(2)]
    torch.testing.assert_close(again[0], again[1], rtol=0, atol=0)
    probs = posterior.predict(x, draws=3, seed=2).probs
    torch.testing.assert_close(again[0].exp().mean(0), probs.float(), atol=1e-5, rtol=0)
