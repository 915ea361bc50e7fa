"""The GPU section: `python -m benchmarks.gpu [--json FILE] [--full] [--table1] [--folder F]`.

Milliseconds of a step (as a CUDA graph, without it, a plain network, Pyro's eager loop), 600 epochs of the
paper's 2x1200 network on MNIST, and Table 1. Without `--full` some epochs are timed and 600 of them reckoned
from these; with it all 600 are trained. `--table1` trains the whole of Table 1. Both resume where they
stopped, and what the file already holds is not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks import steps
from benchmarks.timing import Spread, Work, figures, in_turn, ratio, spread
from experiments._runner.build import build
from experiments._runner.compose import compose
from experiments.paper import table1
from pyrobbb._support.files import write_text
from pyrobbb._support.random_state import isolated
from pyrobbb.training import history
from pyrobbb.training.callbacks import Callback, View
from pyrobbb.training.progress import Printed

EPOCHS = 600
SAMPLE = 6  # epochs that are timed for the reckoning; the first is left out
BURST = 200


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "memory_GiB": round(properties.total_memory / 2**30),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "TF32": torch.backends.cuda.matmul.allow_tf32,
    }


def step(rounds: int) -> dict[str, Any]:
    """Milliseconds of a step at 2x400 and 2x1200, the device's work waited for once per burst."""
    found: dict[str, Any] = {}
    for width in (400, 1200):
        told = {name: steps.Told(name) for name in ("ours", "ours, not compiled")}
        with isolated(0, device="cuda"):
            works = {
                "ours": steps.ours(width, device="cuda", told=told["ours"]),
                "ours, not compiled": steps.ours(
                    width, "eager", device="cuda", told=told["ours, not compiled"]
                ),
                "reference": steps.ours(width, "off", device="cuda"),
                "plain": steps.plain(width, device="cuda"),
                "pyro": steps.usual(width, device="cuda"),
            }
            times = in_turn({name: _many(work) for name, work in works.items()}, rounds, burst=1)
        values = {name: [t / BURST for t in given] for name, given in times.items()}
        print(f"\n784-{width}-{width}-10 on CUDA: ms per step; {rounds} times {BURST} steps")
        for name, given in values.items():
            print(f"  {name:20} {_fine(spread(given))}   ours is {ratio(values['ours'], given)} times it")
        found[f"2x{width}"] = {
            "ms": {name: round(spread(given).middle, 4) for name, given in values.items()},
            **figures("ratio_to_plain", ratio(values["ours"], values["plain"])),
            **figures("ratio_to_pyro", ratio(values["ours"], values["pyro"])),
            **figures("pyro_over_ours", ratio(values["pyro"], values["ours"])),
            "said": {name: one.lines for name, one in told.items()},
        }
    return found


def _many(work: Work) -> Work:
    def burst() -> None:
        for _ in range(BURST):
            work()
        torch.cuda.synchronize()

    return burst


def _fine(value: Spread) -> str:
    return f"{value.middle:8.4f}  ({value.low:.4f}-{value.high:.4f})"


def epochs(folder: Path, count: int) -> dict[str, Any]:
    """Train 2x1200 on MNIST for `count` epochs, the declared run of Table 1; wall-clock seconds.

    With `EPOCHS` the run keeps its checkpoints in `folder` and resumes from there; its seconds are then
    those of its history, which leave out the validation after each epoch.
    """
    whole = count == EPOCHS
    settings = ["model.hidden=[1200,1200]", f"epochs={count}", "fast=compiled", "device=cuda", "seed=1"]
    run = build(compose("table1_mixture", settings, folder=folder))
    began = perf_counter()
    data = run.data.load().to("cuda")
    told, ends = steps.Told("2x1200"), _Ends()
    seen: dict[str, Any] = {"progress": Printed()} if whole else {"progress": told, "callbacks": [ends]}
    training = run.training(data, 0, folder if whole else None, **seen)
    resumed = whole and training.resume()
    made = perf_counter()
    training.run()
    torch.cuda.synchronize()
    done = perf_counter()
    found: dict[str, Any] = {"preparation_seconds": round(made - began, 2)}
    if whole:
        rows = history.read(folder / "history.csv")
        found |= {"seconds": round(sum(row.seconds for row in rows), 2), "resumed": resumed}
        if not resumed:
            found["wall_seconds"] = round(done - made, 2)
        found["validation_error"] = rows[-1].validation_error
        return found
    each = median(b - a for a, b in pairwise(ends.at))
    found |= {"seconds_per_epoch": round(each, 4), "seconds_for_600_reckoned": round(each * EPOCHS, 2)}
    found["said"] = told.lines
    return found


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
    cells = json.loads((folder / "full" / "table1.json").read_text(encoding="utf-8"))
    seconds = sum(cell["metrics"]["train_seconds"] for cell in cells)
    return {
        "cells": len(cells),
        "training_minutes": round(seconds / 60, 2),
        "minutes_of_the_last_call": round((perf_counter() - began) / 60, 2),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--json", metavar="FILE", type=Path, default=Path("runs/bench/gpu.json"))
    parser.add_argument("--folder", metavar="F", type=Path, default=Path("runs/bench/gpu"))
    parser.add_argument("--full", action="store_true", help=f"train all {EPOCHS} epochs of 2x1200")
    parser.add_argument("--table1", action="store_true", help="train Table 1 in full")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: torch finds no CUDA device here, and these figures are of a GPU", file=sys.stderr)
        return 2
    found: dict[str, Any] = {"machine": machine()}
    if options.json.exists():
        before = json.loads(options.json.read_text(encoding="utf-8"))
        if before.get("machine") != found["machine"]:
            print(f"error: {options.json} is of another machine: {before.get('machine')}", file=sys.stderr)
            return 2
        found = before
    print(", ".join(f"{key} {value}" for key, value in found["machine"].items()))
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "step": lambda: step(options.rounds),
        "epochs": lambda: epochs(options.folder / "some", SAMPLE),
    }
    if options.full:
        sections["epochs_600"] = lambda: epochs(options.folder / "2x1200", EPOCHS)
    if options.table1:
        sections["table1"] = lambda: paper_table(options.folder / "table1")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    for name, measure in sections.items():
        if name not in found:
            found[name] = measure()
            write_text(options.json, json.dumps(found, indent=2) + "\n")
        if name != "step":
            print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in found[name].items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
