"""The fast step for a mean-field normal with flat parameters: the fused KL, then the network."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pyrobbb._support.optim import add_gradient, trained
from pyrobbb.accelerated.compile import Pass, bind
from pyrobbb.accelerated.fast_step import FastStep
from pyrobbb.accelerated.fused_kl import before_draws, draw, next_draw
from pyrobbb.accelerated.prior_segments import PriorSegment, by_segment
from pyrobbb.accelerated.record import Program
from pyrobbb.accelerated.rng import Normals
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.svi import Terms, counted


class MeanFieldStep(FastStep):
    r"""One step on F = share KL - log P(D_i | w) for :math:`q(w) = N(\mu, \mathrm{softplus}(\rho)^2)`.

    The same as `ReferenceStep` on the same noise, up to rounding. The draws are averaged one after the
    other into the same buffers, so memory does not grow with their number.

    Args:
        model: A `BayesianNetwork`.
        guide: A guide with flat parameters `loc` and `rho` and `split`, such as `MeanFieldNormal`.
        optimizer: Over the parameters of both.
        segments: The prior of each segment of weights, in the guide's order.
        samples: Weight draws that each step averages over.
        compiled: Compile the element-wise passes and the noise.
    """

    def __init__(
        self,
        model: BayesianNetwork,
        guide: Any,
        optimizer: torch.optim.Optimizer,
        segments: Sequence[PriorSegment],
        *,
        samples: int = 1,
        compiled: bool = False,
    ) -> None:
        self.model, self.guide, self.optimizer, self.samples = model, guide, optimizer, samples
        self.loc: nn.Parameter = guide.loc
        self.rho: nn.Parameter = guide.rho
        size = self.loc.numel()
        self.normals = Normals(size, self.loc.detach(), compiled=compiled)
        self.eps = self.normals.values
        self.w = torch.zeros_like(self.eps)
        self.to_loc, self.to_rho = torch.zeros_like(self.w), torch.zeros_like(self.w)
        self.noise_shape = (samples, size)
        self.share = torch.zeros((), dtype=self.loc.dtype, device=self.loc.device)
        self.share_of_draw = torch.zeros_like(self.share)  # share / samples
        self.weights = {
            name: part.detach().requires_grad_() for name, part in guide.split(self.w).items()
        }  # share the storage of w
        flats = (self.eps, self.to_loc, self.to_rho)
        self.views = list(zip(*(guide.split(flat).values() for flat in flats), strict=True))
        self.others = [p for p in trained(optimizer) if p is not self.loc and p is not self.rho]
        self.segments, self.compiled = segments, compiled
        self._bind()

    def _bind(self) -> None:
        """Make what runs once per step, and once per draw over each segment, where the parameters lie now."""
        self.places = self.loc.data_ptr(), self.rho.data_ptr()
        bound = partial(bind, compiled=self.compiled)
        loc, rho = self.loc.detach(), self.rho.detach()
        gradients = (self.to_loc, self.to_rho)
        self.begin: list[Pass] = []
        if self.samples == 1:
            program: Program = draw
            flats: tuple[Tensor, ...] = (loc, rho, self.eps, self.w, *gradients)
        else:  # the widths are the same for all draws
            sigma, slope = torch.zeros_like(loc), torch.zeros_like(loc)
            self.begin = [bound(before_draws, self.share, rho, sigma, slope, *gradients)]
            program, flats = next_draw, (loc, sigma, slope, self.eps, self.w, *gradients)
        self.draws = [
            bound(partial(program, segment), self.share_of_draw, *parts)
            for segment, *parts in by_segment(self.segments, *flats)
        ]

    def compute(
        self, x: Tensor, y: Tensor, noise: Tensor | None = None, counts: Tensor | None = None
    ) -> Terms:
        """The terms and gradients at the share that `self.share` holds; `noise` has shape `(samples, D)`."""
        if (self.loc.data_ptr(), self.rho.data_ptr()) != self.places:
            self._bind()  # somebody gave the parameters other memory, by `p.data = ...`
        torch.div(self.share, self.samples, out=self.share_of_draw)
        leaves = [*self.weights.values(), *self.others]
        with torch.no_grad():
            shared: Any = sum(run() for run in self.begin)
        kl: Any = 0.0
        nll: Any = 0.0
        for s in range(self.samples):
            if noise is None:
                self.normals.draw()
            else:
                self.eps.copy_(noise[s])
            with torch.no_grad():
                kl = kl + sum(run() for run in self.draws)
            loss = -counted(self.model.log_likelihood(self.weights, x, y), counts).sum() / self.samples
            self._add(torch.autograd.grad(loss, leaves, allow_unused=True))
            nll = nll + loss.detach()
        self.loc.grad, self.rho.grad = self.to_loc, self.to_rho
        return Terms(shared + kl / self.samples, nll)

    @torch.no_grad()
    def _add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add the likelihood's gradients with respect to the weights and the point parameters."""
        for gradient, (factor, to_loc, to_rho) in zip(gradients, self.views, strict=False):
            if gradient is not None:
                to_loc.add_(gradient)
                to_rho.addcmul_(gradient, factor)
        for parameter, gradient in zip(self.others, gradients[len(self.views) :], strict=True):
            if gradient is not None:
                add_gradient(parameter, gradient)
