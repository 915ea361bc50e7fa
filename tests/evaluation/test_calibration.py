"""Shares by confidence and within intervals, against numbers worked out by hand."""

import numpy as np
import pytest
from scipy.stats import norm

from pyrobbb.evaluation.calibration import by_confidence, coverage, quantiles


def test_bins_by_hand():
    probs = np.array([[0.9, 0.1], [0.92, 0.08], [0.38, 0.62], [0.37, 0.63], [0.0, 1.0]])
    found = by_confidence(probs, np.array([0, 1, 1, 1, 1]), bins=10)
    assert found.low == pytest.approx([0.6, 0.9])
    assert found.high == pytest.approx([0.7, 1.0])
    assert found.count.tolist() == [2, 3]
    assert found.confidence == pytest.approx([0.625, 0.94])
    assert found.accuracy == pytest.approx([1.0, 2 / 3])
    assert found.ece == pytest.approx((2 * 0.375 + 3 * (0.94 - 2 / 3)) / 5)


def test_intervals_of_a_normal_hold_what_they_say():
    """y at equally spaced quantiles of the predictive distribution: each level holds exactly its share."""
    draws = np.repeat(norm.ppf((np.arange(4000) + 0.5) / 4000)[:, None], 1000, axis=1)
    y = norm.ppf((np.arange(1000) + 0.5) / 1000)
    for level, shares in coverage(draws, y).items():
        assert shares == pytest.approx((level, level), abs=0.002)


@pytest.mark.parametrize("weights", [None, [0.05] * 10 + [0.1] * 5])
def test_intervals_of_counts_hold_more_by_the_model_too(weights):
    """A count that is 0, 1 or 2 with probabilities 1/4, 1/2, 1/4: an interval is all of it, or 1 alone."""
    draws = np.repeat([0.0, 2.0, 1.0] if weights else [0.0, 2.0, 1.0, 1.0], 5)
    found = coverage(draws[:, None], np.array([1.0]), np.array(weights) if weights else None)
    assert found[0.3] == pytest.approx((0.5, 1))
    assert found[0.9] == pytest.approx((1, 1))


@pytest.mark.parametrize("S", [2, 9, 20, 100])
def test_few_draws_hold_what_they_say_of_new_values_from_where_they_are_from(S):
    """The largest of S draws exceeds a new value in S of S + 1 cases, not always."""
    random = np.random.default_rng(0)
    found = coverage(random.normal(size=(S, 20_000)), random.normal(size=20_000))
    for level, (expected, share) in found.items():
        # five standard deviations of 20,000; between the few of nine draws a straight line is not exact
        assert share == pytest.approx(expected, abs=0.05 if S == 9 else 0.02), level
        if (1 - level) / 2 * (S + 1) >= 1:  # beyond the outermost draws nothing is known
            assert expected == pytest.approx(level)


@pytest.mark.parametrize("law", ["zero-inflated", "counts", "counts by thirds"])
def test_where_draws_tie_the_share_of_the_draws_is_expected(law):
    random = np.random.default_rng(0)

    def values(shape):
        if law == "zero-inflated":
            return np.where(random.random(shape) < 0.5, 0.0, random.gamma(2.0, size=shape))
        return random.poisson(3.0, shape) / (3 if "thirds" in law else 1)

    for level, (expected, share) in coverage(values((400, 4000)), values(4000)).items():
        assert share == pytest.approx(expected, abs=0.05), level  # five standard deviations of 4000: 0.04


def test_weights_count_draws():
    draws = np.array([[0.0], [1.0], [2.0]])
    twice = np.array([[0.0], [1.0], [1.0], [1.0], [2.0]])
    weights = np.array([1, 3, 1]) / 5
    levels = [0.1, 0.25, 0.5, 0.75, 0.95]
    expected = np.quantile(twice, levels, axis=0, method="inverted_cdf")
    assert quantiles(draws, levels, weights) == pytest.approx(expected)


def test_counts_are_as_rows_that_are_repeated():
    rng = np.random.default_rng(0)
    draws, y, counts = rng.normal(size=(50, 40)), rng.normal(size=40), rng.integers(0, 4, 40)
    found, expected = coverage(draws, y, None, counts), coverage(draws.repeat(counts, 1), y.repeat(counts))
    np.testing.assert_allclose(list(found.values()), list(expected.values()))


def test_weighted_draws_cover_as_often_as_the_same_draws_without_weights():
    rng = np.random.default_rng(0)
    draws, y = rng.normal(size=(50, 400)), rng.normal(size=400)
    plain = coverage(draws, y)
    alike = coverage(draws, y, np.full(50, 1 / 50))
    more = np.concatenate([draws, rng.normal(size=(30, 400))])
    ignored = coverage(more, y, np.r_[np.full(50, 1 / 50), np.zeros(30)])
    for found in (alike, ignored):
        np.testing.assert_allclose(list(found.values()), list(plain.values()))
    assert abs(plain[0.8][1] - 0.8) < 5 * np.sqrt(0.8 * 0.2 / 400)
