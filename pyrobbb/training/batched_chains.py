"""Several chains of a small network as one batch of steps: restarts, or settings of a prior.

A small network's step is mostly call overhead, not arithmetic; R in one program cost little more than one.
Every chain keeps its own data order, noise, optimiser, schedule, history and checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch
from torch import Tensor

from pyrobbb._support.random_state import isolated, random_state, set_random_state
from pyrobbb.accelerated.batched_step import NotBatchableError, StackedStep
from pyrobbb.accelerated.compile import CannotCompileError, CannotRecordError
from pyrobbb.accelerated.dispatch import (
    NotFastError,
    compilation_pays,
    difference,
    element_wise,
    gradients,
    seen,
)
from pyrobbb.accelerated.mean_field_step import MeanFieldStep
from pyrobbb.accelerated.program_step import ProgramStep
from pyrobbb.data.dataset import Split
from pyrobbb.svi import Terms
from pyrobbb.training.chain import Chain


class BatchedChains:
    """Takes one step of several chains at once.

    Args:
        chains: See `pyrobbb.training.trainer.train`.
        fast: "auto", "compiled" or "eager".

    Raises:
        NotBatchableError: If they cannot be batched.
    """

    def __init__(self, chains: Sequence[Chain], fast: str) -> None:
        self.chains = list(chains)
        self.alone: list[MeanFieldStep | ProgramStep] = []
        first = self._check_alike()
        with isolated():
            try:
                runs = [element_wise(c.model, c.guide, c.train.head(1)) for c in self.chains]
            except NotFastError as reason:
                raise NotBatchableError(f"they cannot be trained together: {reason}") from reason
            parts = [c.train.head(first.batch_size) for c in self.chains]
            size = sum(step.noise_shape[1] for step in self.alone)
            samples = self.alone[0].noise_shape[0]
            compiled = compilation_pays(fast, size * samples, first.epochs * first.M, calls=len(chains))
            models = [c.model for c in self.chains]
            guides = [c.guide for c in self.chains]
            self.step = StackedStep(models, guides, runs, samples=samples)
            if compiled:
                began = perf_counter()
                try:
                    self.step = StackedStep(models, guides, runs, samples=samples, compiled=_stacked(parts))
                except (CannotCompileError, CannotRecordError) as reason:
                    first.log(f"training without compiled code: {reason}")
                else:
                    seconds = perf_counter() - began
                    first.log(f"compiled the step of {len(runs)} trainings in {seconds:.1f} s")
            self._compare(parts)

    def _check_alike(self) -> Chain:
        first = self.chains[0]
        for c in self.chains:
            if c.ranks.size > 1:
                raise NotBatchableError("trainings on several processes are not batched")
            if c.device.type != "cpu":
                raise NotBatchableError(f"trainings are batched on the CPU only, but one is on {c.device}")
            if not isinstance(c.step, MeanFieldStep | ProgramStep) or len(c.step.noise_shape) != 2:
                raise NotBatchableError(
                    "each training must take the fast path with a mean-field normal guide"
                )
            self.alone.append(c.step)
            for name, mine, theirs in (
                ("numbers of data", len(first.train), len(c.train)),
                ("shapes of an input", first.train.head(1).x.shape, c.train.head(1).x.shape),
                ("batch sizes", first.batch_size, c.batch_size),
                ("epochs", first.epochs, c.epochs),
                ("draws per step", self.alone[0].noise_shape[0], c.step.noise_shape[0]),
                ("likelihoods", repr(first.model.likelihood), repr(c.model.likelihood)),
                ("places to resume from", (first.epoch, first.batch), (c.epoch, c.batch)),
            ):
                if mine != theirs:
                    raise NotBatchableError(f"trainings with different {name}: {mine} and {theirs}")
        return first

    def _compare(self, parts: Sequence[Split]) -> None:
        """NotBatchableError unless each chain's own step sees the same terms and gradients."""
        noise = torch.randn(self.step.noise_shape, dtype=self.step.share.dtype)
        terms = self.step.evaluate(*_stacked(parts), [1.0] * len(parts), noise)
        each = [Terms(*both) for both in zip(terms.kl, terms.nll, strict=True)]
        ours = [seen(c.optimizer, own) for c, own in zip(self.chains, each, strict=True)]
        for r, step in enumerate(self.alone):
            found = difference(ours[r], gradients(step, parts[r], noise[:, r]))
            if found is not None:
                raise NotBatchableError(f"training {r} has a different {found.name} in the batch than alone")

    def __call__(self, parts: Sequence[Split], kl_weights: Sequence[float]) -> Terms:
        """Step every chain on a minibatch of its own; the terms have a row for each."""
        noise = torch.stack([_draw(*both) for both in zip(self.chains, self.alone, strict=True)], dim=1)
        terms = self.step.evaluate(*_stacked(parts), kl_weights, noise)
        for chain in self.chains:
            chain.optimizer.step()
        return terms


def _stacked(parts: Sequence[Split]) -> tuple[Tensor, Tensor]:
    return torch.stack([part.x for part in parts]), torch.stack([part.y for part in parts])


def _draw(chain: Chain, step: MeanFieldStep | ProgramStep) -> Tensor:
    """The noise (S, D) that the chain would draw alone, from its own random state."""
    set_random_state(chain.noise, chain.device)
    parts = []
    for _ in range(torch.Size(step.noise_shape).numel() // step.normals.values.numel()):
        step.normals.draw()
        parts.append(step.normals.values.clone())
    chain.noise = random_state(chain.device)
    return torch.cat(parts).reshape(step.noise_shape)
