"""Quantiles of mixtures; `tests/test_intervals.py` has those of predictions."""

import math

import pytest
import torch
from torch.distributions import Gamma, TransformedDistribution

from pyrobbb._support.quantiles import mixture_quantile


def test_no_transforms_make_of_a_distribution_what_it_is() -> None:
    """One that has a cdf and no quantile function of its own, on which the search went round for ever."""
    plain = Gamma(torch.ones(2, 3), 1.0)
    found = mixture_quantile([TransformedDistribution(plain, [])], torch.tensor(0.5))
    assert found.tolist() == pytest.approx([math.log(2)] * 3)
