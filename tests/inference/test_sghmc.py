"""SGHMC against the posterior of a linear model, and what becomes of its draws."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from engine_fakes import normal
from exact_models import NOISE, SIGMA, D, N, linear, made_step
from pyrobbb._support.random_state import isolated
from pyrobbb.data.dataset import Dataset, Spec
from pyrobbb.evaluation.arviz_export import to_groups
from pyrobbb.evaluation.diagnostics import function_draws
from pyrobbb.inference import SGHMC
from pyrobbb.posterior import Posterior
from pyrobbb.training.trainer import fit


def test_sghmc_draws_from_the_exact_posterior_of_a_linear_model():
    model, data, precision, mean = linear()
    with isolated(0):
        guide, step = made_step(SGHMC(lr=0.1, cycles=2, draws=150, exploring=0.1), model, data, 3000)
        for _ in range(3000):
            step(data.x, data.y, 1.0, 1.0)
    assert int(guide.kept) == len(guide.stored)
    sd = torch.linalg.inv(precision).diagonal().sqrt()
    drawn = guide.stored
    assert float(((drawn.mean(0) - mean) / sd).abs().max()) < 0.5  # over 20 seeds: sd 0.087
    torch.testing.assert_close(drawn.std(0), sd, rtol=0.35, atol=0.0)  # mean 0.032, sd 0.055


def test_a_step_of_sghmc_is_the_printed_algorithm(monkeypatch: pytest.MonkeyPatch):
    """In two cycles of 5 steps, of which the first 2 are without noise and the last 2 are kept."""
    model, data, *_ = linear()
    B, kept = 10, []
    x, y = data.x[:B], data.y[:B]
    method = SGHMC(lr=0.3, friction=0.2, cycles=2, draws=2, exploring=0.4)
    guide, step = made_step(method, model, data, 10)
    w, v = guide.loc.detach().clone(), torch.zeros(D)
    for k in range(10):
        cycle, noise = k % 5, normal(D, seed=k)
        monkeypatch.setattr(torch, "randn_like", lambda like, noise=noise: noise)
        step(x, y, B / N, B / N)
        alpha = 0.3 / N / 2 * (math.cos(math.pi * cycle / 5) + 1)
        gradient = N / B * x.T @ (x @ w - y[:, 0]) / NOISE**2 + w / SIGMA**2
        v = (1 - 0.2) * v - alpha * gradient + (cycle >= 2) * (2 * 0.2 * alpha) ** 0.5 * noise
        w = w + v
        torch.testing.assert_close(guide.loc.detach(), w, rtol=1e-4, atol=1e-5)
        if cycle >= 3:
            kept.append(w)
    torch.testing.assert_close(guide.stored, torch.stack(kept), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("B", "lr"), [(5, 0.02), (5, 1e-3), (N, 0.1)])
def test_sghmc_says_by_how_much_the_noise_of_minibatches_widens_its_draws(B, lr, caplog):
    model, data, _, mean = linear()
    model.network.weight.data.copy_(mean)
    steps, draws, friction = 800, 400, 0.1
    method = SGHMC(lr=lr, friction=friction, cycles=1, draws=draws, exploring=0.5)
    whole = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    options = {"epochs": steps * B // N, "batch_size": B, "seed": 1, "fast": "eager", "progress": None}
    guide = fit(model, None, whole, inference=method, **options).chains[0][1]
    each = data.x * (data.y - data.x @ guide.stored.T).T[..., None] / NOISE**2  # gradients of each row
    V = N**2 / B * each.var(1).mean(1) * (1 - B / N)
    rates = [lr / N * (math.cos(math.pi * k / steps) + 1) / 2 for k in range(steps - draws, steps)]
    excess = float((torch.tensor(rates) * V).mean()) / (2 * friction)
    assert float(guide.excess.mean()) == pytest.approx(excess, rel=0.5)  # sd 0.08
    said = f"about {(1 + float(guide.excess.mean())) ** 0.5:.1f} times too large"
    assert (said in caplog.text) is (lr == 0.02)


def test_the_noise_of_minibatches_is_half_the_squared_difference_of_two_gradients():
    model, data, *_ = linear()
    guide, step = made_step(SGHMC(lr=1e-9, friction=0.2, cycles=1, draws=1, exploring=0.0), model, data, 2)
    guide.loc.data.fill_(9.0)  # far from the mode, where both gradients are large
    gradients = []
    for x, y in zip(data.x[:10].split(5), data.y[:10].split(5), strict=True):
        step(x, y, 0.1, 0.1)
        residuals = (x * 9.0).sum(1, keepdim=True) - y
        gradients.append(10 * (x * residuals).sum(0) / NOISE**2 + 9.0 / SIGMA**2)
    V = float((gradients[1] - gradients[0]).square().mean()) / 2 * (1 - 0.1)
    assert float(guide.excess) == pytest.approx(1e-9 / N / 2 * V / (2 * 0.2), rel=1e-3)


def test_a_sampler_s_posterior_is_its_chain():
    model, data, _, _ = linear()
    guides = []
    for start in (0.0, 5.0):  # a chain that drifts: every draw above the one before
        guide = SGHMC(cycles=2, draws=5).guide(model, None)
        for i in range(10):
            guide.keep(torch.full((D,), start + i))
        guides.append(guide)
        mean, sd = (part["weight"][0].tolist() for part in guide.loc_and_scale())
        assert (mean, sd) == ([start + 4.5] * D, pytest.approx([np.std(np.arange(10), ddof=1)] * D))
    posterior = Posterior([(model, guide) for guide in guides])
    assert sorted(posterior.draw(10)["weight"][:, 0, 0].tolist()) == list(range(10))
    few = sorted(posterior.draw(4)["weight"][:, 0, 0].tolist())
    assert min(b - a for a, b in pairwise(few)) >= 1  # spread over the chain, none twice
    assert few[0] <= 2
    assert few[-1] >= 7
    whole = Dataset("linear", data, Spec(N, (D,), 1, "regression"))
    groups, _ = to_groups(posterior, whole, draws=10, weights=3)
    for c, start in enumerate((0.0, 5.0)):
        drawn = groups["posterior"]["weight"][c, :, 0]
        np.testing.assert_array_equal(drawn, start + np.arange(10))
        each = [model.log_likelihood({"weight": torch.full((1, D), float(w))}, data.x, data.y) for w in drawn]
        np.testing.assert_allclose(groups["log_likelihood"]["y"][c], torch.stack(each), rtol=1e-5, atol=1e-5)
    f = function_draws(posterior, data.x[:1], draws=10)[..., 0]
    slope = float(data.x[0].sum())
    np.testing.assert_allclose(f[0, :, 0], slope * np.arange(10), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kept", [1, 2, 3, 7, 40, 89, 100, 360, 1000])
def test_few_draws_are_spread_over_a_chain_of_any_length(kept: int):
    """Steps round and round left a whole cycle of 40 draws out of the first ten."""
    guide = SGHMC(cycles=1, draws=kept).guide(linear()[0], None)
    for _ in range(kept):
        guide.keep(torch.zeros(D))
    for seed in range(20):
        places = [guide.place(number, seed) for number in range(kept)]
        assert sorted(places) == list(range(kept))
        for draws in {4, 10, 50, 100}:
            few = sorted(places[:draws])
            widest = max(b - a for a, b in pairwise([*few, few[0] + kept]))
            assert widest <= max(1, 3 * kept / draws)


@pytest.mark.parametrize(("steps", "last"), [(1000, 14), (1011, 25)])
def test_the_last_cycle_of_sghmc_keeps_no_draw_from_before_its_noise(steps: int, last: int):
    """Which begins after the 24th of 34 steps of a cycle."""
    model, data, *_ = linear()
    with pytest.raises(ValueError, match=f"leave {last} to the last, too few with noise for its 10 draws"):
        made_step(SGHMC(cycles=30, draws=10), model, data, steps)
