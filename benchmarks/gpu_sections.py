"""What `python -m benchmarks.gpu` measures: one function per section, each giving the record's part of it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks import steps
from benchmarks.timing import Work, figures, in_turn, ratio, spread
from experiments._runner.build import build
from experiments._runner.compose import compose
from experiments.paper import table1
from pyrobbb._support.device import tf32_products
from pyrobbb._support.random_state import isolated
from pyrobbb.training import history
from pyrobbb.training.callbacks import Callback, View
from pyrobbb.training.trainer import train

EPOCHS = 600
CHAINS = 5
SAMPLE = 6  # epochs that are timed for the reckoning; the first is left out
BURST = 50
WIDE = ["model.hidden=[1200,1200]", "fast=compiled", "device=cuda", "seed=1"]


def device() -> dict[str, Any]:
    """What the figures were taken on."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "memory_GiB": round(properties.total_memory / 2**30),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "TF32": torch.backends.cuda.matmul.allow_tf32,
    }


def step(width: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of a step, the device's work waited for once per burst."""
    told = {name: steps.Told(name) for name in ("ours", "ours, TF32", "ours, not compiled")}
    with isolated(0, device="cuda"):
        own = partial(steps.ours, width, device="cuda")
        works = {
            "ours": own(told=told["ours"]),
            "ours, TF32": _in_tf32(own(tf32=True, told=told["ours, TF32"])),
            "ours, not compiled": own("eager", told=told["ours, not compiled"]),
            "reference": own("off"),
            "plain": steps.plain(width, device="cuda"),
            "pyro": steps.usual(width, device="cuda"),
        }
        times = in_turn({name: _many(work) for name, work in works.items()}, rounds, burst=1)
    values = {name: [t / BURST for t in given] for name, given in times.items()}
    for name, given in values.items():
        ms = spread(given)
        told_ms = f"{ms.middle:8.4f}  ({ms.low:.4f}-{ms.high:.4f})"
        print(f"  {name:20} {told_ms}   ours is {ratio(values['ours'], given)} times it")
    return {
        "ms": {name: round(spread(given).middle, 4) for name, given in values.items()},
        **figures("ratio_to_plain", ratio(values["ours"], values["plain"])),
        **figures("pyro_over_ours", ratio(values["pyro"], values["ours"])),
        "said": {name: one.lines for name, one in told.items()},
    }


def _in_tf32(work: Work) -> Work:
    """The first steps are not in the graph yet."""

    def taken() -> None:
        with tf32_products(True):
            work()

    return taken


def _many(work: Work) -> Work:
    def burst() -> None:
        for _ in range(BURST):
            work()
        torch.cuda.synchronize()

    return burst


def profile(folder: Path, *, tf32: bool = False) -> dict[str, Any]:
    """The kernels of an epoch of 2x1200 by their time on the device, and the wall-clock time of a step.

    As in any training: from the second epoch on, many steps go with one launch.
    """
    settings = [*WIDE, "epochs=6", "data.validation=0", f"tf32={str(tf32).lower()}"]
    run = build(compose("table1_mixture", settings, folder=folder))
    told, seen = steps.Told("profile"), _Profiled(3)  # not 4: the recording is checked then
    training = run.training(run.data.load().to("cuda"), 0, None, progress=told, callbacks=[seen])
    training.run()
    count, rows = training.M, training.history.rows
    wall = 1e3 * min(row.seconds for row in rows[2:]) / count
    events = sorted(seen.profiler.key_averages(), key=lambda event: -event.device_time_total)
    kernels = [
        {"name": e.key[:80], "us": round(e.device_time_total / count, 2), "calls": round(e.count / count, 2)}
        for e in events
        if e.device_time_total > 0
    ]
    for kernel in kernels:
        print(f"  {kernel['us']:8.2f} us {kernel['calls']:6.2f} times  {kernel['name']}")
    return {
        "wall_ms": round(wall, 4),
        "kernels_ms": round(sum(kernel["us"] for kernel in kernels) / 1e3, 4),
        "launches": round(sum(kernel["calls"] for kernel in kernels), 1),
        "kernels": kernels,
        "said": told.lines,
    }


class _Profiled(Callback):
    """Profiles the epoch after the given one."""

    def __init__(self, after: int) -> None:
        self.after, self.epochs = after, 0
        self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def on_epoch(self, view: View, row: history.Epoch) -> None:
        torch.cuda.synchronize()
        self.epochs += 1
        if self.epochs == self.after:
            self.profiler.start()
        elif self.epochs == self.after + 1:
            self.profiler.stop()


def chains(width: int) -> dict[str, Any]:
    """Seconds of an epoch of each chain, one after the other and side by side, and whether they end alike."""
    settings = [f"model.hidden=[{width},{width}]", *WIDE[1:], "epochs=6", "data.validation=0"]
    run = build(compose("table1_mixture", settings, folder=""))
    data, told = run.data.load().to("cuda"), steps.Told("chains")
    seconds, ends = {}, []
    for way in ("alone", "together"):
        made = [run.training(data, chain, None, progress=told) for chain in range(CHAINS)]
        for some in [made] if way == "together" else [[training] for training in made]:
            train(some)
        seconds[way] = median(row.seconds for training in made for row in training.history.rows[2:])
        ends.append([p.detach() for training in made for p in training.named.values()])
    return {
        "chains": CHAINS,
        "seconds_per_epoch": {way: round(each, 4) for way, each in seconds.items()},
        "same": all(torch.equal(one, other) for one, other in zip(*ends, strict=True)),
        "said": told.lines,
    }


def suite(paths: Sequence[str], *more: str, hidden: bool = False) -> dict[str, Any]:
    """Run tests in a process of their own; `hidden` hides the device from them."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", *paths, *more]
    around = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if hidden else {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=around)
    lines = done.stdout.strip().splitlines()[-30:] + done.stderr.strip().splitlines()[-10:]
    print("\n".join(lines))
    return {"status": done.returncode, "said": lines}


def cell(folder: Path, count: int = 20) -> dict[str, Any]:
    """`count` epochs of the slowest row of Table 1; minutes of all its cells, multiplied out."""
    settings = [*WIDE, f"epochs={count}"]
    run = build(compose("table1_mixture_sgd", settings, folder=folder))
    told = steps.Told("cell")
    training = run.training(run.data.load().to("cuda"), 0, None, progress=told)
    began = perf_counter()
    training.run()
    seconds = (perf_counter() - began) / count
    return {
        "seconds_per_epoch": round(seconds, 4),
        "minutes_for_45_cells_reckoned": round(45 * EPOCHS * seconds / 60, 1),
        "said": told.lines,
    }


def epochs(folder: Path, count: int) -> dict[str, Any]:
    """Train 2x1200 on MNIST for `count` epochs, the declared run of Table 1; wall-clock seconds.

    With `EPOCHS` the run keeps its checkpoints in `folder` and resumes from there; its seconds are then
    those of its history, which leave out the validation after each epoch.
    """
    whole = count == EPOCHS
    settings = [*WIDE, f"epochs={count}"]
    run = build(compose("table1_mixture", settings, folder=folder))
    began = perf_counter()
    data = run.data.load().to("cuda")
    told, ends = steps.Told("2x1200"), _Ends()
    training = run.training(
        data, 0, folder if whole else None, progress=told, callbacks=[] if whole else [ends]
    )
    resumed = whole and training.resume()
    made = perf_counter()
    training.run()
    torch.cuda.synchronize()
    done = perf_counter()
    found: dict[str, Any] = {"preparation_seconds": round(made - began, 2), "said": told.lines}
    if whole:
        rows = history.read(folder / "history.csv")
        found |= {"seconds": round(sum(row.seconds for row in rows), 2), "resumed": resumed}
        if not resumed:
            found["wall_seconds"] = round(done - made, 2)
        found["validation_error"] = rows[-1].validation_error
        return found
    each = median(b - a for a, b in pairwise(ends.at))
    return found | {"seconds_per_epoch": round(each, 4), "seconds_for_600_reckoned": round(each * EPOCHS, 2)}


class _Ends(Callback):
    """Notes when each epoch ended, the device's work and the validation included."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_epoch(self, view: View, row: history.Epoch) -> None:
        torch.cuda.synchronize()
        self.at.append(perf_counter())


def paper_table(folder: Path) -> dict[str, Any]:
    """Table 1 in full; minutes of training of all its cells, and of this call."""
    began = perf_counter()
    table1.main(["form=full", "device=cuda", f"folder={folder}"])
    cells = json.loads((folder / "full" / "record.json").read_text(encoding="utf-8"))["cells"]
    seconds = sum(cell["metrics"]["train_seconds"] for cell in cells)
    return {
        "cells": len(cells),
        "training_minutes": round(seconds / 60, 2),
        "minutes_of_the_last_call": round((perf_counter() - began) / 60, 2),
    }
