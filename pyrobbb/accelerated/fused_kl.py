r"""The mean-field gradient, and the element-wise part of a step: draw, score and differentiate in one pass.

For :math:`w = \mu + \sigma\epsilon`, :math:`\sigma = \mathrm{softplus}(\rho)` and one noise vector, the
paper's minibatch cost (eq. 9) with a share s of the KL,

.. math::
    F = s\,[\log q(w) - \log P(w)] - \log P(D_i \mid w), \qquad
    \log q(w) - \log P(w) = \sum_j -\log\sigma_j - \tfrac12\epsilon_j^2 - \tfrac12\log 2\pi - \log P(w_j)

has with :math:`g = G - s\,\partial\log P/\partial w`, where G is the gradient of :math:`-\log P(D_i \mid w)`
with respect to w, the gradients

.. math::
    \nabla_\mu F = g, \qquad \nabla_\rho F = (g\,\epsilon - s/\sigma)\,\mathrm{sigmoid}(\rho)

`log_ratio` and `gradients` are these two formulas; every fast step uses them. log P and its derivative are
those of the prior's own Pyro distribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyrobbb.distributions import univariate


class NotElementwiseError(ValueError):
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

    def score(self, w: Tensor, vectors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Log P and its derivative at each weight, `(*lead, length)`."""
        with torch.enable_grad():
            own = self.shaped(w).detach().requires_grad_()
            log_prob = self.prior(w, vectors).log_prob(own)
            (score,) = torch.autograd.grad(log_prob.sum(), own)
        return log_prob.detach().reshape(w.shape), score.reshape(w.shape)

    def prior(self, like: Tensor, vectors: Sequence[Tensor]) -> Any:
        """The distribution of the weights, in the precision of `like`."""
        numbers = {
            k: torch.full((), v, dtype=like.dtype, device=like.device) for k, v in self.constants.items()
        }
        return self.family(**numbers, **dict(zip(self.vectors, vectors, strict=True)), validate_args=False)

    def shaped(self, flat: Tensor) -> Tensor:
        """`flat`, of shape `(*lead, length)`, in the shape that the distribution's parameters fit."""
        return flat if self.shape is None else flat.reshape(*flat.shape[:-1], *self.shape)


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
    segments: list[PriorSegment | list[tuple[Any, dict[str, Tensor]]]] = []
    for name, fn in sites.items():
        base, shape = univariate(fn), fn.event_shape
        if base.event_shape or not base.arg_constraints or base.has_enumerate_support:
            raise NotElementwiseError(f"the prior of {name!r}, {type(base).__name__}, is not element-wise")
        parameters = {}
        for key in base.arg_constraints:
            value = getattr(base, key, None)
            if not isinstance(value, Tensor) or value.requires_grad:
                raise NotElementwiseError(f"the prior of {name!r} has no constant parameter {key!r}")
            parameters[key] = value.expand(shape)
        if any(value.untyped_storage().data_ptr() in changing for value in parameters.values()):
            views = {key: _without_expansion(value) for key, value in parameters.items()}
            segments.append(PriorSegment(type(base), {}, views, shape.numel(), shape))
            continue
        if not segments or isinstance(segments[-1], PriorSegment) or segments[-1][0][0] is not type(base):
            segments.append([])
        group = segments[-1]
        assert isinstance(group, list)
        group.append((type(base), {key: value.flatten() for key, value in parameters.items()}))
    return [_tried(s if isinstance(s, PriorSegment) else _merge(s)) for s in segments]


def _without_expansion(value: Tensor) -> Tensor:
    """A view of `value` without the dimensions along which it only repeats itself: of size 1, or none."""
    for dim, stride in enumerate(value.stride()):
        if stride == 0:
            value = value.narrow(dim, 0, 1)
    return value.view(()) if value.numel() == 1 else value


def _tried(segment: PriorSegment) -> PriorSegment:
    """The segment, if its prior can be rebuilt from its parameters as `score` does it."""
    if segment.shape is None:
        w, vectors = torch.zeros(1), [vector[:1].cpu() for vector in segment.vectors.values()]
    else:
        w, vectors = torch.zeros(segment.length), [vector.cpu() for vector in segment.vectors.values()]
    try:
        segment.score(w, vectors)
    except (TypeError, ValueError, RuntimeError) as error:
        name = segment.family.__name__
        raise NotElementwiseError(f"{name} cannot be rebuilt from its parameters: {error}") from error
    return segment


def _merge(sites: Sequence[tuple[Any, Mapping[str, Tensor]]]) -> PriorSegment:
    family = sites[0][0]
    constants, vectors = {}, {}
    for key in sites[0][1]:
        value = torch.cat([parameters[key] for _, parameters in sites])
        if bool((value == value[0]).all()):
            constants[key] = float(value[0])
        else:
            vectors[key] = value
    length = sum(next(iter(p.values())).numel() for _, p in sites)
    return PriorSegment(family, constants, vectors, length)


def log_ratio(log_prior: Tensor, sigma: Tensor, eps: Tensor) -> Tensor:
    """Log q(w) - log P(w) of each weight."""
    return -sigma.log() - 0.5 * eps * eps - 0.5 * math.log(2 * math.pi) - log_prior


def gradients(
    G: Tensor | float, score: Tensor | float, eps: Tensor, sigma: Tensor | None, slope: Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of F with respect to loc and rho; several draws are summed.

    Args:
        G: Gradient of -log P(D_i | w) with respect to w, shape `(*draws, *chains, D)`.
        score: d log P(w) / dw, of the same shape.
        eps: The noise, of the same shape; at most one dimension of draws.
        sigma: softplus(rho), shape `(*chains, D)`; None leaves out the gradient of -log sigma.
        slope: sigmoid(rho), of the same shape.
        share: The KL's share; it falls on the draws in equal parts.
    """
    narrowing = 0.0 if sigma is None else share / sigma
    if eps.dim() == slope.dim():
        g = G - share * score
        return g, (g * eps - narrowing) * slope
    g = G - (share / len(eps)) * score
    return g.sum(0), ((g * eps).sum(0) - narrowing) * slope


def score_all(
    segments: Sequence[PriorSegment], w: Tensor, vectors: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Log P and d log P / dw of each weight, of shape `(*draws, *chains, D)` as `w`.

    `vectors` takes the place of the segments' own, in their order.
    """
    waiting = iter([v for one in segments for v in one.vectors.values()] if vectors is None else vectors)
    parts = [
        segment.score(part, [next(waiting) for _ in segment.vectors])
        for segment, part in zip(segments, w.split([s.length for s in segments], dim=-1), strict=True)
    ]
    log_prior, score = (
        torch.cat(values, dim=-1) if len(segments) > 1 else values[0] for values in zip(*parts, strict=True)
    )
    return log_prior, score


def draw(
    segment: PriorSegment,
    share: Tensor,
    loc: Tensor,
    rho: Tensor,
    eps: Tensor,
    w: Tensor,
    to_loc: Tensor,
    to_rho: Tensor,
    *vectors: Tensor,
) -> Tensor:
    """The one draw of a step: write w and the KL's gradients, turn `eps` into rho's factor; returns the KL.

    The likelihood's gradient G then adds G to the gradient with respect to loc, and G times the factor to
    that with respect to rho.
    """
    sigma, slope = F.softplus(rho), torch.sigmoid(rho)
    weight = loc + sigma * eps
    log_prior, score = segment.score(weight, vectors)
    kl = log_ratio(log_prior, sigma, eps).sum()
    for_loc, for_rho = gradients(0.0, score, eps, sigma, slope, share)
    w.copy_(weight)
    to_loc.copy_(for_loc)
    to_rho.copy_(for_rho)
    eps.copy_(eps * slope)
    return kl


def before_draws(
    share: Tensor, rho: Tensor, sigma: Tensor, slope: Tensor, to_loc: Tensor, to_rho: Tensor
) -> Tensor:
    """What several draws of a step have in common: their widths, and the KL of -log sigma, once."""
    s, ds = F.softplus(rho), torch.sigmoid(rho)
    for_loc, for_rho = gradients(torch.zeros_like(s), 0.0, torch.zeros_like(s), s, ds, share)
    sigma.copy_(s)
    slope.copy_(ds)
    to_loc.copy_(for_loc)
    to_rho.copy_(for_rho)
    return -s.log().sum() - 0.5 * math.log(2 * math.pi) * rho.numel()


def next_draw(
    segment: PriorSegment,
    share: Tensor,
    loc: Tensor,
    sigma: Tensor,
    slope: Tensor,
    eps: Tensor,
    w: Tensor,
    to_loc: Tensor,
    to_rho: Tensor,
    *vectors: Tensor,
) -> Tensor:
    """One of several draws: write w, add its part of the gradients; `share` is divided by their number.

    Returns its part of the KL, to be averaged over the draws.
    """
    weight = loc + sigma * eps
    log_prior, score = segment.score(weight, vectors)
    kl = (-0.5 * eps * eps - log_prior).sum()
    for_loc, for_rho = gradients(0.0, score, eps, None, slope, share)
    w.copy_(weight)
    to_loc.add_(for_loc)
    to_rho.add_(for_rho)
    eps.copy_(eps * slope)
    return kl
