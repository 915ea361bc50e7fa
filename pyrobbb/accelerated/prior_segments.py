"""The prior, element by element: segments of neighbouring weights of one family, log P and its derivative."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from pyrobbb._support.distribution_parts import univariate
from pyrobbb._support.flat import without_expansion
from pyrobbb._support.prior_checks import check_rebuilt
from pyrobbb.accelerated.fast_step import NotFastError


class NotElementwiseError(NotFastError):
    """A site's prior is not a product of univariate distributions that their parameters can rebuild."""


@dataclass(frozen=True)
class PriorSegment:
    """One family of univariate priors over a segment of neighbouring weights.

    `constants` are parameters that are equal for all weights of the segment, `vectors` those that differ,
    of shape (length,). Where a parameter changes during training (`pyrobbb.priors.Learned`), the segment is
    one site, `shape` the site's, and `vectors` holds the live tensors, of shapes that broadcast with it.
    """

    family: Any
    constants: Mapping[str, float]
    vectors: Mapping[str, Tensor]
    length: int
    shape: torch.Size | None = None

    def score(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Log P and its derivative at each weight, `(*lead, length)`."""
        with torch.enable_grad():
            own = self.shaped(w).detach().requires_grad_()
            log_prob = self.prior(w).log_prob(own)
            (score,) = torch.autograd.grad(log_prob.sum(), own)
        return log_prob.detach().reshape(w.shape), score.reshape(w.shape)

    def prior(self, like: Tensor) -> Any:
        """The distribution of the weights, in the precision of `like`."""
        numbers = {
            k: torch.full((), v, dtype=like.dtype, device=like.device) for k, v in self.constants.items()
        }
        return self.family(**numbers, **self.vectors, validate_args=False)

    def shaped(self, flat: Tensor) -> Tensor:
        """`flat`, of shape `(*lead, length)`, in the shape that the distribution's parameters fit."""
        return flat if self.shape is None else flat.reshape((*flat.shape[:-1], *self.shape))


def prior_segments(sites: Mapping[str, Any], live: Sequence[Tensor] = ()) -> list[PriorSegment]:
    """A segment for neighbouring sites with a common family of priors.

    Args:
        sites: The prior of each.
        live: Tensors that change during training; a parameter that is a view of one is read at each step.

    Raises:
        NotElementwiseError: If a site's prior is not an independent product of one of Pyro's univariate
            distributions.
    """
    changing = {tensor.untyped_storage().data_ptr() for tensor in live if tensor.numel()}
    segments: list[PriorSegment] = []
    for name, fn in sites.items():
        base, shape = univariate(fn), fn.event_shape
        if base.event_shape or not base.arg_constraints or base.has_enumerate_support:
            raise NotElementwiseError(f"the prior of {name!r}, {type(base).__name__}, is not element-wise")
        parameters = {}
        for key in base.arg_constraints:
            value = getattr(base, key, None)
            if not isinstance(value, Tensor):
                raise NotElementwiseError(f"the prior of {name!r} holds no tensor {key!r}")
            if value.requires_grad:
                raise NotElementwiseError(f"the prior of {name!r} has its {key} trained by gradients")
            parameters[key] = value.expand(shape)
        try:
            check_rebuilt(f"the prior of {name!r}, {type(base).__name__},", base)
        except ValueError as error:
            raise NotElementwiseError(str(error)) from error
        changes = any(value.untyped_storage().data_ptr() in changing for value in parameters.values())
        spread = without_expansion if changes else torch.flatten
        vectors = {key: spread(value) for key, value in parameters.items()}
        segments.append(PriorSegment(type(base), {}, vectors, shape.numel(), shape if changes else None))
    groups = groupby(segments, key=lambda each: each.family if each.shape is None else id(each))
    return [_merged(list(group)) for _, group in groups]


def _merged(segments: Sequence[PriorSegment]) -> PriorSegment:
    """Neighbours of one family as one segment; one that changes stays by itself."""
    first = segments[0]
    if first.shape is not None:
        return first
    constants, vectors = {}, {}
    for key in first.vectors:
        value = torch.cat([segment.vectors[key] for segment in segments])
        if bool((value == value[0]).all()):
            constants[key] = float(value[0])
        else:
            vectors[key] = value
    return PriorSegment(first.family, constants, vectors, sum(segment.length for segment in segments))


def by_segment(segments: Sequence[PriorSegment], *flats: Tensor) -> Iterator[tuple[Any, ...]]:
    """Each segment, with its part of every tensor, `(*lead, D)`."""
    lengths = [segment.length for segment in segments]
    return zip(segments, *(flat.split(lengths, dim=-1) for flat in flats), strict=True)


def score_all(segments: Sequence[PriorSegment], w: Tensor) -> tuple[Tensor, Tensor]:
    """Log P and d log P / dw of each weight, of shape `(*draws, *chains, D)` as `w`."""
    parts = [segment.score(part) for segment, part in by_segment(segments, w)]
    log_prior, score = (
        torch.cat(values, dim=-1) if len(segments) > 1 else values[0] for values in zip(*parts, strict=True)
    )
    return log_prior, score
