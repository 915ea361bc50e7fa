r"""A step that several processes take together, each on its own rows of the minibatch and its own noise.

Process r of K has the rows D_r of minibatch D_i and draws weights w_r. With the plate scaled to the whole N
and the KL's share split as the rows are, it differentiates

.. math::
    F_{i,r} = \frac{|D_r|}{|D_i|} \pi_i \mathrm{KL}(w_r) - \log P(D_r \mid w_r),
    \qquad E \sum_r F_{i,r} = E F_i

so the sum of the K gradients has the expectation of the one-process gradient (eq. 9), also where the rows do
not divide evenly, and the KL enters once. The sum is one all-reduce of all gradients per step; every process
then takes the same optimiser step.
"""

from functools import reduce

import torch
from torch import Tensor

from pyrobbb._support.optim import set_gradient, trained
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb.accelerated.fast_step import FastStep, WrappedStep
from pyrobbb.svi import ReferenceStep, Terms


class _Summed(WrappedStep):
    """A step on the sum over all processes of what `step` sees on this one's rows.

    Its x and y are this process's rows, `share` and `fraction` their part of the KL and of the data; they may
    be none. The terms it returns are those of the whole minibatch: the KL averaged over the processes' draws
    in proportion to their rows, the negative log-likelihood summed.

    Args:
        step: Any step on one process.
        ranks: The processes.
    """

    def __init__(self, step: FastStep | ReferenceStep, ranks: ProcessGroup) -> None:
        super().__init__(step)
        self.ranks = ranks
        self.parameters = trained(step.optimizer)
        dtype = reduce(torch.promote_types, (parameter.dtype for parameter in self.parameters))
        sizes = [parameter.numel() for parameter in self.parameters]
        self.flat = torch.zeros(sum(sizes) + 3, dtype=dtype, device=self.parameters[0].device)
        *parts, self.sums = self.flat.split([*sizes, 3])  # KL times rows, NLL, rows
        self.parts = [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]

    @torch.no_grad()
    def _sum(self, terms: Terms | None, rows: int) -> Terms:
        if terms is None:
            self.flat.zero_()
        else:
            for part, parameter in zip(self.parts, self.parameters, strict=True):
                part.zero_() if parameter.grad is None else part.copy_(parameter.grad)
            self.sums.copy_(torch.stack([terms.kl * rows, terms.nll, torch.full_like(terms.nll, rows)]))
        self.ranks.sum_(self.flat)
        for part, parameter in zip(self.parts, self.parameters, strict=True):
            set_gradient(parameter, part.to(parameter.dtype))
        kl, nll, total = self.sums.clone().unbind()
        return Terms(kl / total, nll)


class SummedStep(_Summed, FastStep):
    """Of a fast step; it can become a CUDA graph as `step` can."""

    def __init__(self, step: FastStep, ranks: ProcessGroup) -> None:
        super().__init__(step, ranks)
        self.share, self.normals = step.share, step.normals

    def compute(
        self, x: Tensor, y: Tensor, noise: Tensor | None = None, counts: Tensor | None = None
    ) -> Terms:
        return self._sum(self.step.compute(x, y, noise, counts) if len(x) else None, len(x))


class SummedReference(_Summed):
    """Of a `ReferenceStep`, whose share and fraction are arguments."""

    def __call__(
        self, x: Tensor, y: Tensor, share: float, fraction: float, counts: Tensor | None = None
    ) -> Terms:
        terms = self._sum(self.step.evaluate(x, y, share, fraction, counts) if len(x) else None, len(x))
        self.optimise()
        return terms
