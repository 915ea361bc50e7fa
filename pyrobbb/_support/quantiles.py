"""Quantiles of an equal mixture of univariate distributions, such as that of y over weight draws."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MixtureSameFamily, TransformedDistribution

from pyrobbb._support.random_state import isolated

BISECTIONS = 50
SAMPLES = 10_000  # of y at each input, for quantiles of distributions that have no cdf
VALUES = 2**25  # of these at most, in memory at once


def mixture_quantile(components: Sequence[Any], level: Tensor) -> Tensor:
    """The least y at which mean_s F_s(y) is `level` or more, a whole number if the y are.

    It is found by bisection between the components' own quantiles there, in the precision of `level`.

    Raises:
        NotImplementedError: A component does not know its cdf.
    """
    ends = [_ends(part, level) for part in components]
    low = torch.cat([lower for lower, _ in ends]).amin(0)
    high = torch.cat([upper for _, upper in ends]).amax(0)
    if float(level) in (0, 1):
        return high if float(level) else low
    draws = sum(part.batch_shape[0] for part in components)
    whole = all(part.support.is_discrete for part in components)
    low = low - 1 if whole else low
    for _ in range(BISECTIONS):
        middle = ((low + high) / 2).floor() if whole else (low + high) / 2
        if not bool(((low < middle) & (middle < high)).any()):  # nothing lies between them any more
            break
        below = torch.stack([part.cdf(middle).sum(0) for part in components]).sum(0) < level * draws
        below |= middle <= low  # nothing lies between these two: they stay
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high if whole else (low + high) / 2


def _ends(part: Any, level: Tensor) -> tuple[Tensor, Tensor]:
    """Between which a distribution's quantile lies: both are that, or of a mixture those of its parts."""
    if isinstance(part, TransformedDistribution) and isinstance(part.base_dist, MixtureSameFamily):
        low, high = _ends(part.base_dist, level)
        for transform in part.transforms:
            low, high = transform(low), transform(high)
        return torch.minimum(low, high), torch.maximum(low, high)
    each: Any = part.component_distribution if isinstance(part, MixtureSameFamily) else None
    if each is None or each.support.is_discrete:
        found = part.icdf(level.expand(part.batch_shape))
        return found, found
    found = each.icdf(level.expand(each.batch_shape))
    return found.amin(-1), found.amax(-1)


def ordered_samples(components: Sequence[Any], device: torch.device) -> Tensor:
    """Some ten thousand samples, the same number from each draw; fewer for very many rows."""
    draws = sum(part.batch_shape[0] for part in components)
    values = prod((*components[0].batch_shape[1:], *components[0].event_shape))
    each = ceil(max(draws, min(SAMPLES, VALUES // max(1, values))) / draws)
    with isolated(0, device=device):
        drawn = torch.cat([part.sample((each,)).flatten(0, 1) for part in components])
    return drawn.sort(0).values


def sample_quantiles(components: Sequence[Any], levels: Sequence[float], device: torch.device) -> Tensor:
    """Quantiles of `ordered_samples`."""
    ordered = ordered_samples(components, device)
    return torch.stack([ordered[max(0, ceil(level * len(ordered)) - 1)] for level in levels])
