r"""Scales with priors of their own: the bound pays for each, unlike for a scale that is fitted to it.

.. math::
    w_{ij} = s_{ij} z_{ij}, \quad z_{ij} \sim N(0, 1), \qquad \log s = \text{a sum of latent sites}

Its logarithm is sampled, on the whole real line, where a normal guide is a log-normal one of the scale.
Guides: `pyrobbb.non_centred.NonCentredNormal`, whose weights widen and narrow with their scales;
`MeanFieldNormal` and Pyro's autoguides keep both apart. To write another prior, imitate `Horseshoe`.
"""

from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.distributions import Distribution, ExpTransform

from pyrobbb._support import checks
from pyrobbb.priors.fixed import ByModule, elementwise
from pyrobbb.priors.units import PER_UNIT, unit_shape


class Hierarchical(ByModule):
    """Normal weights whose standard deviation is exp(`log_scale`), sampled there."""

    def log_scale(self, name: str, parameter: Tensor, module: nn.Module) -> Tensor:
        """The log scale of the weights `name`, from latent sites: of a shape that broadcasts with theirs."""
        raise NotImplementedError(
            f"{type(self).__name__} must define log_scale(self, name, parameter, module)"
        )

    def for_module(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistribution:
        scale = self.log_scale(name, parameter, module).exp()
        return elementwise(dist.Normal(torch.zeros_like(scale), scale), parameter)


def sample_log(
    site: str, scale: Distribution, shape: tuple[int, ...], start: Tensor, parameter: Tensor
) -> Tensor:
    """The logarithm of independent scales with distribution `scale`: the latent site called `site`.

    Args:
        site: Its name.
        scale: A univariate distribution of positive numbers.
        shape: How many; as many dimensions as the parameter, of size 1 where weights share a scale.
        start: The scale at which `MeanFieldNormal` and `NonCentredNormal` start, without dimensions; other
            guides start as at any latent.
        parameter: The weights.

    Shapes: `(*draws, *shape)`.
    """
    assert len(shape) == parameter.dim()
    log_scale = dist.TransformedDistribution(scale.expand(shape), [ExpTransform().inv]).to_event(len(shape))
    return pyro.sample(site, log_scale, infer={"start": start.log().expand(shape)})


@dataclass(frozen=True, kw_only=True)
class ARD(Hierarchical):
    r"""Automatic relevance determination (MacKay 1994, Neal 1996): a precision for each unit.

    .. math::
        w_{ij} \sim N(0, s_i^2), \qquad s_i^{-2} \sim \mathrm{Gamma}(\nu/2, \nu s_0^2/2)

    A weight by itself then has a Student t of `df` :math:`\nu` degrees of freedom and scale :math:`s_0`.

    Args:
        scale: :math:`s_0`.
        df: :math:`\nu`.
        per: Which weights of a layer share one: those of an "input" or "output" unit, or all of a "layer".
            Biases always do.
    """

    scale: float = 0.1
    df: float = 1.0
    per: str = "input"

    def __post_init__(self) -> None:
        checks.positive("scale", self.scale)
        checks.positive("df", self.df)
        checks.one_of("per", self.per, PER_UNIT)

    def log_scale(self, name: str, parameter: Tensor, module: nn.Module) -> Tensor:
        half = parameter.new_tensor(self.df / 2)
        variance = dist.InverseGamma(half, half * self.scale**2)
        shape = unit_shape(self.per, parameter, module)
        log = sample_log(f"{name}_log_variance", variance, shape, _rms(parameter, self.scale) ** 2, parameter)
        return log / 2


@dataclass(frozen=True, kw_only=True)
class Horseshoe(Hierarchical):
    r"""A scale for each weight, and one for the layer (Carvalho, Polson and Scott 2009).

    .. math::
        w_{ij} \sim N(0, \tau^2 \lambda_{ij}^2), \quad \lambda_{ij} \sim C^+(0, 1), \quad
        \tau \sim C^+(0, \tau_0)

    Args:
        scale: :math:`\tau_0`.
    """

    scale: float = 0.1

    def __post_init__(self) -> None:
        checks.positive("scale", self.scale)

    def local_shape(self, parameter: Tensor, module: nn.Module) -> tuple[int, ...]:
        """The shape of the local scales."""
        return tuple(parameter.shape)

    def log_scale(self, name: str, parameter: Tensor, module: nn.Module) -> Tensor:
        one = parameter.new_ones(())
        start = _rms(parameter, self.scale)
        shared = (1,) * parameter.dim()
        log_tau = sample_log(f"{name}_log_tau", dist.HalfCauchy(self.scale * one), shared, start, parameter)
        shape = self.local_shape(parameter, module)
        return log_tau + sample_log(f"{name}_log_lambda", dist.HalfCauchy(one), shape, one, parameter)


@dataclass(frozen=True, kw_only=True)
class GroupHorseshoe(Horseshoe):
    r"""A horseshoe over units, which prunes whole ones (Louizos et al. 2017, Ghosh et al. 2018).

    .. math::
        w_{ij} \sim N(0, \tau^2 \lambda_i^2)

    Args:
        scale: :math:`\tau_0`.
        per: Which weights of a layer share a :math:`\lambda`: those of an "input" or "output" unit, or all
            of a "layer". Biases always do.
    """

    per: str = "input"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("per", self.per, PER_UNIT)

    def local_shape(self, parameter: Tensor, module: nn.Module) -> tuple[int, ...]:
        return unit_shape(self.per, parameter, module)


def _rms(parameter: Tensor, instead: float) -> Tensor:
    """The root mean square of the network's own initial values; `instead`, if they are all 0."""
    rms = parameter.detach().square().mean().sqrt()
    return torch.where(rms > 0, rms, instead)
