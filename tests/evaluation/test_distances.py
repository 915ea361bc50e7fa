"""Total variation between sets of function draws, against normals for which it is known."""

import numpy as np
import pytest
from scipy.stats import norm

from pyrobbb.evaluation.distances import symmetric_difference, total_variation


def test_it_is_that_of_two_normals():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0, 1, (200_000, 1)), rng.normal(1, 1, (200_000, 1))
    expected = 2 * norm.cdf(0.5) - 1
    assert total_variation(first, second, bins=200)[0] == pytest.approx(expected, abs=0.01)


def test_the_same_draws_are_0_apart_and_others_1():
    draws = np.random.default_rng(0).normal(size=(50, 3))
    np.testing.assert_array_equal(total_variation(draws, draws), 0)
    np.testing.assert_allclose(total_variation(draws, draws + 100), 1)
    np.testing.assert_allclose(total_variation(np.zeros((9, 1)), np.ones((4, 1))), 1)  # points, each apart


def test_two_samples_of_one_distribution_are_as_far_apart_as_the_docstring_says():
    rng = np.random.default_rng(0)
    found = total_variation(rng.normal(size=(500, 400)), rng.normal(size=(1000, 400)))
    expected = np.sqrt(20 * (1 / 500 + 1 / 1000) / (2 * np.pi))
    assert found.mean() == pytest.approx(expected, rel=0.1)


def test_symmetry_of_even_functions_and_of_a_slope():
    rng = np.random.default_rng(0)
    x = np.linspace(-1, 1, 11)
    a = rng.normal(size=(300, 1))
    assert symmetric_difference(a * x**2).shape == (5,)
    np.testing.assert_array_equal(symmetric_difference(a * x**2), 0)
    np.testing.assert_allclose(symmetric_difference(5 * x + 0.1 * a)[0], 1)


def test_draws_at_other_inputs_are_refused():
    with pytest.raises(ValueError, match="draws must have shapes"):
        total_variation(np.zeros((3, 2)), np.zeros((3, 1)))
    with pytest.raises(ValueError, match="no draws"):
        total_variation(np.zeros((0, 2)), np.zeros((3, 2)))
