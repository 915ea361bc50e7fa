"""AUROC by hand and in closed form."""

import math

import numpy as np
import pytest

from pyrobbb.evaluation.ood import auroc, hits, roc_curve


def test_auroc_by_hand():
    assert auroc([0.0, 1.0], [2.0, 3.0]) == 1
    assert auroc([2.0, 3.0], [0.0, 1.0]) == 0
    assert auroc([1.0, 1.0], [1.0]) == 0.5
    assert auroc([0.0, 2.0], [1.0, 3.0]) == 0.75  # three of the four pairs are in order
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(0, 1, 4000), rng.normal(1, 1, 3000)
    alarms, hits = roc_curve(known, unknown)
    assert (alarms[0], hits[0]) == (0, 0)
    assert (alarms[-1], hits[-1]) == (1, 1)
    assert np.trapezoid(hits, alarms) == pytest.approx(auroc(known, unknown), abs=2e-3)
    assert auroc(known, unknown) == pytest.approx(0.760, abs=0.02)  # Phi(1 / sqrt 2)
    for wrong in ([], [0.0, math.nan], [[1.0]]):
        with pytest.raises(ValueError, match="outside must be a vector of finite scores"):
            auroc([1.0], wrong)


def test_the_curve_counts_scores_above_each_threshold():
    alarms, found = roc_curve([1.0, 0.0], [2.0, 1.0, 0.0, 1.0], points=3)  # above 2, 1 and 0, and all
    assert alarms.tolist() == [0, 0, 0.5, 1]
    assert found.tolist() == [0, 0.25, 0.75, 1]


def test_hits_at_few_false_alarms():
    inside, outside = np.arange(100.0), np.array([50.0, 97.5, 98.5, 99.5])
    assert hits(inside, outside, 0.0) == 0.25  # above all insiders
    assert hits(inside, outside, 0.01) == 0.5
    assert hits(inside, outside, 0.02) == 0.75
    assert hits(inside, outside, 1.0) == hits(inside, outside, 1 - 1e-12) == 1.0
    assert hits(inside, np.full(3, 70.5), 0.29) == 1.0, "29 of 100 lie above 70.5, though 0.29 * 100 < 29"
    assert hits(np.zeros(10), np.zeros(5), 0.05) == 0.0, "equal scores cannot be told apart"
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(0, 1, 100_000), rng.normal(2, 1, 100_000)
    assert hits(known, unknown, 0.05) == pytest.approx(0.6388, abs=0.01)  # 1 - Phi(1.645 - 2)
    with pytest.raises(ValueError, match="alarms"):
        hits(known, unknown, 1.5)
