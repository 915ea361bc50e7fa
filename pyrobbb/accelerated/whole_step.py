r"""The step on CUDA: weights, network, gradients and optimiser as one program, which reads each vector twice.

With D weights, sampling and the KL are one kernel over the vectors loc, rho and noise; the KL's gradient, the
chain rule and the optimiser are another, fused with nothing in between but the network itself. For the
first, the vectors are padded to whole rows: a sum over rows of `ROW` weights fuses with the stores of the
weights, a sum over all of them would not.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyrobbb._support.device import uses_tf32
from pyrobbb.accelerated.agreement import check_taken
from pyrobbb.accelerated.compile import compile
from pyrobbb.accelerated.cuda_rewrites import rewritten
from pyrobbb.accelerated.fixed_batch import FixedBatch
from pyrobbb.accelerated.fused_kl import gradients, log_ratio
from pyrobbb.accelerated.prior_segments import PriorSegment, score_all
from pyrobbb.accelerated.program_step import ProgramStep
from pyrobbb.accelerated.programs import flat_program, network_gradients
from pyrobbb.accelerated.record import Program, detached, lift, record
from pyrobbb.accelerated.updates import Update
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data.dataset import Split
from pyrobbb.svi import Terms

ROW = 1024


def padded(flat: Tensor) -> Tensor:
    """`flat` (..., D) in whole rows, with one row in front of it.

    The row in front keeps the weights aligned, and keeps inductor from writing the padded vector to memory:
    it fuses a padding on both sides, and takes one on the right for a concatenation.
    """
    return F.pad(flat, (ROW, -flat.shape[-1] % ROW))


def whole_program(
    model: BayesianNetwork, guide: Any, segments: Sequence[PriorSegment], update: Update, samples: int
) -> Program:
    """One step in place, of a mean-field normal with flat `loc` and `rho`; all draws are one batch.

    It maps `(noise, share, rates, x, y, counts, *state)` to parts of KL and NLL, vectors to be summed: noise
    is (samples, D), `rates` and `state` are as `Update` gives them.
    """
    loc, rho = guide.loc, guide.rho
    others = [p for p in update.parameters if p is not loc and p is not rho]
    D, rows = loc.numel(), _in_rows(segments)

    def sample(eps: Tensor) -> tuple[Tensor, Tensor]:
        """The weights (*samples, D), and log q(w) - log P(w) of each row of them."""
        mu, wide, noise = (padded(flat) for flat in (loc.detach(), rho.detach(), eps))
        sigma = F.softplus(wide)
        w = mu + sigma * noise
        log_prior, _ = score_all(rows, w)
        place = torch.arange(w.shape[-1], device=w.device)
        kl = torch.where((place >= ROW) & (place < ROW + D), log_ratio(log_prior, sigma, noise), 0.0)
        return w[..., ROW : ROW + D], kl.reshape(-1, ROW).sum(1)

    def program(
        noise: Tensor, share: Tensor, rates: Tensor, x: Tensor, y: Tensor, counts: Tensor, *state: Tensor
    ) -> list[Tensor]:
        eps = noise if samples > 1 else noise.flatten()
        w, kl = sample(eps)
        likelihood = model.log_likelihood
        nll, G, point = network_gradients(likelihood, guide.split, w, others, x, y, counts, samples)
        # Again from the parameters, which are read here anyway: reading w and the score takes longer.
        sigma, slope = F.softplus(rho.detach()), torch.sigmoid(rho.detach())
        _, score = score_all(segments, loc.detach() + sigma * eps)
        to_loc, to_rho = gradients(G, score, eps, sigma, slope, share)
        found = dict(zip([loc, rho, *others], [to_loc, to_rho, *point], strict=True))
        update([found[p] for p in update.parameters], state, rates)
        return [kl / samples, nll.flatten() / samples]

    return program


def _in_rows(segments: Sequence[PriorSegment]) -> list[PriorSegment]:
    """The prior of the padded weights."""
    rows = []
    total = sum(segment.length for segment in segments)
    for i, segment in enumerate(segments):
        before = ROW if i == 0 else 0
        after = -total % ROW if i == len(segments) - 1 else 0
        vectors = {k: F.pad(vector, (before, after), value=1.0) for k, vector in segment.vectors.items()}
        rows.append(replace(segment, vectors=vectors, length=before + segment.length + after))
    return rows


class WholeStep(ProgramStep):
    """Takes steps of `whole_program`, compiled; a shorter batch is filled up with rows that do not count.

    Steps of `flat_program`, once the optimiser has changed. The arguments are those of `MeanFieldStep`, with
    an optimiser that `Update` supports, and a `batch` `(x, y)` of the usual shape.

    Raises:
        CannotRecordError: If the network looks at a tensor's value.
        CannotCompileError: If the program cannot be compiled.
    """

    def __init__(
        self,
        model: BayesianNetwork,
        guide: Any,
        optimizer: torch.optim.Optimizer,
        segments: Sequence[PriorSegment],
        samples: int,
        batch: tuple[Tensor, Tensor],
    ) -> None:
        self.update = Update(optimizer)
        program = flat_program(model, guide, segments, self.update.parameters, samples)
        super().__init__(program, optimizer, (samples, guide.loc.numel()))
        self.full = FixedBatch(*batch, self.share.dtype)
        self.recorded = True
        self.constants = self.update.constants()
        self.reset()
        whole = whole_program(model, guide, segments, self.update, samples)
        inputs = [self.noise, self.share, self.update.rates(1)[0], *self.full.example, *self.state]
        graph, self.held = lift(record(whole, inputs), len(inputs))
        if self.share.is_cuda:
            graph = rewritten(graph, tf32=uses_tf32(self.share.device))
        self.whole = compile(graph, [*inputs, *detached(self.held)])

    def check_still(self, rows: Split, model: nn.Module) -> None:
        check_taken(self, self, rows, model)

    def reset(self) -> None:
        """The optimiser's state lies in other tensors now, or its hyperparameters have changed."""
        self.state = self.update.state()
        self.same = Update.supported(self.optimizer) and self.update.constants() == self.constants

    def take(self, x: Tensor, y: Tensor, counts: Tensor | None = None) -> Terms:
        batch = self.full(x, y, counts) if self.same else None
        if batch is None:
            return super().take(x, y, counts)
        x, y, counts = (part[None] for part in batch)
        (kl,), (nll,) = self.take_all(x, y, self.share[None], counts)
        return Terms(kl, nll)

    def take_all(self, xs: Tensor, ys: Tensor, shares: Tensor, counts: Tensor | None = None) -> Terms:
        if not self.same:
            return super().take_all(xs, ys, shares, counts)
        rates = self.update.rates(len(xs))
        once = self.full.once
        counts = once.expand(len(xs), -1) if counts is None else counts.to(once)
        each = []
        with torch.no_grad():
            held = detached(self.held)
            for inputs in zip(shares, rates, xs, ys, counts, strict=True):
                self.normals.draw()
                each.append(self.whole(self.noise, *inputs, *self.state, *held))
            self.update.advance(len(xs))
            kl, nll = (torch.stack(parts).sum(1) for parts in zip(*each, strict=True))
        return Terms(kl, nll)
