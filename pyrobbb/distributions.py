"""What Pyro lacks: the paper's scale mixture of two normals, a change of units, cdfs, a mixture's support."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pyro.distributions as dist
import scipy  # its parts are imported where they are first used, which spares commands a second
import torch
import torch.nn.functional as F
from pyro.distributions import TorchDistribution, TransformedDistribution
from pyro.distributions import constraints as C
from torch import Tensor
from torch.distributions import AffineTransform, Distribution, Transform, biject_to, transform_to
from torch.distributions.constraints import MixtureSameFamilyConstraint
from torch.distributions.utils import broadcast_all


class ScaleMixtureNormal(TorchDistribution):
    r"""The paper's prior on one weight, a wide normal mixed with a narrow one (eq. 7).

    .. math::
        P(w) = \pi N(w \mid 0, \sigma_1^2) + (1 - \pi) N(w \mid 0, \sigma_2^2)

    The log-density is evaluated as

    .. math::
        \log P(w) = \log\frac{\pi}{\sigma_1} - \tfrac12\log 2\pi - k_1 w^2
            + \mathrm{softplus}(\log r - (k_2 - k_1) w^2),
        \quad k_i = \frac{1}{2\sigma_i^2},\; r = \frac{(1 - \pi)\,\sigma_1}{\pi\,\sigma_2}

    which is the log-sum-exp of both components with the wide one taken out: value and gradient stay
    finite wherever `w**2 / sigma2**2` does, and it needs one exponential and one logarithm per weight.

    Args:
        pi: Probability of the wide component, in [0, 1].
        sigma1: Standard deviation of the wide component.
        sigma2: Standard deviation of the narrow component (the spike), smaller than `sigma1`.
        validate_args: Whether to check parameters and values; None is Pyro's default.

    Shapes: the three parameters broadcast to the batch shape; events are scalars.

    Raises:
        ValueError: If validation is on and a parameter lies outside its domain or `sigma1 <= sigma2`.

    Source: Blundell et al. 2015, section 3.3.
    """

    arg_constraints = {"pi": C.unit_interval, "sigma1": C.positive, "sigma2": C.positive}  # noqa: RUF012
    support = C.real
    has_rsample = False  # a guide proposes the weights; the prior only scores them

    def __init__(
        self,
        pi: Tensor | float,
        sigma1: Tensor | float,
        sigma2: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        self.pi, self.sigma1, self.sigma2 = broadcast_all(pi, sigma1, sigma2)
        super().__init__(self.pi.shape, validate_args=validate_args)
        if self._validate_args and not bool((self.sigma1 > self.sigma2).all()):
            raise ValueError(
                f"sigma1 must be greater than sigma2, got sigma1={self.sigma1} and sigma2={self.sigma2}"
            )
        self._set_constants()

    def _set_constants(self) -> None:
        """The four constants of the log-density, once per distribution and not once per weight."""
        alone = self.pi == 0  # without a wide component the spike takes its place
        widest = torch.where(alone, self.sigma2, self.sigma1)
        k2 = 0.5 / self.sigma2**2
        self._k1 = 0.5 / widest**2
        self._log_wide = torch.where(alone, 1.0, self.pi).log() - widest.log() - 0.5 * math.log(2 * math.pi)
        log_r = (1 - self.pi).log() - self.pi.log() + self.sigma1.log() - self.sigma2.log()
        self._log_r = torch.where(alone, -math.inf, log_r)
        self._gap = k2 - self._k1

    def expand(self, batch_shape: Any, _instance: Any = None) -> ScaleMixtureNormal:
        """The same distribution over a larger batch shape."""
        new = self._get_checked_instance(ScaleMixtureNormal, _instance)
        batch_shape = torch.Size(batch_shape)
        for name in ("pi", "sigma1", "sigma2", "_log_wide", "_k1", "_log_r", "_gap"):
            setattr(new, name, getattr(self, name).expand(batch_shape))
        super(ScaleMixtureNormal, new).__init__(batch_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density at `value`, in nats; shape: the broadcast of `value` and the batch shape."""
        if self._validate_args:
            self._validate_sample(value)
        square = value.square()
        spike = F.softplus(self._log_r - self._gap * square, threshold=40.0)
        return self._log_wide - self._k1 * square + spike

    def spike_probability(self, value: Tensor) -> Tensor:
        r"""Posterior probability that `value` belongs to the spike :math:`N(0, \sigma_2^2)`."""
        odds = torch.sigmoid(self._log_r - self._gap * value.square())
        return torch.where(self.pi == 0, 1.0, odds)

    @torch.no_grad()
    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """Draws of shape `sample_shape + batch_shape`, without gradients."""
        shape = self._extended_shape(sample_shape)
        wide = torch.bernoulli(self.pi.expand(shape)).bool()
        sigma = torch.where(wide, self.sigma1, self.sigma2)
        return torch.randn(shape, dtype=sigma.dtype, device=sigma.device) * sigma

    def cdf(self, value: Tensor) -> Tensor:
        r"""Cumulative probability :math:`\pi\Phi(w/\sigma_1) + (1-\pi)\Phi(w/\sigma_2)`."""
        if self._validate_args:
            self._validate_sample(value)
        phi = torch.special.ndtr
        return self.pi * phi(value / self.sigma1) + (1 - self.pi) * phi(value / self.sigma2)

    @property
    def mean(self) -> Tensor:
        """Zero."""
        return torch.zeros_like(self.sigma1)

    @property
    def variance(self) -> Tensor:
        r""":math:`\pi\sigma_1^2 + (1-\pi)\sigma_2^2`."""
        return self.pi * self.sigma1**2 + (1 - self.pi) * self.sigma2**2


class Affine(TransformedDistribution):
    r"""The distribution of :math:`a + b z` for z from `base`: the same quantity in other units.

    .. math::
        \log p(y) = \log p_z\left(\frac{y - a}{b}\right) - \log b

    Unlike a `TransformedDistribution` it knows its mean and variance. Of vectors :math:`\log b` is summed.

    Args:
        base: The distribution of z, a number or a vector.
        loc: a, broadcast against z.
        scale: b > 0, broadcast against z.
    """

    def __init__(self, base: TorchDistribution, loc: Tensor, scale: Tensor) -> None:
        self.loc, self.scale = loc, scale
        super().__init__(base, [AffineTransform(loc, scale)])

    def expand(self, batch_shape: Any, _instance: Any = None) -> Affine:
        """The same distribution over a larger batch shape."""
        return Affine(self.base_dist.expand(batch_shape), self.loc, self.scale)

    @property
    def mean(self) -> Tensor:
        """Its mean, a + b E[z]."""
        return self.loc + self.scale * self.base_dist.mean

    @property
    def variance(self) -> Tensor:
        """Its variance, b^2 Var[z]."""
        return self.scale**2 * self.base_dist.variance

    @property
    def stddev(self) -> Tensor:
        """Its standard deviation, b sd[z]."""
        return self.scale * self.base_dist.stddev


MOST = 2.0**53  # up to which a double has every whole number
HUGE = 2.0**47  # counts from which on a gamma's quantile stands for the negative binomial's


class StudentT(dist.StudentT):
    """Pyro's Student t with its cdf and quantiles, and a `log_prob` right for many degrees of freedom, too.

    In single precision the two gamma functions cancel: with a million degrees of freedom Pyro's is wrong by a
    tenth of a nat.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density at `value`, in nats; the constant that depends on df in double precision."""
        if self._validate_args:
            self._validate_sample(value)
        df, z = self.df.double(), (value - self.loc) / self.scale
        constant = torch.lgamma((df + 1) / 2) - torch.lgamma(df / 2) - 0.5 * (df * math.pi).log()
        tails = 0.5 * (self.df + 1) * torch.log1p(z.square() / self.df)
        return constant.to(z.dtype) - tails - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        """P(y <= value)."""
        return _by_scipy(scipy.special.stdtr, self.df, (value - self.loc) / self.scale)

    def icdf(self, value: Tensor) -> Tensor:
        """The quantile at the level `value`."""
        found = _by_scipy(scipy.special.stdtrit, self.df, value)
        found = torch.where(value == 1, math.inf, found)  # scipy 1.13 says NaN
        return self.loc + self.scale * torch.where(value == 0, -math.inf, found)  # scipy: inf, 1.13 NaN


class LogPoisson(dist.Poisson):
    r"""A Poisson given by the logarithm f of its rate, which may lie beyond what a rate can be.

    It has a cdf and quantiles, and a `log_prob` that is right for large counts too: in single precision the
    terms of Pyro's cancel, and at counts of a million it is wrong by a nat.

    .. math::
        \log P(y) = y f - e^f - \log y!

    Args:
        log_rate: f.
        validate_args: As in torch.
    """

    arg_constraints: ClassVar = {"log_rate": C.real}

    def __init__(self, log_rate: Tensor, validate_args: bool | None = None) -> None:
        self.log_rate, self.is_sparse = log_rate, False
        Distribution.__init__(self, log_rate.shape, validate_args=validate_args)

    @property
    def rate(self) -> Tensor:
        """e^f, infinite where that is beyond the precision of f."""
        return self.log_rate.exp()

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Counts; where a rate is 2^53 or more, above which doubles skip whole numbers, the rate itself."""
        return _counts(self.rate.expand(self._extended_shape(sample_shape)))

    def expand(self, batch_shape: Any, _instance: Any = None) -> LogPoisson:
        """The same distribution over a larger batch shape."""
        made = LogPoisson(self.log_rate.expand(batch_shape), validate_args=False)
        made._validate_args = self._validate_args
        return made

    def log_prob(self, value: Tensor) -> Tensor:
        """Log P(y = value), in nats, computed in double precision."""
        if self._validate_args:
            self._validate_sample(value)
        f, y = self.log_rate.double(), value.double()
        events = torch.where(y > 0, y * f, 0.0)  # at a rate of 0, too
        return (events - f.exp() - torch.lgamma(y + 1)).to(self.log_rate.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        """P(y <= value)."""
        found = _by_scipy(scipy.special.pdtr, value, self.rate)
        normal = torch.special.ndtr((value - self.rate) / self.rate.sqrt())  # where scipy has NaN
        nothing = (value < 0) | (self.rate == math.inf)
        return torch.where(nothing, torch.zeros_like(found), torch.where(found.isnan(), normal, found))

    def icdf(self, value: Tensor) -> Tensor:
        """The least count at which the cdf reaches `value`; at rates from 1e11 on, a normal's quantile."""
        found = _by_scipy(scipy.stats.poisson.ppf, value, self.rate).clamp_min(0)  # scipy says -1 at level 0
        normal = self.rate + self.rate.sqrt() * torch.special.ndtri(value)
        found = torch.where(found.isnan(), normal.round(), found)  # scipy has NaN there
        return torch.where(self.rate == math.inf, math.inf, found)


class NegativeBinomial(dist.NegativeBinomial):
    """Pyro's negative binomial with its cdf and quantiles; `log_prob` and draws are as in `LogPoisson`."""

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Counts; where the gamma that is drawn first is 2^53 or more, the gamma itself."""
        return _counts(self._gamma.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log P(y = value), in nats, computed in double precision."""
        if self._validate_args:
            self._validate_sample(value)
        r, logits, y = self.total_count.double(), self.logits.double(), value.double()
        ways = torch.lgamma(r + y) - torch.lgamma(y + 1) - torch.lgamma(r)
        successes = torch.where(y > 0, y * F.logsigmoid(logits), 0.0)  # at a mean of 0, too
        return (r * F.logsigmoid(-logits) + successes + ways).to(self.logits.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        """P(y <= value)."""
        whole = value.floor().clamp_min(0)  # between counts the cdf is flat
        found = _by_scipy(scipy.special.betainc, self.total_count, whole + 1, self._failure)
        return torch.where(value < 0, 0.0, found).to(self.logits)

    def icdf(self, value: Tensor) -> Tensor:
        """The least count at which the cdf reaches `value`; for huge counts, a gamma distribution's quantile.

        Its mean and r are the same. The ratio of the two quantiles tends to 1 as the mean grows, and SciPy
        1.13 would search for ever.
        """
        gamma = _by_scipy(scipy.special.gammaincinv, self.total_count, value) * self.logits.exp()
        huge = gamma >= HUGE
        chance = torch.where(huge, 0.5, self._failure)
        found = _by_scipy(scipy.stats.nbinom.ppf, value, self.total_count, chance).to(gamma)
        return torch.where(huge, gamma, found.clamp_min(0))  # scipy says -1 at level 0

    @property
    def _failure(self) -> Tensor:
        """The chance r / (r + m), in double precision: it is nearly 1 where r is large."""
        return torch.sigmoid(-self.logits.double())


def _counts(rate: Tensor) -> Tensor:
    """Poisson draws, or the rate itself from `MOST` on, where torch's whole numbers would overflow."""
    huge = rate.double() >= MOST
    return torch.where(huge, rate, torch.poisson(rate.masked_fill(huge, 0.0)))


def _by_scipy(function: Callable[..., Any], *values: Tensor) -> Tensor:
    """A function of tensors that scipy has, in double precision; the dtype and device are the last one's."""
    found = function(*(value.detach().double().cpu().numpy() for value in values))
    return torch.as_tensor(np.asarray(found)).to(values[-1])


def of_pyro(distribution: Distribution) -> type:
    """The class of a distribution; of one of torch's own Pyro's counterpart, which adds methods, or ours."""
    own = type(distribution)
    if own in (torch.distributions.StudentT, dist.StudentT):
        return StudentT
    return getattr(dist, own.__name__, own) if own.__module__.startswith("torch.") else own


def _of_a_mixture(constraint: MixtureSameFamilyConstraint) -> Transform:
    """The support of torch's mixture is that of its components, if they share one; torch has no transform."""
    base = constraint.base_constraint
    if any(isinstance(bound, Tensor) and bound.numel() > 1 for bound in vars(base).values()):
        raise NotImplementedError("the components of the mixture have bounds of their own")
    made: Transform = biject_to(base)
    return made


for registry in (biject_to, transform_to):  # which are torch's own: what a program registered before stays
    if MixtureSameFamilyConstraint not in registry._registry:
        registry.register(MixtureSameFamilyConstraint, _of_a_mixture)
