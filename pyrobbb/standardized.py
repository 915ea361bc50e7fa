"""Targets of any size: a likelihood of standardised values, said in the targets' own units."""

from __future__ import annotations

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.data.dataset import Spec, Task, Units
from pyrobbb.likelihoods import Likelihood


class Standardized(Likelihood):
    r"""p(y | f) for targets of any size: `base` is the law of :math:`(y - \text{loc}) / \text{scale}`.

    The network, its prior and its noise live in standardised units; densities, means, variances and draws
    are in the units of y, so that log p(y | f) counts :math:`-\log \text{scale}` for each output.

    Args:
        base: The likelihood of the standardised targets; `Normal(scale=1.0, learn_scale=True)`, say.
        units: Location and scale of each output, such as `data.spec.units` of a table.
    """

    def __init__(self, base: Likelihood, units: Units) -> None:
        super().__init__()
        if base.task != "regression":
            raise ValueError(f"{type(base).__name__} is for {base.task}; only values have units")
        self.task: Task = base.task
        self.base = base
        for scale in units.scale:
            checks.positive("units.scale", scale)
        self.register_buffer("loc", torch.tensor(units.loc))
        self.register_buffer("scale", torch.tensor(units.scale))

    def width(self, outputs: int) -> int:
        return self.base.width(outputs)

    def forward(self, output: Tensor) -> TorchDistribution:
        return Affine(self.base(output), self.loc.to(output.dtype), self.scale.to(output.dtype))

    def standardized(self, y: Tensor) -> Tensor:
        """`y` in units of the network's output."""
        return (y - self.loc.to(y)) / self.scale.to(y)

    def check(self, output: Tensor, y: Tensor | None) -> None:
        self.base.check(output, y)

    def check_domain(self, width: int, y: Tensor) -> None:
        self.base.check_domain(width, self.standardized(y))


def in_units(likelihood: Likelihood, spec: Spec) -> Likelihood:
    """`likelihood` as that of the standardised targets, where `spec` says what their units are."""
    return likelihood if spec.units is None else Standardized(likelihood, spec.units)


class Affine(dist.TransformedDistribution):
    """The law of `loc + scale * z` for z of another law, with event shape `(K,)`."""

    def __init__(self, base: TorchDistribution, loc: Tensor, scale: Tensor) -> None:
        self.loc, self.scale = loc, scale
        super().__init__(base, dist.transforms.AffineTransform(loc, scale, event_dim=1))

    @property
    def mean(self) -> Tensor:
        """E[y], in units of y."""
        return self.loc + self.scale * self.base_dist.mean

    @property
    def variance(self) -> Tensor:
        """Var[y], in squared units of y."""
        return self.scale.square() * self.base_dist.variance

    def expand(self, batch_shape: torch.Size, _instance: object = None) -> Affine:
        return Affine(self.base_dist.expand(batch_shape), self.loc, self.scale)
