"""The prior belief about a weight: a parameter's name and value -> distribution, or None.

A prior is a small frozen object whose constructor checks its domain. `distribution` returns the one of a
whole parameter tensor, as one event, on that tensor's device and in its precision; None says that the
parameter is not Bayesian and stays an ordinary trained parameter. To add one, imitate `Laplace`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor, nn
from torch.distributions import Distribution

from pyrobbb import distributions
from pyrobbb._support import checks
from pyrobbb._support.distribution_parts import applied
from pyrobbb._support.network_checks import EMBEDDINGS, is_vector
from pyrobbb.distributions import ScaleMixtureNormal, of_pyro


class Prior:
    """The distribution of each parameter before data.

    A prior with parameters to train derives from `nn.Module` as well; one with hyperparameters that have
    priors of their own has `PyroSample` attributes (and derives from `PyroModule`) or calls `pyro.sample`:

    >>> class LearnedScale(Prior, PyroModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.scale = PyroSample(dist.HalfCauchy(1.0))
    ...     def distribution(self, name, parameter):
    ...         return elementwise(dist.Normal(0.0, beside(self.scale, parameter)), parameter)
    """

    def distribution(self, name: str, parameter: Tensor) -> TorchDistribution | None:
        """Prior of the parameter called `name`, with event shape `parameter.shape`; None: deterministic."""
        raise NotImplementedError(f"{type(self).__name__} must define distribution(self, name, parameter)")

    def for_module(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistribution | None:
        """`distribution` for a prior that depends on the module the parameter belongs to."""
        return self.distribution(name, parameter)

    def parts(self) -> Sequence[Prior]:
        """The priors that this one combines."""
        return (self,)

    def check(self, names: Mapping[str, Sequence[str]]) -> None:
        """Raise ValueError if this prior does not fit a network with these parameter names.

        `names` maps each name that `distribution` is given to all names of that weight; a tied weight has
        several.
        """


class ByModule(Prior):
    """A prior that defines `for_module`; its `distribution` is that for a bare module."""

    def distribution(self, name: str, parameter: Tensor) -> TorchDistribution | None:
        return self.for_module(name, parameter, nn.Module())


def elementwise(distribution: TorchDistribution, parameter: Tensor) -> TorchDistribution:
    """Independent weights from a univariate `distribution`, of batch shape `(*draws, 1, ..., 1)` or less."""
    draws = distribution.batch_shape[: max(0, len(distribution.batch_shape) - parameter.dim())]
    return distribution.expand(draws + parameter.shape).to_event(parameter.dim())


def beside(hyperparameter: Tensor, parameter: Tensor) -> Tensor:
    """A hyperparameter `(*draws,)` in a parameter's precision, with dimensions of size 1 for its own."""
    return hyperparameter.reshape(hyperparameter.shape + (1,) * parameter.dim()).to(parameter.dtype)


class _Elementwise(Prior):
    """A prior of independent weights from one univariate distribution, whose options are all positive.

    A class with other options checks them itself.
    """

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            checks.positive(name, value)

    def base_distribution(self, parameter: Tensor) -> TorchDistribution:
        """The distribution of a single weight of `parameter`, with empty or full batch shape."""
        raise NotImplementedError

    def distribution(self, name: str, parameter: Tensor) -> TorchDistribution:
        return elementwise(self.base_distribution(parameter), parameter)


def _scalar(value: float, like: Tensor) -> Tensor:
    return torch.full((), value, dtype=like.dtype, device=like.device)


def _scale(name: str, value: float, like: Tensor) -> Tensor:
    """`value` in the precision of `like`, if a density can be computed in it."""
    least = torch.finfo(like.dtype).max ** -0.5  # 1 / scale^2 is still a number
    if not least < value < 1 / least:
        raise ValueError(
            f"{name} must lie between {least:.2g} and {1 / least:.2g} for {like.dtype}, got {value!r}"
        )
    return _scalar(value, like)


@dataclass(frozen=True, kw_only=True)
class ScaleMixture(_Elementwise):
    r""":math:`\pi N(0, \sigma_1^2) + (1 - \pi) N(0, \sigma_2^2)`, the paper's prior (eq. 7).

    Args:
        pi: The weight of the wide component, from 0 to 1.
        sigma1: Its standard deviation, greater than `sigma2`.
        sigma2: That of the narrow one; by default e^-6.
    """

    pi: float = 0.5
    sigma1: float = 1.0
    sigma2: float = 0.0024787521766663585  # e^-6

    def __post_init__(self) -> None:
        checks.between("pi", self.pi, 0, 1)
        checks.positive("sigma1", self.sigma1)
        checks.positive("sigma2", self.sigma2)
        if self.sigma1 <= self.sigma2:
            raise ValueError(
                f"sigma1 must be greater than sigma2, got sigma1={self.sigma1!r} and sigma2={self.sigma2!r}"
            )

    def base_distribution(self, parameter: Tensor) -> TorchDistribution:
        sigma1, sigma2 = (_scale(name, getattr(self, name), parameter) for name in ("sigma1", "sigma2"))
        return ScaleMixtureNormal(_scalar(self.pi, parameter), sigma1, sigma2)


@dataclass(frozen=True, kw_only=True)
class Normal(_Elementwise):
    r""":math:`N(0, \sigma^2)`; `sigma` is the standard deviation."""

    sigma: float = 1.0

    def base_distribution(self, parameter: Tensor) -> TorchDistribution:
        return dist.Normal(_scalar(0.0, parameter), _scale("sigma", self.sigma, parameter))


@dataclass(frozen=True, kw_only=True)
class Centred(_Elementwise):
    r""":math:`N(w_0, \sigma^2)` around the network's own value :math:`w_0` of each weight."""

    sigma: float = 1.0

    def base_distribution(self, parameter: Tensor) -> TorchDistribution:
        centre = parameter.detach()
        return dist.Normal(centre, _scale("sigma", self.sigma, parameter))


@dataclass(frozen=True, kw_only=True)
class Laplace(_Elementwise):
    r""":math:`p(w) = \exp(-|w| / b) / 2b` with `scale` b."""

    scale: float = 1.0

    def base_distribution(self, parameter: Tensor) -> TorchDistribution:
        return dist.Laplace(_scalar(0.0, parameter), _scale("scale", self.scale, parameter))


@dataclass(frozen=True, kw_only=True)
class StudentT(_Elementwise):
    r""":math:`w = s\,t_\nu`, Student's t with `df` :math:`\nu` degrees of freedom and `scale` s."""

    df: float = 3.0
    scale: float = 1.0

    def base_distribution(self, parameter: Tensor) -> TorchDistribution:
        return distributions.StudentT(
            _scalar(self.df, parameter), _scalar(0.0, parameter), _scale("scale", self.scale, parameter)
        )


@dataclass(frozen=True)
class IID(_Elementwise):
    """Independent weights from any univariate distribution of Pyro or torch, such as a mixture of them.

    >>> IID(dist.Cauchy(0.0, 1.0))
    >>> which = dist.Categorical(torch.tensor([0.7, 0.3]))
    >>> IID(dist.MixtureSameFamily(which, dist.Laplace(torch.zeros(2), torch.tensor([0.01, 1.0]))))
    """

    univariate: Distribution

    def __post_init__(self) -> None:
        base = self.univariate
        if not isinstance(base, Distribution) or not issubclass(of_pyro(base), TorchDistributionMixin):
            raise ValueError(
                f"IID needs a univariate distribution of Pyro, such as dist.Laplace(0.0, 1.0), got {base!r}"
            )
        if shape := tuple(base.batch_shape + base.event_shape):
            raise ValueError(f"IID needs the distribution of one weight, got one of shape {shape}: {base!r}")
        support: Any = base.support
        if getattr(support, "base_constraint", support).is_discrete:  # a mixture's is around its components'
            raise ValueError(f"a weight is continuous, but {base!r} is discrete")
        try:
            self.distribution("", torch.empty(2, dtype=torch.double))
        except NotImplementedError as error:
            raise ValueError(
                f"IID needs a distribution with an expand(), from one weight to many, which {base!r} lacks; "
                f"define it in a subclass"
            ) from error

    def base_distribution(self, parameter: Tensor) -> TorchDistribution:
        def moved(value: Tensor) -> Tensor:  # a mask stays boolean
            return value.to(parameter.device if value.dtype == torch.bool else parameter)

        made: TorchDistribution = applied(moved, self.univariate)
        made.__class__ = of_pyro(made)
        return made


@dataclass(frozen=True, kw_only=True)
class FanInNormal(_Elementwise):
    r""":math:`N(0, g^2 / \text{fan-in})` for weights and :math:`N(0, \sigma_b^2)` for biases.

    Fan-in is the number of inputs that one unit sums over: the product of all dimensions but the first for
    linear, recurrent and convolutional layers (of a group, its own channels); 1 for an embedding, which
    looks up a row; for a transposed convolution (channels / groups) kernel / stride, the mean number of
    inputs that meet at an output. Biases and the gains of normalisations take `bias_sigma`. A matrix of a
    module of your own is taken as (outputs, inputs), as torch's layers store it: to one that is used as
    `x @ W` give a prior of its own by `PerParameter`.

    Args:
        gain: g; sqrt(2) keeps the size of what passes through layers of ReLUs (He et al. 2015).
        bias_sigma: :math:`\sigma_b`.
    """

    gain: float = 2**0.5
    bias_sigma: float = 1.0

    def base_distribution(self, parameter: Tensor, module: nn.Module | None = None) -> TorchDistribution:
        inputs = fan_in(parameter, module)
        sigma = self.bias_sigma if inputs is None else self.gain / inputs**0.5
        return dist.Normal(_scalar(0.0, parameter), _scale("sigma", sigma, parameter))

    def for_module(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistribution:
        return elementwise(self.base_distribution(parameter, module), parameter)


def fan_in(parameter: Tensor, module: nn.Module | None) -> float | None:
    """How many inputs a unit of `module` sums over, on average, as `FanInNormal` counts; None: a vector."""
    if is_vector(parameter, module):
        return None
    if isinstance(module, EMBEDDINGS):
        return 1.0
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        per_group = parameter.shape[0] / module.groups
        return per_group * prod(parameter.shape[2:]) / prod(module.stride)
    return float(prod(parameter.shape[1:]))


@dataclass(frozen=True, kw_only=True)
class Deterministic(Prior):
    """No prior: the parameter is a point estimate by maximum likelihood, as in an ordinary network."""

    def distribution(self, name: str, parameter: Tensor) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class PerParameter(ByModule):
    """Another prior for chosen parameters: the first shell pattern that matches the name decides.

    >>> PerParameter(default=ScaleMixture(), where={"*.bias": Normal(sigma=1.0), "4.*": Deterministic()})

    Args:
        default: The prior of parameters that no pattern matches.
        where: Priors by shell pattern of the parameter's name, such as `*.bias`; the first match decides.

    Raises:
        ValueError: An argument is not a prior; or, from `check`, a pattern matches no parameter of the
            network, or a tied weight only by another name than its first, where no pattern matches that.
    """

    default: Prior
    where: Mapping[str, Prior] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.where, Mapping) or not all(isinstance(key, str) for key in self.where):
            raise ValueError(f"where must map patterns of names to priors, got {self.where!r}")
        for key, prior in {"default": self.default, **self.where}.items():
            if not isinstance(prior, Prior):
                raise ValueError(f"{key!r} must be given a prior, got {prior!r}")

    def for_module(self, name: str, parameter: Tensor, module: nn.Module) -> TorchDistribution | None:
        matches = (prior for pattern, prior in self.where.items() if fnmatchcase(name, pattern))
        return next(matches, self.default).for_module(name, parameter, module)

    def parts(self) -> Sequence[Prior]:
        return [part for prior in (self.default, *self.where.values()) for part in prior.parts()]

    def check(self, names: Mapping[str, Sequence[str]]) -> None:
        for name, every in names.items():
            other = ((path, key) for path in every for key in self.where if fnmatchcase(path, key))
            path, pattern = next(other, (name, ""))  # the first name comes first
            if path != name:
                raise ValueError(
                    f"the prior's pattern {pattern!r} matches {path}, but tied weights go by their first "
                    f"name: {path} is {name}"
                )
        for pattern in self.where:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"the prior's pattern {pattern!r} matches no parameter; the parameters are "
                    f"{', '.join(' = '.join(every) for every in names.values())}"
                )
        for prior in (self.default, *self.where.values()):
            prior.check(names)
