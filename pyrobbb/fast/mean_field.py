"""The fast step for independent normals with flat parameters: `pyrobbb.fast.kl`, then the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pyrobbb.bnn import BayesianNetwork
from pyrobbb.elbo import Terms
from pyrobbb.fast.kl import Law, one_pass
from pyrobbb.fast.noise import Normals
from pyrobbb.fast.record import Program, compile, record


class MeanFieldStep:
    r"""One step on F = share KL - log P(D_i | w) for :math:`q(w) = N(\mu, \mathrm{softplus}(\rho)^2)`.

    The same as `ReferenceStep` on the same noise, up to rounding. The draws are averaged one after the
    other into the same buffers, so memory does not grow with their number.

    Args:
        model: A `BayesianNetwork`.
        guide: A guide with flat parameters `loc` and `rho` and `split`, such as `MeanFieldNormal`.
        optimizer: Over the parameters of both.
        runs: The prior of each run of weights, in the guide's order.
        samples: Weight draws that each step averages over.
        compiled: Compile the element-wise passes and the noise.
    """

    def __init__(
        self,
        model: BayesianNetwork,
        guide: Any,
        optimizer: torch.optim.Optimizer,
        runs: Sequence[Law],
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
        self.part_loc = self.to_loc if samples == 1 else torch.zeros_like(self.w)
        self.part_rho = self.to_rho if samples == 1 else torch.zeros_like(self.w)
        self.noise_shape = (samples, size)
        self.share = torch.zeros((), dtype=self.loc.dtype, device=self.loc.device)
        self.weights = {
            name: part.detach().requires_grad_() for name, part in guide.split(self.w).items()
        }  # share the storage of w
        self.views = [
            (part, factor, to_loc, to_rho)
            for part, factor, to_loc, to_rho in zip(
                self.weights.values(),
                *(guide.split(flat).values() for flat in (self.eps, self.part_loc, self.part_rho)),
                strict=True,
            )
        ]
        self.others = [p for g in optimizer.param_groups for p in g["params"] if p is not self.loc]
        self.others = [p for p in self.others if p is not self.rho]
        self.passes = self._make_passes(runs, compiled)

    def _make_passes(self, runs: Sequence[Law], compiled: bool) -> list[Callable[[], Tensor]]:
        flats = (self.loc.detach(), self.rho.detach(), self.eps, self.w, self.part_loc, self.part_rho)
        passes: list[Callable[[], Tensor]] = []
        begin = 0
        for law in runs:
            inputs = [self.share, *(flat[begin : begin + law.length] for flat in flats)]
            inputs += list(law.vectors.values())
            begin += law.length

            program = partial(one_pass, law)
            run = compile(record(program, inputs), inputs) if compiled else program
            passes.append(_bound(run, inputs))
        return passes

    def __call__(self, x: Tensor, y: Tensor, share: float, data: float) -> Terms:
        terms = self.evaluate(x, y, share)
        self.optimizer.step()
        self.clear()
        return terms

    def clear(self) -> None:
        """Forget the gradients of the point parameters; those of loc and rho are overwritten anyway."""
        for parameter in self.others:
            parameter.grad = None

    def evaluate(self, x: Tensor, y: Tensor, share: float, noise: Tensor | None = None) -> Terms:
        """The terms; leaves the gradients of F in every parameter's `grad`.

        `noise`, of shape `(samples, D)`, takes the place of fresh draws.
        """
        self.share.fill_(share)
        return self.compute(x, y, noise)

    def compute(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Terms:
        """`evaluate` at the share that `self.share` holds: tensor operations only, fit for a CUDA graph."""
        kl: Any = 0.0
        nll: Any = 0.0
        if self.samples > 1:
            self.to_loc.zero_()
            self.to_rho.zero_()
        for s in range(self.samples):
            if noise is None:
                self.normals.draw()
            else:
                self.eps.copy_(noise[s])
            kl_part, nll_part = self._one(x, y)
            kl, nll = kl + kl_part, nll + nll_part
            if self.samples > 1:
                self.to_loc.add_(self.part_loc, alpha=1 / self.samples)
                self.to_rho.add_(self.part_rho, alpha=1 / self.samples)
        self.loc.grad, self.rho.grad = self.to_loc, self.to_rho
        return Terms(kl / self.samples, nll / self.samples)

    def _one(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            kl = sum(run() for run in self.passes)
        output = self.model.apply_network(self.weights, x)
        self.model.likelihood.check(output, y)
        nll = -self.model.likelihood(output).log_prob(y).sum()
        leaves = list(self.weights.values())
        gradients = torch.autograd.grad(nll, [*leaves, *self.others], allow_unused=True)
        with torch.no_grad():
            for gradient, (_, factor, to_loc, to_rho) in zip(gradients, self.views, strict=False):
                if gradient is not None:
                    to_loc.add_(gradient)
                    to_rho.addcmul_(gradient, factor)
            for parameter, gradient in zip(self.others, gradients[len(leaves) :], strict=True):
                if gradient is not None:
                    part = gradient / self.samples if self.samples > 1 else gradient
                    parameter.grad = part if parameter.grad is None else parameter.grad + part
        assert isinstance(kl, Tensor)
        return kl, nll.detach()


def _bound(program: Program, inputs: Sequence[Tensor]) -> Callable[[], Tensor]:
    return lambda: program(*inputs)
