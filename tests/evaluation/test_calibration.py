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
    for level, share in coverage(draws, y).items():
        assert share == pytest.approx(level, abs=0.002)


@pytest.mark.parametrize(
    "values",
    [[0.3, -1.2], [2, 2, 2], [0, 0, 0, 1, 1, 2, 5], [0, 0, 0.4, 1.7, 3.1], [*range(100), *range(30)]],
)
def test_a_value_like_the_draws_is_held_as_often_as_the_interval_says(values):
    """Each of the values in turn is y and the others the draws, few or many, tied or not."""
    values = np.array(values, dtype=float)
    others = np.stack([np.delete(values, i) for i in range(len(values))], axis=1)
    for level, share in coverage(others, values).items():
        assert share == pytest.approx(level, abs=1e-12)


def test_a_count_at_the_end_of_an_interval_lies_in_it_in_part():
    draws, y = np.array([0.0, 1.0, 1.0, 2.0]).repeat(5)[:, None], np.array([2.0])
    found = coverage(draws, y)  # whose rank lies between 15/21 and 1
    assert found[0.4] == 0.0
    assert found[0.8] == pytest.approx((0.9 - 15 / 21) / (6 / 21))
    weights = np.array([0.5, 0.25, 0.25])  # as 8/3 draws that count alike
    found = coverage(np.array([[0.0], [1.0], [2.0]]), np.array([1.0]), weights)
    low, high = 8 / 3 * 0.5 / (11 / 3), (8 / 3 * 0.75 + 1) / (11 / 3)
    assert found[0.6] == pytest.approx((0.8 - low) / (high - low))


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
