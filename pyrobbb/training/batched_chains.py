"""Several trainings at once: restarts, or settings of a prior, of a small network as one batch of steps.

A small network's step costs calls, not arithmetic; R of them in one program cost little more than one.
Every training keeps its own data order, noise, optimiser, schedule, history and checkpoint, and ends where
it would have ended alone, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from time import perf_counter

import torch
from torch import Tensor

from pyrobbb._support.random_state import isolated, random_state, set_random_state
from pyrobbb._support.signals import Interrupt
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
from pyrobbb.training.trainer import Training


def train_together(trainings: Sequence[Training], *, fast: str = "auto") -> None:
    """Run every training to its end, step by step side by side; trainings restored to one place go on there.

    Args:
        trainings: On the CPU, of the same network, data, likelihood, number of epochs, batch size and draws
            per step, with mean-field guides; their seeds, priors' parameters, optimisers and KL shares may
            differ. Build them with `fast="eager"`: their own steps serve for noise and for comparison only.
        fast: "auto", "compiled" or "eager", as for `Training`.

    Raises:
        NotBatchableError: If they cannot be batched; nothing has been trained then.
        NonFiniteLossError: If the free energy of one of them becomes infinite or NaN.
    """
    together = _Together(trainings, fast)
    with ExitStack() as stack:
        for training in trainings:
            stack.enter_context(training._locked())
            training._open_history()
        together.run()


class _Together:
    def __init__(self, trainings: Sequence[Training], fast: str) -> None:
        self.trainings = list(trainings)
        self.alone: list[MeanFieldStep | ProgramStep] = []
        first = self._check_alike()
        with isolated():
            try:
                runs = [element_wise(t.model, t.guide, t.train.head(1)) for t in self.trainings]
            except NotFastError as reason:
                raise NotBatchableError(f"they cannot be trained together: {reason}") from reason
            B = first.batch_size
            parts = [t.train.head(B) for t in self.trainings]
            size = sum(step.noise_shape[1] for step in self.alone)
            samples = self.alone[0].noise_shape[0]
            compiled = compilation_pays(fast, size * samples, first.epochs * first.M, calls=len(trainings))
            models = [t.model for t in self.trainings]
            guides = [t.guide for t in self.trainings]
            self.step = StackedStep(models, guides, runs, samples=samples)
            if compiled:
                began = perf_counter()
                try:
                    self.step = StackedStep(models, guides, runs, samples=samples, compiled=_stacked(parts))
                except (CannotCompileError, CannotRecordError) as reason:
                    first.progress.log(f"training without compiled code: {reason}")
                else:
                    seconds = perf_counter() - began
                    first.progress.log(f"compiled the step of {len(runs)} trainings in {seconds:.1f} s")
            self._compare(parts)

    def _check_alike(self) -> Training:
        if not self.trainings:
            raise NotBatchableError("there is no training to run")
        first = self.trainings[0]
        for t in self.trainings:
            if t.ranks.size > 1:
                raise NotBatchableError("trainings on several processes are not batched")
            if t.device.type != "cpu":
                raise NotBatchableError(f"trainings are batched on the CPU only, one is on {t.device}")
            if not isinstance(t.step, MeanFieldStep | ProgramStep) or len(t.step.noise_shape) != 2:
                raise NotBatchableError(
                    "each training must take the fast path with a mean-field normal guide"
                )
            self.alone.append(t.step)
            for name, mine, theirs in (
                ("numbers of data", len(first.train), len(t.train)),
                ("shapes of an input", first.train.x.shape[1:], t.train.x.shape[1:]),
                ("batch sizes", first.batch_size, t.batch_size),
                ("epochs", first.epochs, t.epochs),
                ("draws per step", self.alone[0].noise_shape[0], t.step.noise_shape[0]),
                ("likelihoods", repr(first.model.likelihood), repr(t.model.likelihood)),
                ("places to go on from", (first.epoch, first.batch), (t.epoch, t.batch)),
            ):
                if mine != theirs:
                    raise NotBatchableError(f"trainings with different {name}: {mine} and {theirs}")
        return first

    def _compare(self, parts: Sequence[Split]) -> None:
        """NotBatchableError unless each training's own step sees the same terms and gradients."""
        noise = torch.randn(self.step.noise_shape)
        terms = self.step.evaluate(*_stacked(parts), [1.0] * len(parts), noise)
        each = [Terms(*both) for both in zip(terms.kl, terms.nll, strict=True)]
        ours = [seen(t.optimizer, own) for t, own in zip(self.trainings, each, strict=True)]
        for r, step in enumerate(self.alone):
            found = difference(ours[r], gradients(step, parts[r], noise[:, r]))
            if found is not None:
                raise NotBatchableError(f"training {r} has another {found.name} in the batch than alone")

    def run(self) -> None:
        """Epoch by epoch to the end; Ctrl-C and SIGTERM end all of them after a step, with checkpoints."""
        first = self.trainings[0]
        first.progress.start(first.chain, first.epoch, first.epochs, first.M, first.batch)
        with isolated(), Interrupt() as interrupt:
            try:
                while first.epoch < first.epochs:
                    self._epoch(interrupt)
                    self._pause(interrupt, last=first.epoch == first.epochs)
                for t in self.trainings:
                    t._check_end()
            except KeyboardInterrupt:
                if all(t.between_steps for t in self.trainings):
                    self._save()
                raise
            finally:
                first.progress.stop()

    def _epoch(self, interrupt: Interrupt) -> None:
        first = self.trainings[0]
        R = len(self.trainings)
        began = perf_counter() - R * first.spent
        batches = [t._shuffled() for t in self.trainings]
        self.sums = torch.stack([t.sums for t in self.trainings])
        for t, row in zip(self.trainings, self.sums, strict=True):
            t.sums = row
        for i in range(first.batch, first.M):
            self._take([rows[i] for rows in batches], i)
            for t in self.trainings:
                t.spent = (perf_counter() - began) / R
            if i + 1 < first.M:
                self._pause(interrupt)
                began = perf_counter() - R * first.spent
        for t in self.trainings:
            t._end_epoch()

    def _pause(self, interrupt: Interrupt, *, last: bool = False) -> None:
        """`Training._pause` for all at once."""
        interrupt.check()
        if last or self.trainings[0]._due():
            self._save()

    def _take(self, rows: Sequence[Tensor], i: int) -> None:
        pairs = [t._shares(part, i) for t, part in zip(self.trainings, rows, strict=True)]
        x, y = _stacked([t.train.take(part) for t, part in zip(self.trainings, rows, strict=True)])
        for t in self.trainings:
            t.between_steps = False
        noise = torch.stack([_draw(*both) for both in zip(self.trainings, self.alone, strict=True)], dim=1)
        terms = self.step.evaluate(x, y, [share for _, share in pairs], noise)
        for t in self.trainings:
            t.optimizer.step()
        self._accumulate(terms, i, pairs[0][0])
        for t in self.trainings:
            t.between_steps = True
        self.trainings[0].progress.step()

    def _accumulate(self, terms: Terms, i: int, data: float) -> None:
        """`Training._accumulate` for all at once."""
        both = torch.stack([terms.kl * data, terms.nll], dim=1)
        if not bool(both.isfinite().all()):
            r = int((~both.isfinite().all(dim=1)).nonzero()[0])
            raise self.trainings[r]._non_finite(Terms(terms.kl[r], terms.nll[r]), i)
        self.sums += both
        for t in self.trainings:
            t.batch = i + 1

    def _save(self) -> None:
        for t in self.trainings:
            set_random_state(t.noise, t.device)
            t._save()


def _stacked(parts: Sequence[Split]) -> tuple[Tensor, Tensor]:
    return torch.stack([part.x for part in parts]), torch.stack([part.y for part in parts])


def _draw(training: Training, step: MeanFieldStep | ProgramStep) -> Tensor:
    """The noise (S, D) that the training would draw alone, from its own random state."""
    set_random_state(training.noise, training.device)
    parts = []
    for _ in range(torch.Size(step.noise_shape).numel() // step.normals.values.numel()):
        step.normals.draw()
        parts.append(step.normals.values.clone())
    training.noise = random_state(training.device)
    return torch.cat(parts).reshape(step.noise_shape)
