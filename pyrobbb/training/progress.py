"""What the user sees while a network trains: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable
from functools import partialmethod
from time import monotonic
from typing import Any

from tqdm import tqdm

from pyrobbb.training.history import Epoch

LINES = 20

logger = logging.getLogger(__name__)


class Progress:
    """Receives the events of a training; override what you need."""

    def about(self, chain: int, bound: bool, trivial: Callable[[], float | None]) -> None:
        """Before `start`: whether the loss is a free energy, and a search for that of ignoring the inputs."""

    def start(self, chain: int, epoch: int, epochs: int, steps: int, done: int = 0) -> None:
        """Training begins or resumes after `epoch` of `epochs`, of `steps` steps each, `done` of the next."""

    def step(self) -> None:
        """One step is done."""

    def epoch(self, row: Epoch) -> None:
        """One epoch is done."""

    def stop(self) -> None:
        """Training ends, with or without an error."""

    def log(self, message: str) -> None:
        """Show a line."""


class Silent(Progress):
    """Shows nothing."""


class Guarded(Progress):
    """Shows what another display shows; if that fails, this is logged once and training continues."""

    def __init__(self, shown: Progress) -> None:
        self.shown = shown

    @classmethod
    def of(cls, shown: Progress | bool | None) -> Guarded:
        """A display (True: `Printed`), guarded once: a failure is reported once, whoever shows with it."""
        shown = Printed() if shown is True else shown or Silent()
        return shown if isinstance(shown, Guarded) else cls(shown)

    def _show(self, event: str, *what: Any) -> None:
        try:
            getattr(self.shown, event)(*what)
        except Exception as error:  # a closed terminal, an encoding without the letter, a widget's own
            name, self.shown = type(self.shown).__name__, Silent()
            logger.warning("the display %s failed and is now off: %r", name, error)

    def about(self, chain: int, bound: bool, trivial: Callable[[], float | None]) -> None:
        failures = []

        def asked() -> float | None:
            try:
                return trivial()
            except Exception as error:  # it reads the data, whose errors are the training's
                failures.append(error)
                return None

        self._show("about", chain, bound, asked)
        if failures:
            raise failures[0]

    start = partialmethod(_show, "start")
    step = partialmethod(_show, "step")
    epoch = partialmethod(_show, "epoch")
    stop = partialmethod(_show, "stop")
    log = partialmethod(_show, "log")


class Printed(Progress):
    """A progress bar over the steps of each epoch on a terminal; elsewhere, as in a notebook, a few lines.

    That is one after the first and the last epoch, after each twentieth of the epochs between, though never
    two in a second, and after a minute without any. Where the environment says `CI`, as continuous
    integration does, the last epoch alone has a line.
    """

    def __init__(self, file: Any = None, error: str = ", validation error {:.4g}") -> None:
        self.file = sys.stderr if file is None else file
        self.error = error
        self.bound = True
        self.trivial: float | None = None
        self.bar: Any = None
        self.quiet = bool(os.environ.get("CI"))
        self.last_line = -math.inf

    def about(self, chain: int, bound: bool, trivial: Callable[[], float | None]) -> None:
        self.bound = bound
        if chain == 0 or self.trivial is None:  # it is the same for all chains
            self.trivial = trivial()

    def start(self, chain: int, epoch: int, epochs: int, steps: int, done: int = 0) -> None:
        self.first, self.epochs, self.told = epoch + done / steps, epochs, -math.inf
        self.before, self.span = epoch, 1
        self.began = monotonic()
        if self.file.isatty():
            self.bar = tqdm(
                total=epochs * steps, initial=epoch * steps + done, file=self.file, unit="step",
                dynamic_ncols=True,
                bar_format="{desc} |{bar:12}| {elapsed}<{remaining}{postfix}",
            )  # fmt: skip
            self.bar.set_description(f"epoch {epoch}/{epochs}")

    def step(self) -> None:
        if self.bar is not None:
            self.bar.update()

    def epoch(self, row: Epoch) -> None:
        if row.epoch > self.before:  # else a row of another chain of the same batch
            self.before, self.span = row.epoch, row.epoch - self.before
        each = row.seconds / self.span
        left = (monotonic() - self.began) / (row.epoch - self.first) * (self.epochs - row.epoch)
        error = "" if math.isnan(row.validation_error) else self.error.format(row.validation_error)
        beside = "" if self.trivial is None else f" (ignoring the inputs: {self.trivial:.3g})"
        energy = ""
        if row.kl:  # 0: no prior
            loss, part = ("free energy", "KL") if self.bound else ("loss", "prior")
            energy = f"{loss} {row.free_energy:.4g}{beside} = {part} {row.kl:.4g} + "
        line = f"{energy}NLL {row.nll:.4g}{error}"
        if self.bar is not None:
            self.bar.set_description(f"epoch {row.epoch}/{self.epochs}")
            self.bar.set_postfix_str(f"{line}, {each:.3g} s/epoch")
        elif row.epoch == self.epochs or self._due(row.epoch):
            self.last_line, self.told = monotonic(), row.epoch
            timing = f"{each:.3g} s/epoch, {tqdm.format_interval(round(left))} left"
            self.log(f"epoch {row.epoch}/{self.epochs}: {line}, {timing}")

    def _due(self, epoch: int) -> bool:
        waited = monotonic() - self.last_line
        much = epoch - self.told >= self.epochs / LINES
        return not self.quiet and waited > 1 and (much or waited > 60)

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def log(self, message: str) -> None:
        if self.bar is not None:
            self.bar.write(message, file=self.file)
        else:
            print(message, file=self.file, flush=True)
