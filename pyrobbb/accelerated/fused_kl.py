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

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pyrobbb.accelerated.prior_segments import PriorSegment


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


def draw(
    segment: PriorSegment,
    share: Tensor,
    loc: Tensor,
    rho: Tensor,
    eps: Tensor,
    w: Tensor,
    to_loc: Tensor,
    to_rho: Tensor,
) -> Tensor:
    """The one draw of a step: write w and the KL's gradients, turn `eps` into rho's factor; returns the KL.

    The likelihood's gradient G then adds G to the gradient with respect to loc, and G times the factor to
    that with respect to rho.
    """
    sigma, slope = F.softplus(rho), torch.sigmoid(rho)
    weight = loc + sigma * eps
    log_prior, score = segment.score(weight)
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
) -> Tensor:
    """One of several draws: write w, add its part of the gradients; `share` is divided by their number.

    Returns its part of the KL, to be averaged over the draws.
    """
    weight = loc + sigma * eps
    log_prior, score = segment.score(weight)
    kl = (-0.5 * eps * eps - log_prior).sum()
    for_loc, for_rho = gradients(0.0, score, eps, None, slope, share)
    w.copy_(weight)
    to_loc.add_(for_loc)
    to_rho.add_(for_rho)
    eps.copy_(eps * slope)
    return kl
