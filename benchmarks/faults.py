"""Faults made on purpose, and what became of the run: `python -m benchmarks.faults [--times 50] [NAME ...]`.

A tiny run is killed, cut off from its disk or robbed of its checkpoint in processes of their own, and is then
given the same call again. A fault counts as survived if the run ends in the very parameters, history, metrics
and posterior of the undisturbed run. A table of earlier code is in `docs/history.md`.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch

from benchmarks.small_run import small_run
from pyrobbb._support import checkpoint
from pyrobbb.evaluation import arviz_io
from pyrobbb.experiment import Run
from pyrobbb.training import history

EPOCHS = 40
Told = tuple[str, str]  # how a fault was made, and what happened


def tiny() -> Run:
    """A run that is mostly writing: a checkpoint of 1 MB after each epoch of two steps."""
    schedule = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=EPOCHS)
    options = {"schedule": schedule, "fast": "eager", "checkpoint_seconds": 0.0}
    return small_run([200, 200], epochs=EPOCHS, batch_size=100, **options)


def forked(work: Callable[[], object], said: Path) -> int:
    """Start `work` in a process of its own; what it says, and an error's message, go to the file `said`."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(file, 1)
        os.dup2(file, 2)
        work()
        status = 0
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def said_by(work: Callable[[], object], folder: Path) -> str:
    """What `work` said in a process of its own if it ended badly, else nothing."""
    said = folder.parent / "said.txt"
    _, status = os.waitpid(forked(work, said), 0)
    return f"status {status}: {said.read_text()}" if status else ""


def run_in(folder: Path) -> Callable[[], object]:
    """The run, in `folder`."""
    return lambda: tiny().execute(folder)


def left(folder: Path) -> dict[str, Any]:
    """All that a finished run leaves, its times left out."""
    state = checkpoint.load(folder / "chain-0.pt")
    metrics = json.loads((folder / "metrics.json").read_text())
    return {
        **{name: state[name] for name in ("guide", "model", "optimizer", "schedule", "noise", "order")},
        "history": [replace(row, seconds=0.0) for row in history.read(folder / "history.csv")],
        "metrics": {name: value for name, value in metrics.items() if name != "train_seconds"},
        "posterior": arviz_io.load(folder / "posterior.nc")["posterior"]["weight"].values,
        "files": sorted(path.name for path in folder.iterdir() if not path.name.endswith(".damaged.pt")),
    }


def same(one: Any, other: Any) -> bool:
    """Equality to the last bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(np.array_equal(one, other))


class Trial:
    """A folder to work in, and what a run that is left alone leaves."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        alone = folder / "alone"
        tiny().execute(alone)  # in this process, so that those forked from it have all modules loaded
        began = monotonic()
        assert not said_by(run_in(folder / "timed"), folder / "timed")
        self.seconds = monotonic() - began
        self.expected = left(alone)
        assert same(left(folder / "timed"), self.expected)

    def ends_the_same(self, folder: Path) -> bool:
        """Whether the run, given the same call again, ends as the one left alone."""
        problem = said_by(run_in(folder), folder)
        if problem:
            print(problem, file=sys.stderr)
        return not problem and same(left(folder), self.expected)

    def killed(self, folder: Path) -> bool:
        """Start the run and kill it from outside, whatever it is doing; False if it ended before."""
        child = forked(run_in(folder), self.folder / "said.txt")
        end = monotonic() + self.random.uniform(0.0, self.seconds)
        while monotonic() < end:
            if os.waitpid(child, os.WNOHANG) != (0, 0):
                return False
            sleep(0.001)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return True

    def while_writing(self, folder: Path) -> bool:
        """The same, at some byte of one of its next checkpoints."""
        saves, byte, real = self.random.randrange(1, 13), self.random.randrange(1_000_000), torch.save

        class Deadly:
            def __init__(self, file: Any) -> None:
                self.file, self.left = file, byte

            def write(self, data: Any) -> int:
                self.left -= len(data)
                if self.left < 0:
                    self.file.flush()
                    os.kill(os.getpid(), signal.SIGKILL)
                return int(self.file.write(data))

            def __getattr__(self, name: str) -> Any:
                return getattr(self.file, name)

        def save(content: Any, file: Any) -> None:
            nonlocal saves
            saves -= 1
            real(content, Deadly(file) if saves == 0 else file)

        return self.dies(folder, lambda: setattr(torch, "save", save))

    def between_renamings(self, folder: Path) -> bool:
        """The same, when a checkpoint has become the one before, and the new one is not in its place yet."""
        saves, real = self.random.randrange(1, 13), Path.replace

        def rename(path: Path, target: Path) -> Path:
            nonlocal saves
            result = real(path, target)
            if str(target).endswith(".before.pt"):
                saves -= 1
                if saves == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return result

        return self.dies(folder, lambda: setattr(Path, "replace", rename))

    def dies(self, folder: Path, prepare: Callable[[], object]) -> bool:
        """Whether a run that `prepare` was called for was killed."""

        def work() -> None:
            prepare()
            tiny().execute(folder)

        _, status = os.waitpid(forked(work, self.folder / "said.txt"), 0)
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def kills(trial: Trial, times: int) -> Told:
    """Kill and resume until it ends; start over until there were enough kills."""
    moments = {"any": trial.killed, "writing": trial.while_writing, "renaming": trial.between_renamings}
    done = dict.fromkeys(moments, 0)
    runs = good = 0
    while sum(done.values()) < times:
        folder = trial.folder / f"killed-{runs}"
        running = True
        while running and sum(done.values()) < times:
            moment = min(moments, key=lambda name: done[name])
            running = moments[moment](folder)
            done[moment] += running
        good += trial.ends_the_same(folder)
        runs += 1
        shutil.rmtree(folder)
    how = (
        f"SIGKILL: {done['any']} at random moments, {done['writing']} at a random byte of a checkpoint, "
        f"{done['renaming']} between its two renamings"
    )
    return how, f"{good} of {runs} runs resumed to the same end"


def damage(trial: Trial, times: int) -> Told:
    """Cut or change the newest checkpoint of a run that was killed."""
    good = fell_back = 0
    folder = trial.folder / "damaged"
    while len(list(folder.glob("chain-0*.pt"))) < 2:
        trial.while_writing(folder)
    for i in range(times):
        copy = trial.folder / f"damaged-{i}"
        shutil.copytree(folder, copy)
        path = copy / "chain-0.pt"
        content = bytearray(path.read_bytes())
        place = trial.random.randrange(len(content))
        if i % 2:
            content[place] ^= 1 << trial.random.randrange(8)
        else:
            del content[place:]
        path.write_bytes(content)
        good += trial.ends_the_same(copy)
        fell_back += (copy / "chain-0.damaged.pt").exists()
        shutil.rmtree(copy)
    outcome = f"{good} runs resumed to the same end, {fell_back} of them from the previous checkpoint"
    return "cut, or one bit changed, at random places", outcome


def lost_posterior(trial: Trial, times: int) -> Told:
    """Cut posterior.nc of a finished run."""
    good = 0
    folder = trial.folder / "alone"
    content = (folder / "posterior.nc").read_bytes()
    for _ in range(times):
        (folder / "posterior.nc").write_bytes(content[: trial.random.randrange(len(content))])
        try:
            arviz_io.load(folder / "posterior.nc")
        except ValueError as error:
            good += "cannot be read as a posterior" in str(error) and trial.ends_the_same(folder)
    return "at random places", f"{good} refused by name, and made again from the checkpoint, the same"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 6 MB at `folder` (tmpfs; needs root)."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def full_disk(trial: Trial, times: int) -> Told:
    """Let the disk fill up in the middle of the run, then free it."""
    good = 0
    for i in range(times):
        with small_disk(trial.folder / f"disk-{i}") as disk:
            free = trial.random.randrange(20_000, 2_600_000)
            (disk / "others").write_bytes(bytes(shutil.disk_usage(disk).free - free))
            problem = said_by(run_in(disk / "run"), trial.folder / "run")
            clear = "cannot write" in problem and "No space left on device" in problem
            whole = not any(disk.glob("run/.*.part"))
            (disk / "others").unlink()
            good += clear and whole and trial.ends_the_same(disk / "run")
    how = "a 6 MB disk with 0.02 to 2.6 MB left, then freed"
    return how, f"{good} stopped with one message and resumed to the same end"


def read_only(trial: Trial, times: int) -> Told:
    """Make the file system read-only under a killed run, and writable again."""
    good = 0
    for i in range(times):
        with small_disk(trial.folder / f"fixed-{i}") as disk:
            folder = disk / "run"
            while not (folder / "chain-0.pt").exists():
                trial.while_writing(folder)
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            problem = said_by(run_in(folder), trial.folder / "run")
            subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
            good += "Read-only file system" in problem and trial.ends_the_same(folder)
    return "remounted read-only between two runs", f"{good} refused by name, then resumed to the same end"


def two_runs(trial: Trial, times: int) -> Told:
    """Start a second run in the folder of one that is at work."""
    good = 0
    for i in range(times):
        folder = trial.folder / f"twice-{i}"
        first = forked(run_in(folder), trial.folder / "said.txt")
        while not (folder / "chain-0.pt").exists():
            sleep(0.001)
        problem = said_by(run_in(folder), trial.folder / "second" / "run")
        _, status = os.waitpid(first, 0)
        good += status == 0 and "another run is working in" in problem and same(left(folder), trial.expected)
    return "the second while the first trains", f"{good} seconds refused"


def clock(trial: Trial, times: int) -> Told:
    """Let the clock jump by up to a year, backwards too, at every look."""
    good, real = 0, time.time

    def work(folder: Path) -> None:
        time.time = lambda: real() + random.uniform(-3e7, 3e7)
        tiny().execute(folder)

    for i in range(times):
        folder = trial.folder / f"clock-{i}"
        good += not said_by(partial(work, folder), folder) and same(left(folder), trial.expected)
    return "time.time() up to a year off at each call", f"{good} ended the same"


FAULTS: dict[str, tuple[str, Callable[[Trial, int], Told]]] = {
    "kills": ("kill -9", kills),
    "damage": ("checkpoint damaged", damage),
    "posterior": ("posterior.nc cut", lost_posterior),
    "disk": ("disk full", full_disk),
    "read-only": ("folder not writable", read_only),
    "two": ("two runs in one folder", two_runs),
    "clock": ("clock jumps", clock),
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which: {', '.join(FAULTS)}; by default all"
    )
    parser.add_argument("--times", type=int, default=50, help="how often each")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(FAULTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    torch.set_num_threads(1)  # no threads, so that a process can be forked
    with tempfile.TemporaryDirectory(prefix="pyrobbb-faults-") as name:
        (Path(name) / "second").mkdir()
        trial = Trial(Path(name), arguments.seed)
        print("| fault | how | times | what happened |\n|---|---|---|---|", flush=True)
        for fault in arguments.names or FAULTS:
            title, make = FAULTS[fault]
            how, outcome = make(trial, arguments.times)
            print(f"| {title} | {how} | {arguments.times} | {outcome} |", flush=True)


if __name__ == "__main__":
    main()
