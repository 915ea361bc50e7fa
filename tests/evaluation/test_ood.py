"""AUROC by hand and in closed form."""

import math

import numpy as np
import pytest

from pyrobbb.evaluation.ood import auroc, roc_curve


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
    for wrong in ([], [math.nan], [[1.0]]):
        with pytest.raises(ValueError, match="outside must be a vector of finite scores"):
            auroc([1.0], wrong)
