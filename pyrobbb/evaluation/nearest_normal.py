r"""The normals nearest to a univariate prior: where :math:`\mathrm{KL}[N(a, s^2) \,\|\, P]` is least over s.

Under a Gaussian prior that is the prior itself, at no cost; under the paper's scale mixture there are two,
one at each component, at about :math:`-\log\pi` and :math:`-\log(1 - \pi)` nats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor

from pyrobbb._support.distribution_parts import applied, in_double, moment, on_real_line, univariate

# Nodes that lie dense about 0, where a prior may have a spike, and reach 8 standard deviations.
_NODES = 1e-4 * torch.sinh(torch.linspace(-1, 1, 401, dtype=torch.float64) * math.asinh(8e4))
_WEIGHTS = torch.exp(-0.5 * _NODES**2) * torch.gradient(_NODES)[0]
_SCALES = torch.logspace(-15, 5, 101, dtype=torch.float64)  # in units of the prior's own, a spike's too
_MANY = 300  # normals at a time
_GOLDEN = 0.381966
DISTINCT = 10_000  # different priors within one tensor, at most


def kl_to_prior(prior: Any, loc: Tensor, scale: Tensor) -> Tensor:
    """KL of N(loc, scale^2) to `prior` in nats, by quadrature; loc and scale broadcast to its batch shape.

    Away from the centre of a spike it is good to 0.05 nats: only biases lie there, which are few.
    """
    at = (-1, *(1 for _ in range(max(loc.dim(), scale.dim()))))
    z, weights = _NODES.reshape(at), (_WEIGHTS / _WEIGHTS.sum()).reshape(at)
    expected = (weights * prior.log_prob(loc + scale * z)).sum(0)
    return -scale.log() - 0.5 * math.log(2 * math.pi * math.e) - expected


def nearest_scales(prior: Any, loc: Tensor) -> tuple[Tensor, Tensor]:
    """The widest and the narrowest scale at which the KL of N(loc, scale^2) to `prior` has a minimum.

    Args:
        prior: Univariate distributions on the real line, in double precision.
        loc: The centre of each, of their batch shape.

    Shapes: both as `loc`.
    """
    unit = _unit(prior, loc)
    scales = _SCALES.reshape(-1, *(1 for _ in unit.shape)) * unit
    at_once = scales.split(max(1, _MANY // unit.numel()))
    kl = torch.cat([kl_to_prior(prior, loc, some) for some in at_once])
    flat = kl.reshape(len(_SCALES), -1)
    beside = F.pad(flat, (0, 0, 1, 1), value=math.inf)
    minimum = ((flat <= beside[:-2]) & (flat <= beside[2:])).reshape(kl.shape)
    last = len(_SCALES) - 1
    place = torch.arange(last + 1).reshape(-1, *(1 for _ in loc.shape)).expand_as(kl)
    widest = place.masked_fill(~minimum, 0).amax(0)
    narrowest = place.masked_fill(~minimum, last).amin(0)
    one = _refined(prior, loc, widest, unit)
    return one, one if bool((widest == narrowest).all()) else _refined(prior, loc, narrowest, unit)


def nearest_normal(prior: Any) -> tuple[Tensor, Tensor]:
    """The loc and scale of the normals nearest to univariate distributions with draws and one mode.

    Shapes: both as its batch shape.
    """
    draws = prior.sample((1000,))
    free = [draws.mean(0).requires_grad_(), draws.std(0).log().requires_grad_()]
    optimizer = torch.optim.LBFGS(free, max_iter=200, line_search_fn="strong_wolfe")

    def cost() -> Tensor:
        optimizer.zero_grad()
        kl = kl_to_prior(prior, free[0], free[1].exp()).sum()
        kl.backward()
        return kl

    with torch.enable_grad():
        optimizer.step(cost)
    return free[0].detach(), free[1].detach().exp()


def _unit(prior: Any, loc: Tensor) -> Tensor:
    """A scale of the prior's own: its standard deviation, or its `scale` where that is not finite."""
    scale = torch.as_tensor(getattr(prior, "scale", 1.0), dtype=loc.dtype).expand(loc.shape)
    sd = moment(prior, "stddev").expand(loc.shape)
    return torch.where(sd.isfinite() & (sd > 0), sd, scale)


def _refined(prior: Any, loc: Tensor, place: Tensor, unit: Tensor) -> Tensor:
    """The scale of least KL between the grid's neighbours of `place`, by golden section."""
    low, high = (_SCALES[(place + step).clamp(0, len(_SCALES) - 1)].log() for step in (-1, 1))
    for _ in range(30):
        part = (high - low) * _GOLDEN
        a, b = low + part, high - part
        left = torch.lt(*kl_to_prior(prior, loc, torch.stack([a, b]).exp() * unit))
        low, high = torch.where(left, low, a), torch.where(left, b, high)
    return (0.5 * (low + high)).exp() * unit


class NearestNormals:
    """The normals nearest to one parameter's prior; loc and scale broadcast to the parameter's shape."""

    loc: Tensor
    starts: list[Tensor]

    def __init__(self, prior: Any, like: Tensor, alike: NearestNormals | None = None) -> None:
        self.prior, self.like = prior, like
        if alike is not None:
            self.loc, self.starts = alike.loc, alike.starts
            return
        if isinstance(prior, dist.TransformedDistribution):  # skewed, as the logarithm of a scale may be
            self.loc, scale = nearest_normal(prior)
            self.starts = [scale]
            return
        loc = getattr(prior, "loc", None)
        self.loc = torch.zeros(prior.batch_shape, dtype=torch.float64) if loc is None else loc
        widest, narrowest = nearest_scales(prior, self.loc)
        self.starts = [widest] if torch.equal(widest, narrowest) else [widest, narrowest]

    def kl(self, loc: Tensor, scale: Tensor) -> Tensor:
        """KL of all weights of the parameter, in nats."""
        each = kl_to_prior(self.prior, loc, scale)
        return each.sum() * (self.like.numel() / each.numel())

    def at(self, normal: tuple[Tensor, Tensor], noise: Tensor) -> Tensor:
        """Its weights at standard normal noise."""
        loc, scale = normal
        return loc.to(noise) + scale.to(noise) * noise


def nearest_normals(priors: Mapping[str, tuple[Any, Tensor]]) -> dict[str, NearestNormals] | None:
    """Those of each parameter, given its prior and its value; parameters with one prior share the search.

    None if a prior is not a product of univariate distributions on the real line, or differs from weight to
    weight.
    """
    found: dict[str, NearestNormals] = {}
    for name, (given, value) in priors.items():
        single = univariate(given)
        prior = _distinct(single, value.shape) if on_real_line(single) else None
        if prior is None:
            return None
        alike = next((one for one in found.values() if _same(one.prior, prior)), None)
        found[name] = NearestNormals(prior, value, alike)
    return found


def _distinct(prior: Any, shape: torch.Size) -> Any:
    """The different priors of a parameter, whose batch shape broadcasts to `shape`, in double precision."""
    if type(prior) is dist.TransformedDistribution:
        base = _distinct(univariate(prior.base_dist), shape)
        transforms = [applied(Tensor.cpu, in_double(transform)) for transform in prior.transforms]
        return None if base is None else type(prior)(base, transforms, validate_args=False)
    try:
        keys = [key for key in prior.arg_constraints if isinstance(getattr(prior, key, None), Tensor)]
    except NotImplementedError:  # a distribution of the user's own
        return None
    if prior.event_shape or not keys:
        return None
    every = {key: getattr(prior, key).detach().expand(shape) for key in keys}
    same = [all(value.stride(i) == 0 for value in every.values()) for i in range(len(shape))]
    cut = tuple(slice(0, 1) if alike else slice(None) for alike in same)
    few = {key: value[cut].double().cpu() for key, value in every.items()}
    if few[keys[0]].numel() > DISTINCT:
        return None
    try:
        return type(prior)(**few, validate_args=False)
    except TypeError:  # its constructor takes something else
        return None


def _same(a: Any, b: Any) -> bool:
    """Whether two priors are of one kind, shape and numbers."""
    if type(a) is not type(b) or a.batch_shape != b.batch_shape:
        return False
    if type(a) is dist.TransformedDistribution:
        return a.transforms == b.transforms and _same(a.base_dist, b.base_dist)
    return all(torch.equal(getattr(a, key), getattr(b, key)) for key in a.arg_constraints if hasattr(a, key))
