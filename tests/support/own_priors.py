"""Priors as a user would write them."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
from pyro.nn import PyroModule, PyroSample
from torch import Tensor

from pyrobbb import priors


class Hierarchical(PyroModule, priors.Prior):
    """One scale for all weights, with a prior of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = PyroSample(dist.HalfCauchy(1.0))

    def distribution(self, name: str, parameter: Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, priors.beside(self.scale, parameter)), parameter)
