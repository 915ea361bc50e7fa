r"""The element-wise part of a step for a mean-field normal guide: draw, score and differentiate in one pass.

For :math:`w = \mu + \sigma\epsilon`, :math:`\sigma = \mathrm{softplus}(\rho)` and one noise vector,

.. math::
    \log q(w) - \log P(w) = \sum_j -\log\sigma_j - \tfrac12\epsilon_j^2 - \tfrac12\log 2\pi - \log P(w_j)

has, for a share s of the KL, the gradients

.. math::
    s\,g \text{ with respect to } \mu, \qquad s\,(g\,\epsilon - 1/\sigma)\,\sigma'(\rho)
    \text{ with respect to } \rho, \qquad g = -\partial \log P / \partial w

and the likelihood's gradient G with respect to w adds G to the first and :math:`G \epsilon \sigma'` to
the second. One pass over the weights writes w, both KL gradients and the factor :math:`\epsilon\sigma'`;
after backpropagation through the network one multiply-add is left. log P and its derivative are those of
the prior's own Pyro distribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class NotElementwiseError(ValueError):
    """The prior of a site is not a product of univariate laws that can be rebuilt from its parameters."""


@dataclass(frozen=True)
class Law:
    """The same family of univariate laws for a run of weights.

    `constants` are parameters that are equal for all weights of the run, `vectors` those that differ,
    of shape (length,).
    """

    family: Any
    constants: Mapping[str, float]
    vectors: Mapping[str, Tensor]
    length: int

    def score(self, w: Tensor, vectors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Log P and its derivative at each weight."""
        numbers = {k: torch.full((), v, dtype=w.dtype, device=w.device) for k, v in self.constants.items()}
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            law = self.family(**numbers, **dict(zip(self.vectors, vectors, strict=True)), validate_args=False)
            log_prob = law.log_prob(w)
            (slope,) = torch.autograd.grad(log_prob.sum(), w)
        return log_prob.detach(), slope


def laws(sites: Mapping[str, Any]) -> list[Law]:
    """One law for each run of neighbouring sites with a common family; `sites` maps names to priors.

    Raises:
        NotElementwiseError: If a site's prior is not an independent product of one of Pyro's univariate laws.
    """
    runs: list[list[tuple[Any, dict[str, Tensor]]]] = []
    for name, fn in sites.items():
        base = fn
        while hasattr(base, "base_dist") and type(base).__name__ in ("Independent", "ExpandedDistribution"):
            base = base.base_dist
        shape = fn.event_shape
        if base.event_shape or not base.arg_constraints or base.has_enumerate_support:
            raise NotElementwiseError(f"the prior of {name!r}, {type(base).__name__}, is not element-wise")
        parameters = {}
        for key in base.arg_constraints:
            value = getattr(base, key, None)
            if not isinstance(value, Tensor) or value.requires_grad:
                raise NotElementwiseError(f"the prior of {name!r} has no constant parameter {key!r}")
            parameters[key] = value.expand(shape).flatten()
        if not runs or runs[-1][0][0] is not type(base):
            runs.append([])
        runs[-1].append((type(base), parameters))
    return [_tried(_merge(run)) for run in runs]


def _tried(law: Law) -> Law:
    """The law, if it can be rebuilt from its parameters as `score` does it."""
    try:
        law.score(torch.zeros(1), [vector[:1].cpu() for vector in law.vectors.values()])
    except (TypeError, ValueError, RuntimeError) as error:
        name = law.family.__name__
        raise NotElementwiseError(f"{name} cannot be rebuilt from its parameters: {error}") from error
    return law


def _merge(run: Sequence[tuple[Any, Mapping[str, Tensor]]]) -> Law:
    family = run[0][0]
    constants, vectors = {}, {}
    for key in run[0][1]:
        value = torch.cat([parameters[key] for _, parameters in run])
        if bool((value == value[0]).all()):
            constants[key] = float(value[0])
        else:
            vectors[key] = value
    return Law(family, constants, vectors, sum(next(iter(p.values())).numel() for _, p in run))


def score_all(runs: Sequence[Law], w: Tensor, sigma: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Log q - log P and d log P / dw of each weight; all of shape `(*draws, D)` but `sigma`, `(D,)`."""
    parts = [
        law.score(part, list(law.vectors.values()))
        for law, part in zip(runs, w.split([law.length for law in runs], dim=-1), strict=True)
    ]
    log_prior, slope = (
        torch.cat(values, dim=-1) if len(runs) > 1 else values[0] for values in zip(*parts, strict=True)
    )
    return -sigma.log() - 0.5 * eps * eps - 0.5 * math.log(2 * math.pi) - log_prior, slope


def one_draw(
    law: Law,
    share: Tensor,
    loc: Tensor,
    rho: Tensor,
    eps: Tensor,
    w: Tensor,
    to_loc: Tensor,
    to_rho: Tensor,
    *vectors: Tensor,
) -> Tensor:
    """For one draw per step: write w and the KL's gradients, turn `eps` into rho's factor; returns the KL."""
    sigma, slope = F.softplus(rho), torch.sigmoid(rho)
    weight = loc + sigma * eps
    log_prior, prior_slope = law.score(weight, vectors)
    kl = (-sigma.log() - 0.5 * eps * eps - log_prior).sum() - 0.5 * math.log(2 * math.pi) * law.length
    factor = eps * slope
    gradient = -share * prior_slope
    w.copy_(weight)
    to_loc.copy_(gradient)
    to_rho.copy_(gradient * factor - share * slope / sigma)
    eps.copy_(factor)
    return kl


def before_draws(
    share: Tensor, rho: Tensor, sigma: Tensor, slope: Tensor, to_loc: Tensor, to_rho: Tensor
) -> Tensor:
    """For several draws per step: what they have in common; returns the part of the KL without noise."""
    s, ds = F.softplus(rho), torch.sigmoid(rho)
    sigma.copy_(s)
    slope.copy_(ds)
    to_loc.zero_()
    to_rho.copy_(-share * ds / s)
    return -s.log().sum() - 0.5 * math.log(2 * math.pi) * rho.numel()


def next_draw(
    law: Law,
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
    """Write w and add this draw's gradients; `share` is divided by their number. Returns the KL's rest."""
    weight = loc + sigma * eps
    log_prior, prior_slope = law.score(weight, vectors)
    rest = (-0.5 * eps * eps - log_prior).sum()
    factor = eps * slope
    gradient = -share * prior_slope
    w.copy_(weight)
    to_loc.add_(gradient)
    to_rho.add_(gradient * factor)
    eps.copy_(factor)
    return rest
