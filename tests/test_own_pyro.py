"""Model and guide in a user's own Pyro: an SVI loop, Predictive, effect handlers, NUTS."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from torch import Tensor, nn

from engine_fakes import network, normal, values
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Dataset
from pyrobbb.mean_field import MeanFieldNormal

Parts = tuple[BayesianNetwork, MeanFieldNormal, Dataset]


@pytest.fixture
def parts() -> Parts:
    data = values(24)
    model = BayesianNetwork(network(width=2), priors.Normal(), likelihoods.Normal(scale=0.5), 24)
    return model, MeanFieldNormal(model), data


def flat(guide: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in guide.parameters()])


def test_an_own_svi_loop_over_minibatches_takes_the_steps_of_the_elbo(parts: Parts) -> None:
    """Loss and parameters of each step are those of log q(w) - log p(y, w), written out beside it."""
    model, guide, data = parts
    with isolated(0):
        guide(data.train.x, data.train.y)
        begun = flat(guide)
        svi = SVI(model, guide, pyro.optim.SGD({"lr": 1e-4}), Trace_ELBO())  # type: ignore[attr-defined]
        for step, rows in enumerate(torch.arange(24).split(8)):
            x, y = data.train.x[rows], data.train.y[rows]
            before = [p.detach().clone() for p in guide.parameters()]
            pyro.set_rng_seed(step)
            q = poutine.trace(guide).get_trace(x, y)
            p = poutine.trace(poutine.replay(model, q)).get_trace(x, y)
            cost = q.log_prob_sum() - p.log_prob_sum()
            slopes = torch.autograd.grad(cost, list(guide.parameters()))
            pyro.set_rng_seed(step)
            assert svi.step(x, y) == pytest.approx(float(cost.detach()), rel=1e-5)
            for old, new, slope in zip(before, guide.parameters(), slopes, strict=True):
                torch.testing.assert_close(new.detach(), old - 1e-4 * slope, rtol=1e-4, atol=1e-6)
    assert not torch.equal(flat(guide), begun)


def test_predictive_with_a_guide_draws_weights_and_targets(parts: Parts) -> None:
    model, guide, data = parts
    x, S = normal(5, 3, seed=8), 400
    with isolated(0):
        guide(data.train.x, data.train.y)
        drawn = Predictive(model, guide=guide, num_samples=S)(x)
    loc, scale = guide.loc_and_scale()
    assert drawn["y"].shape == (S, 5, 2)
    for name in model.sites:
        found = drawn[name].reshape(S, *loc[name].shape)
        assert ((found.mean(0) - loc[name]).abs() < 5 * scale[name] / S**0.5).all()
    f = model.apply_network({n: drawn[n].reshape(S, *loc[n].shape) for n in model.sites}, x)
    noise = drawn["y"] - f
    assert abs(float(noise.mean())) < 5 * 0.5 / noise.numel() ** 0.5
    assert abs(float(noise.std()) - 0.5) < 5 * 0.5 / (2 * noise.numel()) ** 0.5


def test_effect_handlers_see_every_weight(parts: Parts) -> None:
    model, guide, data = parts
    x, y = data.train.x, data.train.y
    given = torch.zeros(2, 4)
    with isolated(0):
        guide(x, y)
        conditioned = poutine.trace(pyro.condition(model, {"2.weight": given})).get_trace(x, y)
        intervened = poutine.trace(pyro.do(model, {"2.weight": given})).get_trace(x, y)
        replayed = poutine.trace(poutine.replay(model, poutine.trace(guide).get_trace(x, y))).get_trace(x, y)
        nothing = {name: torch.zeros_like(value) for name, value in model.initial().items()}
        substituted = pyro.condition(model, nothing)
        y_of_nothing = poutine.trace(substituted).get_trace(x).nodes["y"]["fn"].mean
    assert conditioned.nodes["2.weight"]["is_observed"]
    assert torch.equal(conditioned.nodes["2.weight"]["value"], given)
    bias = intervened.nodes["2.bias"]["value"]
    assert torch.equal(intervened.nodes["y"]["fn"].mean, bias.expand(24, 2))
    assert set(model.sites) <= set(replayed.nodes)
    assert float(y_of_nothing.abs().max()) == 0


def test_nuts_draws_every_weight_of_a_network(parts: Parts) -> None:
    model, _, data = parts
    with isolated(0):
        mcmc = MCMC(NUTS(model, max_tree_depth=3), num_samples=4, warmup_steps=4, disable_progbar=True)
        mcmc.run(data.train.x, data.train.y)
        samples = mcmc.get_samples()
        predicted = Predictive(model, posterior_samples=samples)(data.train.x[:3])
    assert {name: value.shape for name, value in samples.items()} == {
        name: (4, *value.shape) for name, value in model.initial().items()
    }
    assert predicted["y"].shape == (4, 3, 2)
