"""Point estimates, and which weights a baseline takes."""

from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from engine_fakes import network, normal
from exact_models import linear, made_step
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Split
from pyrobbb.inference import MAP, SWAG, MCDropout
from pyrobbb.training.trainer import fit


def test_the_maximum_a_posteriori_of_a_linear_model_is_its_posterior_mean():
    model, data, precision, mean = linear()
    with isolated(0):
        guide, step = made_step(MAP(), model, data, 3000)
        step.optimizer.param_groups[0]["lr"] = 1 / float(torch.linalg.eigvalsh(precision)[-1])
        for _ in range(300):
            terms = step(data.x, data.y, 1.0, 1.0)
    torch.testing.assert_close(guide.loc.detach(), mean, rtol=1e-4, atol=1e-4)
    log_P = model.prior_of("weight").log_prob(mean[None])
    torch.testing.assert_close(terms.kl, -log_P)


def _positive() -> BayesianNetwork:
    net = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False))
    for parameter in net.parameters():
        parameter.data.fill_(0.5)
    return BayesianNetwork(net, priors.IID(dist.HalfNormal(1.0)), likelihoods.Normal(scale=1.0))


def test_the_most_probable_positive_weights_are_those_of_their_own_density():
    """Without the Jacobian of their coordinates, which would move the mode."""
    model, x, y = _positive(), normal(8, 1), normal(8, 1, seed=1)
    guide, step = made_step(MAP(), model, Split(x, y), 1)
    z = guide.loc.detach().clone().requires_grad_()
    torch.testing.assert_close(z.detach().exp(), torch.full((4,), 0.5))
    w = z.exp()
    prior = -dist.HalfNormal(1.0).log_prob(w).sum()
    nll = -dist.Normal(x * (w[:2] @ w[2:]), 1.0).log_prob(y).sum()
    (slope,) = torch.autograd.grad(prior + nll, z)
    terms = step(x, y, 1.0, 1.0)
    torch.testing.assert_close(torch.stack([terms.kl, terms.nll]), torch.stack([prior, nll]).detach())
    torch.testing.assert_close(guide.loc.detach(), z.detach() - 1e-3 * slope)  # a step of SGD


@pytest.mark.parametrize("method", [SWAG(), MCDropout()])
def test_baselines_on_the_line_refuse_weights_that_are_not(method: Any):
    data = from_arrays(normal(8, 1), normal(8, 1, seed=1), task="regression")
    with pytest.raises(ValueError, match=r"whole real line, but the prior of '0.weight' lives"):
        fit(_positive(), None, data, inference=method, epochs=2, progress=None)


@pytest.mark.parametrize("bias", [True, False])
def test_the_last_layer_holds_the_weights_that_are_tied_into_it(bias: bool):
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.hidden = nn.Embedding(5, 3), nn.Linear(3, 3)
            self.out = nn.Linear(3, 5, bias=bias)
            self.out.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.tanh(self.hidden(self.embedding(x[:, 0]))))

    model = BayesianNetwork(Decoder(), priors.Normal(), likelihoods.Categorical())
    assert model.last_layer == ["embedding.weight", "out.bias"][: 1 + bias]
    assert BayesianNetwork(network(), priors.Normal(), likelihoods.Categorical()).last_layer == [
        "2.weight", "2.bias",
    ]  # fmt: skip
