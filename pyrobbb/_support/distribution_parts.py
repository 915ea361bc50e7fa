"""Parts of any distribution: its univariate base, its mask, its tensors, its moments and its support."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from math import pi
from typing import Any

import torch
from pyro.distributions import ExpandedDistribution, MaskedDistribution, TorchDistribution
from pyro.distributions import constraints as C
from torch import Tensor
from torch.distributions import Distribution, Independent, Transform, VonMises
from torch.distributions.transforms import _InverseTransform


def univariate(distribution: Any) -> Any:
    """The base of `Independent` and expanded distributions: one univariate distribution per value."""
    while isinstance(distribution, Independent | ExpandedDistribution):
        distribution = distribution.base_dist
    return distribution


def unmasked(distribution: Any) -> Any:
    """`univariate` of what is observed, of which `.mask(...)` may say that some values do not count."""
    while isinstance(distribution := univariate(distribution), MaskedDistribution):
        distribution = distribution.base_dist
    return distribution


def is_masked(distribution: Any) -> bool:
    """Whether some of its values do not count."""
    return isinstance(univariate(distribution), MaskedDistribution)


def rebased(distribution: Any, base: TorchDistribution) -> Any:
    """`distribution` with `base` in the place of its `unmasked`: its masks and event dimensions stay."""
    if isinstance(distribution, Independent):
        return rebased(distribution.base_dist, base).to_event(distribution.reinterpreted_batch_ndims)
    if isinstance(distribution, MaskedDistribution):
        return rebased(distribution.base_dist, base).mask(distribution._mask)
    if isinstance(distribution, ExpandedDistribution):
        return rebased(distribution.base_dist, base).expand(distribution.batch_shape)
    return base


def applied(fn: Callable[[Tensor], Tensor], part: Any) -> Any:
    """A copy of a distribution or transform with `fn` applied to its tensors and to those of its parts."""
    if isinstance(part, Tensor):
        return fn(part)
    if isinstance(part, list | tuple):
        made_of = getattr(part, "_make", type(part))  # of a named tuple, whose own takes each value by itself
        return made_of([applied(fn, one) for one in part])
    if isinstance(part, dict):
        return part | {key: applied(fn, one) for key, one in part.items()}
    if not isinstance(part, Distribution | Transform):
        return part
    made = copy(part)
    for key, value in vars(part).items():
        # a transform keeps its inverse once that was asked for, which keeps it: the copy makes its own
        cached = key == "_inv" and not isinstance(part, _InverseTransform)
        vars(made)[key] = None if cached else applied(fn, value)
    return made


def in_double(distribution: Distribution) -> Any:
    """A copy of a distribution in double precision; masks and counts stay as they are."""
    return applied(lambda value: value.double() if value.is_floating_point() else value, distribution)


def moment(distribution: Distribution, name: str) -> Tensor:
    """Its `mean` or `stddev`, of the batch's shape; NaN where it states none, as one of a user's own may.

    torch's for `VonMises` are those of directions, not of y in its interval: they count as not stated.
    """
    found: Tensor | None = None
    if not isinstance(distribution, VonMises):
        with suppress(NotImplementedError):
            found = getattr(distribution, name)
    if found is not None:
        return found
    like = own_tensor(distribution)
    return torch.full(distribution.batch_shape, torch.nan, dtype=like.dtype, device=like.device)


def draw_from(distribution: Any, shape: Sequence[int] = ()) -> Tensor:
    """Draws of a distribution, this many; ValueError if it is one of a user's own without them."""
    try:
        return distribution.sample(torch.Size(shape))
    except NotImplementedError as error:
        if str(error):  # torch's own, of a precision in which it draws nothing
            raise
        while hasattr(distribution, "base_dist"):
            distribution = distribution.base_dist
        raise ValueError(f"{type(distribution).__name__} gives no draws: define sample") from None


def own_tensor(distribution: Distribution) -> Tensor:
    """A floating-point tensor of a distribution or of one of its parts, for its precision and device.

    Where none is found, one as torch makes them by default.
    """
    return next((value for value in own_tensors(distribution) if value.is_floating_point()), torch.empty(()))


def own_tensors(distribution: Any) -> list[Tensor]:
    """All tensors of a distribution and of its parts; none of None."""
    found: list[Tensor] = []

    def note(value: Tensor) -> Tensor:
        found.append(value)
        return value

    applied(note, distribution)
    return found


def support_of(distribution: Any) -> Any:
    """Where single values of a distribution lie; None where a user's own does not state it.

    `VonMises` states the real line, but has its density on one turn alone.
    """
    if isinstance(univariate(distribution), VonMises):
        return C.interval(-pi, pi)
    try:
        support = distribution.support
    except NotImplementedError:
        return None
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support


def on_real_line(distribution: Any) -> bool:
    """Whether a prior's support is the whole real line, or is not stated."""
    support = support_of(distribution)
    return support is None or support is C.real
