"""Priors as a user would write them."""

from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor

from pyrobbb import priors


class Hierarchical(PyroModule, priors.Prior):
    """One scale for all weights, with a prior of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = PyroSample(dist.HalfCauchy(1.0))

    def distribution(self, name: str, parameter: Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, priors.beside(self.scale, parameter)), parameter)


class Learned(PyroModule, priors.Prior):
    """One scale for all weights, which is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = PyroParam(torch.tensor(1.0), constraint=constraints.positive)

    def distribution(self, name: str, parameter: Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, self.scale), parameter)


class Loose(priors.Prior):
    """A scale in Pyro's parameter store, which no model owns."""

    def distribution(self, name: str, parameter: Tensor) -> Any:
        scale = pyro.param("scale", torch.tensor(1.0), constraint=constraints.positive)
        return priors.elementwise(dist.Normal(0.0, scale), parameter)


class OfOneNetwork(priors.Prior):
    """A scale for each parameter of one network, by name."""

    scales: ClassVar = {"net.weight": 0.1, "net.bias": 1.0}

    def distribution(self, name: str, parameter: Tensor) -> Any:
        return priors.elementwise(dist.Normal(0.0, self.scales[name]), parameter)


class OfOneShape(priors.Prior):
    """A scale for each weight of one network, as an earlier posterior's."""

    def distribution(self, name: str, parameter: Tensor) -> Any:
        if parameter.shape != (3, 2):
            raise ValueError(f"no scales for {name}")
        return priors.elementwise(dist.Normal(0.0, torch.full((3, 2), 0.1)), parameter)


class Correlated(priors.Prior):
    """Neighbouring weights alike: one normal with a covariance over all of a tensor, reshaped."""

    def distribution(self, name: str, parameter: Tensor) -> Any:
        n = parameter.numel()
        distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
        law = dist.MultivariateNormal(torch.zeros(n), (-distance / 2.0).exp())
        reshape = torch.distributions.transforms.ReshapeTransform((n,), parameter.shape)
        return dist.TransformedDistribution(law, [reshape])
