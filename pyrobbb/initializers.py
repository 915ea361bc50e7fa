"""Where a guide starts: functions from a sample site to the initial value of its location.

They have the form of Pyro's own `init_to_*` functions, so the same name serves our guides and
Pyro's (`init_loc_fn`).
"""

from collections.abc import Callable
from typing import Any

import torch
from pyro.infer.autoguide.initialization import init_to_median
from torch import Tensor
from torch.distributions import biject_to, constraints

from pyrobbb._support import checks
from pyrobbb._support.distribution_parts import on_real_line, support_of
from pyrobbb.priors.fixed import fan_in

EDGE = 0.01  # of an interval's width

Site = dict[str, Any]
Initial = Callable[[Site], Tensor]


def _like(site: Site) -> Tensor:
    """An empty tensor of the site's shape, precision and device."""
    sample = site["value"] if site.get("value") is not None else site["fn"].sample()
    return torch.empty_like(sample)


def _fan_in(site: Site) -> float | None:
    """The fan-in of a weight, given its module; None for a bias or a gain."""
    value = _like(site)
    weight = value[(0,) * (value.dim() - site["fn"].event_dim)]
    return fan_in(weight, site["infer"].get("module"))


def from_network(site: Site) -> Tensor:
    """The network's own initial value of a weight; for other sites, the median of draws from their prior."""
    if "init" not in site["infer"]:
        return torch.as_tensor(init_to_median(site)).detach().clone()
    return off_the_edge(site, site["infer"]["init"].detach().clone())


def off_the_edge(site: Site, value: Tensor) -> Tensor:
    """`value`, a little away from the ends of an interval; the prior's median where it has no coordinate.

    A guide or method moves such a weight on the real line, which a sigmoid maps to the interval: at the ends
    its slope is 0, and the weight would stay. A bias of 0 is at an end of a uniform prior on (0, 1). A
    positive weight is an exponential, which is never 0.
    """
    if on_real_line(site["fn"]):
        return value
    support: Any = support_of(site["fn"])
    if isinstance(support, constraints.interval | constraints.half_open_interval):
        low, high = (torch.as_tensor(end).to(value) for end in (support.lower_bound, support.upper_bound))
        inside, margin = (value >= low) & (value <= high), EDGE * (high - low)
        value = torch.minimum(torch.maximum(value, low + margin), high - margin)
    else:
        inside = support.check(value)
    coordinates = biject_to(support).inv(value).isfinite()  # of each event, such as a row of probabilities
    inside = inside & coordinates.reshape(*inside.shape, -1).all(-1)
    each = inside[(..., *[None] * support.event_dim)]
    return value if bool(inside.all()) else torch.where(each, value, init_to_median(site))


def kaiming(site: Site) -> Tensor:
    r"""Draws from :math:`N(0, 2 / \text{fan-in})` for weights (He et al. 2015), 0 for biases.

    Other vectors, such as the gains of normalisations, start at the network's own value. Fan-in is what
    `pyrobbb.priors.FanInNormal` takes, by the module that the weight belongs to.
    """
    inputs = _fan_in(site)
    if inputs is not None:
        return off_the_edge(site, _like(site).normal_(0.0, (2.0 / inputs) ** 0.5))
    if "bias" in site["name"].rpartition(".")[2] or "init" not in site["infer"]:
        return off_the_edge(site, _like(site).zero_())
    return from_network(site)


class Normal:
    """Draws from N(loc, scale^2)."""

    def __init__(self, *, loc: float = 0.0, scale: float = 0.1) -> None:
        self.loc, self.scale = checks.number("loc", loc), checks.positive("scale", scale)

    def __call__(self, site: Site) -> Tensor:
        return off_the_edge(site, _like(site).normal_(self.loc, self.scale))


class Uniform:
    """Draws from the uniform distribution on [low, high)."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = checks.number("low", low), checks.number("high", high)
        if low > high:
            raise ValueError(f"low must not be greater than high, got low={low!r} and high={high!r}")

    def __call__(self, site: Site) -> Tensor:
        return off_the_edge(site, _like(site).uniform_(self.low, self.high))


class Constant:
    """The same value everywhere."""

    def __init__(self, value: float = 0.0) -> None:
        self.value = checks.number("value", value)

    def __call__(self, site: Site) -> Tensor:
        return off_the_edge(site, _like(site).fill_(self.value))


class FanInRho:
    r"""For `init_rho`: :math:`\sigma = \text{gain} / \sqrt{\text{fan-in}}` for weights, a number for biases.

    Kaiming's means have sd 1.41 in these units. Fan-in is what `pyrobbb.priors.FanInNormal` takes.

    Args:
        gain: Standard deviation of each weight, in units of 1 / sqrt(fan-in).
        bias_sigma: Standard deviation of each bias.
    """

    def __init__(self, gain: float = 0.1, bias_sigma: float = 0.01) -> None:
        self.gain, self.bias_sigma = checks.positive("gain", gain), checks.positive("bias_sigma", bias_sigma)

    def __call__(self, site: Site) -> Tensor:
        inputs = _fan_in(site)
        scale = self.bias_sigma if inputs is None else self.gain / inputs**0.5
        return _like(site).fill_(float(rho_of(torch.tensor(scale, dtype=torch.double))))


def rho_of(sigma: Tensor) -> Tensor:
    r""":math:`\rho = \log(e^\sigma - 1)`, of which :math:`\sigma` is the softplus."""
    return sigma + (-torch.expm1(-sigma)).log()
