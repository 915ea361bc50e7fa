r"""One step of R trainings at once: their flat parameters as rows of a matrix, one program for all.

The formulas are those of `pyrobbb.accelerated.fused_kl`. Each training keeps its own noise, optimiser and
parameters;
they may differ in their priors' parameters, their data's order and their seeds, not in their structure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyrobbb.accelerated.compile import compile, lift, record
from pyrobbb.accelerated.fused_kl import Law, score_all
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.svi import Terms


class NotBatchableError(ValueError):
    """The trainings cannot be stacked; the message says why."""


def stack_laws(each: Sequence[Sequence[Law]]) -> list[Law]:
    """The priors of R trainings as one list of laws, whose parameters have a row for each where they differ.

    Raises:
        NotBatchableError: If their families or the lengths of their runs differ.
    """
    merged = []
    if len({tuple((law.family, law.length) for law in runs) for runs in each}) != 1:
        raise NotBatchableError("their priors are of different families")
    for same in zip(*each, strict=True):
        constants, vectors = {}, {}
        for key in (*same[0].constants, *same[0].vectors):
            found = [_row(law, key) for law in same]
            if all(len(row) == 1 and row == found[0] for row in found):
                constants[key] = float(found[0])
            else:
                vectors[key] = torch.stack(torch.broadcast_tensors(*found))
        merged.append(replace(same[0], constants=constants, vectors=vectors))
    return merged


def _row(law: Law, key: str) -> Tensor:
    return torch.tensor([law.constants[key]]) if key in law.constants else law.vectors[key]


class StackedStep:
    """Gradients of R trainings on a minibatch each.

    Args:
        models: One `BayesianNetwork` for each training, of the same structure and likelihood.
        guides: One mean-field normal for each, with flat `loc` and `rho` and `split`.
        runs: For each, its prior run by run (`pyrobbb.accelerated.fused_kl.laws`).
        samples: Weight draws per step, S.
        compiled: None, or a batch `(x, y)` of shapes (R, B, *features) and (R, B, ...) to compile for;
            batches of another shape run uncompiled.

    Raises:
        NotBatchableError: If they are of different structure.
        CannotRecordError: If the network looks at a tensor's value.
        CannotCompileError: If it cannot be compiled.
    """

    def __init__(
        self,
        models: Sequence[BayesianNetwork],
        guides: Sequence[Any],
        runs: Sequence[Sequence[Law]],
        *,
        samples: int = 1,
        compiled: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        if len({tuple((name, *shape) for name, shape in guide.shapes.items()) for guide in guides}) != 1:
            raise NotBatchableError("their networks have different weights")
        if any(len(list(model.parameters())) for model in models):
            raise NotBatchableError("their networks have parameters without a prior")
        self.model, self.guides, self.samples = models[0], list(guides), samples
        self.laws = stack_laws(runs)
        self.loc, self.rho = self._gathered()
        self.share = torch.zeros(len(guides), 1, dtype=self.loc.dtype)
        self.noise_shape = (samples, *self.loc.shape)
        self.shapes: tuple[torch.Size, torch.Size] | None = None
        if compiled is not None:
            inputs = [torch.zeros(self.noise_shape, dtype=self.loc.dtype), self.share, *compiled]
            inputs += [self.loc, self.rho]
            graph, self.held = lift(record(self._program, inputs), len(inputs))
            self.run = compile(graph, [*inputs, *self.held])
            self.shapes = compiled[0].shape, compiled[1].shape

    def _gathered(self) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return torch.stack([g.loc for g in self.guides]), torch.stack([g.rho for g in self.guides])

    def _program(
        self, noise: Tensor, share: Tensor, x: Tensor, y: Tensor, loc: Tensor, rho: Tensor
    ) -> list[Tensor]:
        """KL and NLL (R,) and the gradients with respect to loc and rho (R, D); `noise` is (S, R, D)."""
        sigma = F.softplus(rho)
        w = loc + sigma * noise
        log_ratio, prior_slope = score_all(self.laws, w, sigma, noise)
        with torch.enable_grad():
            weights = {k: part.detach().requires_grad_() for k, part in self.guides[0].split(w).items()}
            output = torch.vmap(self._outputs, in_dims=(0, None), randomness="different")(weights, x)
            log_prob = self.model.observation(output, draws=2).log_prob(self.model.likelihood.encode(y))
            nll = -log_prob.sum(2).sum(0) / self.samples
            gradients = torch.autograd.grad(nll.sum(), list(weights.values()))
        slope = torch.cat([g.reshape(*w.shape[:2], -1) for g in gradients], dim=-1)
        slope = slope - (share / self.samples) * prior_slope
        to_rho = ((slope * noise).sum(0) - share / sigma) * torch.sigmoid(rho)
        return [log_ratio.sum(-1).sum(0) / self.samples, nll.detach(), slope.sum(0), to_rho]

    def _outputs(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Outputs (R, B, width) of R networks, each for its own rows."""
        call = torch.vmap(self.model.apply_network, randomness="different")
        return call(dict(weights), x)

    def evaluate(self, x: Tensor, y: Tensor, shares: Sequence[float], noise: Tensor) -> Terms:
        """The terms (R,); leaves the gradients of its F in its guide's `grad`."""
        with torch.no_grad():
            self.share.copy_(torch.tensor(shares, dtype=self.share.dtype)[:, None])
            inputs = [noise, self.share, x, y, *self._gathered()]
            if (x.shape, y.shape) == self.shapes:
                kl, nll, to_loc, to_rho = self.run(*inputs, *self.held)
            else:
                kl, nll, to_loc, to_rho = self._program(*inputs)
        for r, guide in enumerate(self.guides):
            guide.loc.grad, guide.rho.grad = to_loc[r], to_rho[r]
        return Terms(kl, nll)
