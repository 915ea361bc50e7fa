"""CRPS of mixtures, against quadrature and known values."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm, poisson

from pyrobbb.distributions import Affine
from pyrobbb.evaluation.crps import _of_samples, crps
from pyrobbb.predictive import ClassPrediction, ValuePrediction


def prediction(*parts) -> ValuePrediction:
    return ValuePrediction(None, None, tuple(parts))


def test_it_is_the_integral_of_the_squared_distance_of_distribution_functions():
    """Also of draws that are there more than once, whose share is by their number."""
    means, sds, y = np.array([0.0, 1.0, 1.0, 4.0, 1.0]), np.array([0.5, 2.0, 2.0, 0.1, 0.3]), 1.3

    def squared(z: float) -> float:
        return float((norm.cdf((z - means) / sds).mean() - (z >= y)) ** 2)

    exactly = {"limit": 200, "epsabs": 1e-12, "epsrel": 1e-12}
    expected = quad(squared, -20, y, **exactly)[0] + quad(squared, y, 25, points=[4.0], **exactly)[0]
    part = dist.Normal(torch.tensor(means)[:, None, None], torch.tensor(sds)[:, None, None])
    found = crps(prediction(part), torch.tensor([[y]], dtype=torch.float64))
    assert found.shape == (1, 1)
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_one_normal_has_the_known_score_and_a_narrow_one_the_absolute_error():
    one = dist.Normal(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    known = 2 / math.sqrt(2 * math.pi) - 1 / math.sqrt(math.pi)
    assert float(crps(prediction(one), torch.zeros(1, 1))) == pytest.approx(known)
    narrow = dist.Normal(torch.zeros(1, 1, 1), torch.full((1, 1, 1), 1e-9))
    assert float(crps(prediction(narrow), torch.full((1, 1), 3.0))) == pytest.approx(3.0)


def test_units_and_blocks_of_rows_change_nothing_but_the_units():
    torch.manual_seed(0)
    base, y = dist.Normal(torch.randn(7, 50, 1), torch.rand(7, 50, 1) + 0.1), torch.randn(50, 1)
    whole = crps(prediction(base), y)
    in_units = Affine(base, torch.tensor([3.0]), torch.tensor([10.0]))
    torch.testing.assert_close(crps(prediction(in_units), 3 + 10 * y), 10 * whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(crps(prediction(base), y, megabytes=0.001), whole)


def test_samples_of_a_normal_that_does_not_say_so_have_its_score():
    torch.manual_seed(0)
    base, y = dist.Normal(torch.randn(7, 50, 1), torch.rand(7, 50, 1) + 0.1), torch.randn(50, 1)
    weight = dist.Categorical(torch.ones(7, 50, 1, 1))
    hidden = dist.MixtureSameFamily(weight, dist.Normal(base.loc[..., None], base.scale[..., None]))
    exact, found = crps(prediction(base), y), crps(prediction(hidden), y)
    torch.testing.assert_close(found, exact, rtol=0, atol=0.05)  # the sd of 10,000 samples' mean is 0.01
    torch.testing.assert_close(found.mean(), exact.mean(), rtol=0, atol=0.005)


@pytest.mark.parametrize("rate", [0.3, 4.0])
def test_of_counts_it_is_the_sum_of_the_squared_distance(rate: float):
    at = np.arange(60)
    y = torch.tensor([[0.0], [3.0], [9.0]])
    expected = [((poisson.cdf(at, rate) - (at >= float(one))) ** 2).sum() for one in y]
    found = crps(prediction(dist.Poisson(torch.full((2, 3, 1), rate))), y)
    assert found.flatten().tolist() == pytest.approx(expected, abs=6 * (rate / 10_000) ** 0.5)


def test_what_it_cannot_score_is_refused():
    normal = dist.Normal(torch.zeros(2, 3, 1), torch.ones(2, 3, 1))
    with pytest.raises(ValueError, match=r"y must have the shape of the prediction, \(3, 1\), got \(2, 1\)"):
        crps(prediction(normal), torch.zeros(2, 1))
    probs = torch.full((3, 2), 0.5)
    with pytest.raises(ValueError, match="the prediction is of class labels"):
        crps(
            ClassPrediction(None, None, probs=probs, predictive_entropy=probs, expected_entropy=probs), probs
        )


def test_a_single_sample_has_the_absolute_error():
    y = torch.tensor([0.5, -1.0])
    torch.testing.assert_close(_of_samples(torch.zeros(1, 1, 2), y), y.abs())


@pytest.mark.parametrize("each", [1, 2, 5])
def test_pairs_of_samples_count_by_their_draws(each: int) -> None:
    """By all pairs, one after the other: of one draw n (n - 1), of two n^2."""
    torch.manual_seed(each)
    drawn, y = torch.randn(each, 4, 3, dtype=torch.float64).cumsum(1), torch.zeros(3, dtype=torch.float64)
    apart = (drawn[:, None, :, None] - drawn[None, :, None, :]).abs()  # n, n, S, S, M
    expected = torch.zeros(3, dtype=torch.float64)
    for s in range(4):
        for t in range(4):
            own = 0 if each == 1 else apart[:, :, s, s].sum((0, 1)) / (each * (each - 1))
            expected += own if s == t else apart[:, :, s, t].mean((0, 1))
    expected /= 16 if each > 1 else 12
    torch.testing.assert_close(_of_samples(drawn, y), drawn.abs().mean((0, 1)) - 0.5 * expected)
