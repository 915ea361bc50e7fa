"""A guide whose weights covary by a few common factors, with the gradient of a draw written out."""

import math
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from pyro.infer.autoguide import AutoLowRankMultivariateNormal
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributions import constraints

from pyrobbb._support.device import in_full
from pyrobbb._support.random_state import Named

BLOCK = 2**16  # weights: a product of two rows as long as all weights leaves a processor's cache


class LowRankNormal(AutoLowRankMultivariateNormal, Named):
    r"""Pyro's `AutoLowRankMultivariateNormal`, the same family, whose step takes less time.

    .. math::
        q(w \mid \theta) = N(w \mid \mu, S (1 + F^T F) S), \quad S = \mathrm{diag}(\sigma), \quad
            F \in \mathbb{R}^{R \times D}

    A draw and its density come together, and their gradient is written out (`_Drawn`), in fewer passes over
    the factor than Pyro's program takes.

    Args:
        model: A Pyro model.
        init_loc_fn: Where each mean starts, as in Pyro's autoguides.
        init_scale: The standard deviation at the start, roughly.
        rank: R; by default the square root of D.

    Raises:
        ValueError: `init_scale` or `rank` is not positive.
    """

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        self.cov_factor: nn.Parameter = nn.Parameter(self.cov_factor.detach().mT.contiguous())  # (R, D)

    def get_posterior(self, *args: Any, **kwargs: Any) -> "LowRankMultivariateNormal":
        """The distribution of all weights as one vector."""
        return LowRankMultivariateNormal(self.loc, self.scale, self.cov_factor)

    def _loc_scale(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        posterior = self.get_posterior()
        return posterior.mean, posterior.variance.sqrt()


class LowRankMultivariateNormal(TorchDistribution):
    r""":math:`N(\mu, S (1 + F^T F) S)` of D numbers.

    .. math::
        \log q(w) &= -\tfrac12 (u^T u - b^T C^{-1} b) - \tfrac12 \log\det C - \sum_j \log \sigma_j
            - \tfrac D2 \log 2\pi \\
        u &= S^{-1} (w - \mu), \quad b = F u, \quad C = 1 + F F^T

    by the identities of Woodbury and Sylvester; :math:`u = F^T \eta + \epsilon` of a draw.

    Args:
        loc: :math:`\mu`, of shape (D,).
        scale: :math:`\sigma`, of shape (D,), positive.
        factor: F, of shape (R, D).
    """

    arg_constraints: ClassVar = {
        "loc": constraints.real_vector,
        "scale": constraints.positive,
        "factor": constraints.independent(constraints.real, 2),
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, loc: Tensor, scale: Tensor, factor: Tensor) -> None:
        self.loc, self.scale, self.factor = loc, scale, factor
        self._drawn: tuple[Tensor, int, Tensor] | None = None  # the last draw, its version, its density
        super().__init__(torch.Size(), loc.shape)

    @property
    def mean(self) -> Tensor:
        r""":math:`\mu`."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        r""":math:`\sigma_j^2 (1 + \sum_r F_{rj}^2)`."""
        return self.scale**2 * (1 + (self.factor**2).sum(0))

    def rsample(self, sample_shape: torch.Size = torch.Size()) -> Tensor:
        """Draws of shape `sample_shape + (D,)`."""
        R, D = self.factor.shape
        options: dict[str, Any] = {"dtype": self.loc.dtype, "device": self.loc.device}
        eta, epsilon = (torch.randn(*sample_shape, size, **options) for size in (R, D))
        with in_full(self.loc):
            if not torch.is_grad_enabled():
                return self.loc + self.scale * (epsilon + eta @ self.factor)
            flat = eta.reshape(-1, R), epsilon.reshape(-1, D)
            w, log_q = _Drawn.apply(self.loc, self.scale, self.factor, *flat)
        w = w.reshape(epsilon.shape)
        self._drawn = w, w._version, log_q.reshape(sample_shape)
        return w

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of each vector; of the last draw as it was found with it, by its noise.

        The latter has its first gradient by the parameters, through the draw too, and none by the draw alone.
        """
        if self._drawn is not None:
            drawn, version, log_q = self._drawn
            if value is drawn and value._version == version:  # not changed in place since
                return log_q
        with in_full(self.loc):
            u = ((value - self.loc) / self.scale).reshape(-1, value.shape[-1])
            L, _, v = _solved(self.factor, u)
            return _log_q(L, u, v, self.scale).reshape(value.shape[:-1])


class _Drawn(torch.autograd.Function):
    r"""w and log q(w) of each row of noise, with the gradient of both in one expression.

    With :math:`a = C^{-1} b` and :math:`v = u - F^T a`, and g the gradient by w and h that by log q:

    .. math::
        \nabla_u = S g - h v, \quad \nabla_\mu = g, \quad \nabla_\sigma = g \circ u - h / \sigma, \quad
            \nabla_F = \eta \nabla_u^T + h (a v^T - C^{-1} F)
    """

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> tuple[Tensor, Tensor]:
        loc, scale, factor, eta, epsilon = given
        u = torch.addmm(epsilon, eta, factor)
        L, a, v = _solved(factor, u)
        ctx.save_for_backward(scale, factor, eta, u, v, a, L)
        return loc + scale * u, _log_q(L, u, v, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        g, h = gradients[0], gradients[1][:, None]
        scale, factor, eta, u, v, a, L = ctx.saved_tensors
        by_u = scale * g - h * v
        by_scale = (g * u).sum(0) - h.sum() / scale
        with in_full(scale):
            by_factor = torch.cat([eta, h * a]).mT @ torch.cat([by_u, v])
            by_factor = torch.addmm(by_factor, -h.sum() * torch.cholesky_inverse(L).to(factor), factor)
        return g.sum(0), by_scale, by_factor, None, None


def _solved(factor: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The Cholesky factor of C (R, R), and for each row of u its a and v, as in `_Drawn`."""
    C = torch.stack([block @ block.mT for block in factor.split(BLOCK, 1)]).sum(0)
    C = C if C.itemsize > 2 else C.float()  # torch lacks the decomposition in half precision
    L = torch.linalg.cholesky(C + torch.eye(len(C), dtype=C.dtype, device=C.device))
    a = torch.cholesky_solve((factor @ u.mT).to(L), L).mT.to(u)
    return L, a, torch.addmm(u, a, factor, alpha=-1)


def _log_q(L: Tensor, u: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    """Of each row of u."""
    constant = L.diagonal().log().sum().to(scale) + scale.log().sum() + len(scale) / 2 * math.log(2 * math.pi)
    return -0.5 * (u * v).sum(1) - constant
