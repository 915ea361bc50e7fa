"""Natural gradients: the printed algorithm, and the exact mean field of a linear model."""

from functools import partial
from typing import Any, ClassVar

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from engine_fakes import normal
from exact_models import NOISE, D, N, linear, made_step
from pyrobbb import likelihoods, priors
from pyrobbb._support.random_state import isolated
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import from_arrays
from pyrobbb.data.dataset import Split
from pyrobbb.inference import NaturalGradient, natural_gradient_step
from pyrobbb.training.trainer import fit


class _ByPyro(dist.Laplace):
    """Of which the step does not know that it is a product over the weights."""

    arg_constraints: ClassVar[dict[str, Any]] = {}


@pytest.mark.parametrize(
    "prior",
    [
        priors.Normal(sigma=0.7),
        priors.Laplace(scale=0.4),
        priors.Centred(sigma=2.0),
        priors.IID(_ByPyro(torch.tensor(0.0), torch.tensor(0.4))),
    ],
)
@pytest.mark.parametrize("large", [1, D, 100_000])
def test_a_natural_gradient_step_is_the_printed_algorithm(prior, large, monkeypatch):
    monkeypatch.setattr(natural_gradient_step, "LARGE", large)
    _, data, _, _ = linear()
    model = BayesianNetwork(nn.Linear(D, 1), prior, likelihoods.Normal(scale=NOISE), N)
    method = NaturalGradient(lr=0.3, beta1=0.8, beta2=0.9, h0=2.0, radius=1e6)
    is_normal = isinstance(prior, priors.Normal | priors.Centred)
    B = 20
    x, y = data.x[:B].double(), data.y[:B].double()
    with isolated(0):
        guide, step = made_step(method, model, data, 0)
        assert step.by_pyro is isinstance(prior, priors.IID)
        m = guide.loc.detach().double().clone()
        c = m.clone() if isinstance(prior, priors.Centred) else 0.0
        delta = 1 / (N * prior.sigma**2) if is_normal else 0.0
        h, g = torch.full_like(m, 2.0), torch.zeros_like(m)
        for t in range(1, 8):
            step.normals.draw = lambda t=t: step.normals.values.copy_(normal(D + 1, seed=t))
            terms = step(x.float(), y.float(), B / N, B / N)
            eps = normal(D + 1, seed=t).double() if t % 2 else -normal(D + 1, seed=t - 1).double()
            sigma = 1 / (N * (h + delta)).sqrt()
            w = (m + sigma * eps).requires_grad_()

            def log_p(w):
                if is_normal:
                    return torch.distributions.Normal(c, prior.sigma).log_prob(w).sum()
                return torch.distributions.Laplace(0.0, 0.4).log_prob(w).sum()

            nll = -torch.distributions.Normal(x @ w[:D] + w[D], NOISE).log_prob(y[:, 0]).sum()
            loss = nll / B - (0.0 if is_normal else log_p(w) / N)
            (gradient,) = torch.autograd.grad(loss, w)
            kl = torch.distributions.Normal(m, sigma).log_prob(w).sum() - log_p(w)
            torch.testing.assert_close(terms.nll.double(), nll.detach(), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(terms.kl.double(), kl.detach(), rtol=1e-4, atol=1e-4)
            g = 0.8 * g + 0.2 * gradient
            hat = gradient * (w.detach() - m) / sigma**2
            h = 0.9 * h + 0.1 * hat + 0.5 * 0.1**2 * (h - hat) ** 2 / (h + delta)
            m = m - 0.3 * (g / (1 - 0.8**t) + delta * (m - c)) / (h + delta)
    torch.testing.assert_close(guide.loc.detach().double(), m, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        guide.scale.detach().double(), 1 / (N * (h + delta)).sqrt(), rtol=1e-3, atol=1e-5
    )


def test_no_weight_moves_further_than_the_radius_in_units_of_its_sigma():
    """Far from the mode, the first step goes that far down the slope in every weight."""
    model, data, *_ = linear()
    with isolated(0):
        guide, step = made_step(NaturalGradient(lr=1.0, radius=0.3), model, data, 0)
        start = torch.tensor([9.0, -9.0, 9.0])
        guide.loc.data.copy_(start)
        step(data.x, data.y, 1.0, 1.0)
    down = -torch.sign(data.x.T @ (data.x @ start - data.y[:, 0]))
    torch.testing.assert_close(
        guide.loc.detach() - start, 0.3 * guide.scale.detach() * down, rtol=1e-3, atol=0
    )


def test_a_compiled_natural_gradient_step_is_the_same(monkeypatch):
    """With weights and biases in one pass or in a pass each, and parameters of the prior that differ."""
    model = BayesianNetwork(nn.Linear(D, 3), priors.Centred(sigma=2.0), likelihoods.Categorical(), N)
    data = Split(normal(N, D), torch.arange(N) % 3)
    found = []
    for fast, large in (("eager", 100_000), ("compiled", 9)):
        monkeypatch.setattr(natural_gradient_step, "LARGE", large)
        with isolated(0):
            guide, step = made_step(NaturalGradient(lr=0.3, beta2=0.9), model, data, 0, fast)
            assert [names for _, names in step.pieces] == (
                [["weight"], ["bias"]] if large == 9 else [["weight", "bias"]]
            )
            for _ in range(5):
                step(data.x, data.y, 1.0, 1.0)
        found.append(torch.cat([guide.loc.detach(), guide.scale.detach()]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_a_schedule_scales_the_rate_of_natural_gradients_from_its_first_epoch_on():
    model, data, _, _ = linear()

    def moved(lr: float, factor: float) -> Tensor:
        with isolated(0):
            guide, step = made_step(NaturalGradient(lr=lr), model, data, 0, factor=factor)
            before = guide.loc.detach().clone()
            step(data.x, data.y, 1.0, 1.0)
            return guide.loc.detach() - before

    torch.testing.assert_close(moved(0.1, 0.5), moved(0.05, 1.0))
    assert not moved(0.1, 0.0).any()


def test_natural_gradients_refuse_an_optimiser_without_a_rate():
    model, data, _, _ = linear()
    with pytest.raises(ValueError, match="optim has rate 0"):
        fit(model, None, from_arrays(data.x, data.y, task="regression"), inference=NaturalGradient(),
            optim=partial(torch.optim.SGD, lr=0.0), epochs=1, progress=None)  # fmt: skip


@pytest.mark.parametrize(("beta2", "few"), [(0.99, True), (0.95, False)])
def test_natural_gradients_say_if_the_steps_are_too_few_to_forget_the_start(beta2, few, caplog):
    data = from_arrays(torch.randn(4, 1), torch.randn(4, 1), task="regression")
    model = BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(0.5))
    fit(model, None, data, inference=NaturalGradient(beta2=beta2), epochs=50, progress=None)
    assert ("50 steps are too few to forget the first curvature" in caplog.text) is few
    assert ("train for more than 1 / (1 - beta2) = 100" in caplog.text) is few
    assert ("is still that of the start" in caplog.text) is not few, "one of the two is enough"


@pytest.mark.parametrize(("epochs", "left"), [(50, True), (300, False)])
def test_natural_gradients_say_if_the_start_is_still_in_sigma(epochs, left, caplog):
    """Of a first precision of 5000 exp(-2.6) or exp(-15) is left, beside the 160 of 40 rows with sd 0.5."""
    data = from_arrays(torch.randn(40, 1), torch.randn(40, 1), task="regression")
    model = BayesianNetwork(nn.Linear(1, 1), priors.Normal(), likelihoods.Normal(0.5))
    fit(model, None, data, inference=NaturalGradient(beta2=0.95), epochs=epochs, progress=None)
    assert ("is still that of the start" in caplog.text) is left


def test_natural_gradients_reach_the_exact_mean_field_of_a_linear_model():
    model, data, precision, mean = linear()
    sums = torch.zeros(2, D)
    with isolated(0):
        guide, step = made_step(NaturalGradient(lr=0.05, beta2=0.995), model, data, 0)
        for i in range(3000):
            step(data.x, data.y, 1.0, 1.0)
            if i >= 1500:
                sums += torch.stack([guide.loc.detach(), guide.scale.detach().square()]) / 1500
    sd = precision.diagonal() ** -0.5
    assert float(((sums[0] - mean) / sd).abs().max()) < 0.15  # over 20 seeds: sd 0.028
    torch.testing.assert_close(sums[1].sqrt(), sd, rtol=0.085, atol=0.0)  # sd 0.016


@pytest.mark.parametrize(("N", "h0", "sigma"), [(50, None, 0.01), (50_000, None, 0.01), (50, 2.0, 0.1)])
def test_sigma_starts_alike_whatever_the_number_of_rows(N: int, h0: float | None, sigma: float):
    """1 / sqrt(5000 + 5000) under a prior of precision 5000, or 1 / sqrt(N (h0 + delta)), 100 = 50 * 2."""
    prior = priors.Normal(sigma=5000**-0.5 if h0 is None else 1e6)
    model = BayesianNetwork(nn.Linear(1, 1), prior, likelihoods.Normal(scale=1.0), N)
    guide, _ = made_step(NaturalGradient(h0=h0), model, Split(torch.ones(5, 1), torch.ones(5, 1)), 0)
    torch.testing.assert_close(guide.sigma, torch.full((2,), sigma), rtol=1e-4, atol=0)
