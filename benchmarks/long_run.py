"""Memory over a long run, and many fits at once: `python -m benchmarks.long_run [--minutes 60]`.

Resident memory is read from the system: after each epoch of one long training, and after every tenth of many
small fits in one process. Before, eight fits are made one after another, in eight threads and in eight
processes, and compared bit for bit.
"""

import argparse
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from time import monotonic

import torch

from benchmarks.small_run import small_run, status
from pyrobbb.data import Blobs
from pyrobbb.experiment import Run
from pyrobbb.models.mlp import mlp
from pyrobbb.training.callbacks import Callback, View
from pyrobbb.training.history import Epoch

GROWTH = 1.02  # of the memory after a tenth; beyond it, memory is not constant


def small(seed: int = 0) -> Run:
    """A fit of a second or so, with predictions."""
    return small_run([50], epochs=3, batch_size=50, seed=seed)


def resident() -> float:
    """Resident memory of this process, in MB."""
    return status("VmRSS") / 1e6


class Watch(Callback):
    """Notes the memory after each epoch, says it ten times, and ends the training when its time is over."""

    def __init__(self, minutes: float) -> None:
        self.minutes, self.began = minutes, 0.0
        self.seen: list[float] = []
        self.said: list[int] = []  # the epochs after which it was said

    def on_epoch(self, view: View, row: Epoch) -> None:
        self.began = self.began or monotonic()  # from the first epoch: compiling takes long
        self.seen.append(resident())
        spent = (monotonic() - self.began) / 60
        if spent >= len(self.said) * self.minutes / 10:
            self.said.append(row.epoch)
            own = f"{status('RssAnon') / 1e6:.1f} MB of it anonymous"
            print(f"  {spent:.0f} min, epoch {row.epoch}: {self.seen[-1]:.1f} MB, {own}", flush=True)
        if spent >= self.minutes:
            view.stop("its time is over")


def training(minutes: float) -> str:
    """One training, with history, checkpoints and validation, for so many minutes."""
    watch = Watch(minutes)
    run = replace(
        small(), data=Blobs(N=20_000, validation=2_000), model=partial(mlp, hidden=[200, 200]),
        epochs=10**6, batch_size=100, checkpoint_seconds=5.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run.execute(folder, callbacks=[watch])
    later = watch.seen[watch.said[1] - 1 :]
    first, early, most = watch.seen[0], later[0], max(later)
    assert most < GROWTH * early, f"memory grew: {early:.1f} MB after a tenth of the time, then {most:.1f}"
    return (
        f"{len(watch.seen):,} epochs in {minutes:g} min: {first:.1f} MB after the first, {early:.1f} after "
        f"a tenth of the time, {watch.seen[-1]:.1f} MB after the last, from then on {most:.1f} MB at most"
    )


def fits(count: int, fast: str = "auto") -> str:
    """So many fits in one process."""
    seen = []
    for i in range(count):
        replace(small(seed=i), fast=fast).execute()
        if (i + 1) % max(count // 10, 1) == 0:
            seen.append(resident())
            print(f"  {i + 1} fits: {seen[-1]:.1f} MB", flush=True)
    assert max(seen) < GROWTH * seen[0], f"memory grew: {seen}"
    return f"{count} fits in one process: {seen[0]:.1f} MB after a tenth of them, {seen[-1]:.1f} MB after all"


def fitted(seed: int) -> list[float]:
    """The parameters of one small fit."""
    torch.set_num_threads(1)
    guide = small(seed).execute().posterior.chains[0][1]
    return [float(value) for parameter in guide.parameters() for value in parameter.detach().flatten()]


def at_once(count: int = 8) -> str:
    """The same fits one after another, in as many threads, and in as many processes."""
    alone = list(map(fitted, range(count)))
    spawning = multiprocessing.get_context("spawn")
    for pool in (ThreadPoolExecutor(count), ProcessPoolExecutor(count, mp_context=spawning)):
        with pool as workers:
            assert list(workers.map(fitted, range(count))) == alone, type(pool).__name__
    return f"{count} fits in {count} threads and in {count} processes: bit for bit those of one after another"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of the one long training; 0: none")
    parser.add_argument("--fits", type=int, default=1000, help="small fits in one process; 0: none")
    parser.add_argument(
        "--fast", default="auto", help="how the many fits are made: auto, compiled, eager, off"
    )
    parser.add_argument("--at-once", type=int, default=8, help="fits in threads and in processes; 0: none")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.at_once:
        print(at_once(arguments.at_once), flush=True)
    if arguments.fits:
        print(fits(arguments.fits, arguments.fast), flush=True)
    if arguments.minutes:
        print(training(arguments.minutes), flush=True)


if __name__ == "__main__":
    main()
