"""Quantiles of an equal mixture of univariate distributions, such as that of y over weight draws."""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, inf, prod
from typing import Any

import torch
from torch import Tensor
from torch.distributions import AffineTransform, MixtureSameFamily, TransformedDistribution, constraints

from pyrobbb._support.distribution_parts import draw_from, moment
from pyrobbb._support.random_state import isolated

BISECTIONS = 64  # as many as a double has bits
CLOSE = 1e-12  # of the quantile
SAMPLES = 10_000  # of y at each input, for quantiles of distributions that have no cdf
VALUES = 2**25  # of these at most, in memory at once


def mixture_quantile(components: Sequence[Any], level: Tensor) -> Tensor:
    """The least y at which mean_s F_s(y) is `level` or more, a whole number if the y are.

    It is found between the components' own quantiles there, in double precision: by interpolation where the
    cdf is smooth, elsewhere by halving. Each third step halves the numbers that a double can be, not their
    distance, since one draw may lie far from all others; so does each step to a whole number.

    Raises:
        NotImplementedError: A component does not know its cdf.
    """
    ends = [_ends(part, level) for part in components]
    low = torch.cat([lower.double() for lower, _ in ends]).amin(0)
    high = torch.cat([upper.double() for _, upper in ends]).amax(0)
    if float(level) in (0, 1):
        return high if float(level) else low
    lost = low.isnan() | high.isnan()
    low, high = (end.nan_to_num(0.0, posinf=inf, neginf=-inf) for end in (low, high))
    draws = sum(part.batch_shape[0] for part in components)

    def excess(y: Tensor) -> Tensor:
        total = torch.stack([cdf(part, y).sum(0) for part in components]).sum(0)
        return total - level * draws

    whole = all(part.support.is_discrete for part in components)
    if whole:
        low, high = low.floor() - 1, high.ceil()
    points = torch.stack([low, high, torch.full_like(low, torch.nan)])  # newest, other side, one before
    heights = torch.full_like(points, torch.nan)  # what the cdf exceeds the level by
    if not whole:  # then halves alone are taken
        heights[:2] = torch.stack([excess(low), excess(high)])
    for step in range(1, 3 * BISECTIONS):
        middle = _between(low, high)
        if whole:
            middle = torch.maximum(middle.floor(), low + 1)
        elif step % 3:
            middle = _interpolated(points, heights, otherwise=middle)
        inside = (low < middle) & (middle < high)
        far = high - low > CLOSE * torch.maximum(low.abs(), high.abs())  # false of an infinite end
        open_ = inside if whole else inside & (far | low.isinf() | high.isinf())
        if not bool(open_.any()):
            break
        height = excess(middle)
        lost |= height.isnan()
        same_side = (height < 0) == (points[0] < points[1])  # as the newest, which it replaces
        points, heights = (
            torch.where(inside, _with(new, old, same_side), old)  # where nothing lies between, they stay
            for new, old in ((middle, points), (height, heights))
        )
        low, high = points[:2].amin(0), points[:2].amax(0)
    found = torch.where(high.isinf(), high, _between(low, high))
    found = high + 0.0 if whole else found  # of counts none is -0
    return found.masked_fill(lost, torch.nan)


def _with(new: Tensor, old: Tensor, same_side: Tensor) -> Tensor:
    """`new` as the newest of three; before it comes what it replaces, opposite to it the other."""
    a, b, _ = old
    return torch.stack([new, torch.where(same_side, b, a), torch.where(same_side, a, b)])


def _interpolated(points: Tensor, heights: Tensor, otherwise: Tensor) -> Tensor:
    """Where the inverse parabola through three points has its root, or half-way where none fits.

    The rule is that of Chandrupatla 1997. The root is kept half a tolerance from both ends, so that both come
    to it. `otherwise` is for ends so far apart that they have no half.
    """
    (a, b, c), (at_a, at_b, at_c) = points, heights
    xi, phi = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
    fits = (phi.square() < xi) & ((1 - phi).square() < 1 - xi)
    t = at_a / (at_b - at_a) * at_c / (at_b - at_c)
    t = t + (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    margin = CLOSE / 2 * torch.maximum(low.abs(), high.abs())
    root = torch.minimum(torch.maximum(a + t * (b - a), low + margin), high - margin)
    found = torch.where(fits, root, a / 2 + b / 2)
    return torch.where((low < found) & (found < high), found, otherwise)


def _between(low: Tensor, high: Tensor) -> Tensor:
    """The double half-way from one to the other in the order of all doubles."""
    a, b = _in_order(low), _in_order(high)
    middle = (a >> 1) + (b >> 1) + (a & b & 1)
    return torch.where(middle < 0, middle ^ torch.iinfo(torch.int64).max, middle).view(torch.float64)


def _in_order(value: Tensor) -> Tensor:
    """Whole numbers that ascend as the doubles do: their bits, of negative ones turned round."""
    bits = value.contiguous().view(torch.int64)
    return torch.where(bits < 0, bits ^ torch.iinfo(torch.int64).max, bits)


def _ends(part: Any, level: Tensor) -> tuple[Tensor, Tensor]:
    """Between which a distribution's quantile lies: both are that, or of a mixture those of its parts."""
    if _is_made(part) and all(map(_ascends, part.transforms)):
        low, high = _ends(part.base_dist, level)
        for transform in part.transforms:
            low, high = transform(low), transform(high)
        return low, high
    each: Any = part.component_distribution if isinstance(part, MixtureSameFamily) else None
    if each is not None and not each.support.is_discrete:
        low, high = _ends(each, level)
        return low.amin(-1), high.amax(-1)
    try:
        found = part.icdf(level.expand(part.batch_shape))
    except NotImplementedError:
        return _bracket(part, level)
    return found, found


def _ascends(transform: Any) -> bool:
    """Whether a transform is a shift and a positive scale, as from standardised to original units."""
    return isinstance(transform, AffineTransform) and bool((torch.as_tensor(transform.scale) > 0).all())


def _bracket(part: Any, level: Tensor) -> tuple[Tensor, Tensor]:
    """Two values between which a distribution that has a cdf alone has its quantile.

    They are those of Chebyshev's inequality where the cdf agrees, else the ends of what it can be.
    """
    if part.event_shape:
        raise NotImplementedError("a vector has no quantiles")
    least, most = (end.to(level).expand(part.batch_shape) for end in _bounds(part.support, level))
    if float(level) in (0, 1):
        return (most, most) if float(level) else (least, least)
    each = (moment(part, name).to(level) for name in ("mean", "stddev"))
    centre, width = (value.nan_to_num(0.0, posinf=0.0, neginf=0.0) for value in each)
    reach = width / torch.minimum(level, 1 - level).sqrt()
    low, high = centre - reach, centre + reach
    if part.support.is_discrete:  # a cdf is for whole numbers there
        low, high = low.floor(), high.ceil()
    low, high = torch.maximum(low, least), torch.minimum(high, most)
    return torch.where(cdf(part, low) < level, low, least), torch.where(cdf(part, high) < level, most, high)


def _bounds(constraint: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest value that a constraint on single values allows."""
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    ends = [getattr(constraint, name, end) for name, end in (("lower_bound", -inf), ("upper_bound", inf))]
    least, most = (torch.as_tensor(end, device=like.device) for end in ends)
    return least, most


def _is_made(part: Any) -> bool:
    """Whether a distribution is what transforms make of another, without a cdf of its own."""
    return isinstance(part, TransformedDistribution) and type(part).cdf is TransformedDistribution.cdf


def cdf(part: Any, value: Tensor) -> Tensor:
    """P(y <= value), also where a distribution cannot have the value: 0 below all that it can, 1 above.

    torch's own refuse it there, or extrapolate: what one draw of the weights rules out is another's median.
    """
    if _is_made(part):
        return _through(part.base_dist, part.transforms, value)
    if isinstance(part, MixtureSameFamily):
        return _limited(part.support, partial(_of_mixture, part), value)
    return _limited(part.support, part.cdf, value)


def _through(base: Any, transforms: Sequence[Any], value: Tensor) -> Tensor:
    """`cdf` of what the transforms make of a distribution, one after the other."""
    if not transforms:
        return cdf(base, value)
    *before, last = transforms

    def undone(at: Tensor) -> Tensor:
        found = _through(base, before, last.inv(at))
        return torch.where(torch.as_tensor(last.sign, device=at.device) > 0, found, 1 - found)

    return _limited(last.codomain, undone, value)


def _of_mixture(part: MixtureSameFamily, value: Tensor) -> Tensor:
    each = cdf(part.component_distribution, value[..., None])
    probs = part.mixture_distribution.probs  # those that torch kept in single precision sum to 1 in it alone
    return (probs / probs.sum(-1, keepdim=True) * each).sum(-1)


def _limited(allowed: Any, inside: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """A cdf, of which `inside` is the part at values that are allowed."""
    if allowed is constraints.real:
        return inside(value)
    least, most = _bounds(allowed, value)
    found = inside(torch.minimum(torch.maximum(value, least.to(value)), most.to(value))).clamp(0, 1)
    return torch.where(value < least, 0.0, torch.where(value > most, 1.0, found))


def samples(components: Sequence[Any], device: torch.device) -> Tensor:
    """Some ten thousand samples `(n, S, ...)`, n from each draw; fewer for very many rows."""
    draws = sum(part.batch_shape[0] for part in components)
    values = prod((*components[0].batch_shape[1:], *components[0].event_shape))
    each = ceil(max(draws, min(SAMPLES, VALUES // max(1, values))) / draws)
    with isolated(0, device=device):
        return torch.cat([draw_from(part, (each,)) for part in components], dim=1)


def sample_quantiles(components: Sequence[Any], levels: Sequence[float], device: torch.device) -> Tensor:
    """Quantiles of `samples`."""
    ordered = samples(components, device).flatten(0, 1).sort(0).values
    return torch.stack([ordered[max(0, ceil(level * len(ordered)) - 1)] for level in levels])
