"""How fast, on the CPU: `python -m benchmarks.run [--json FILE] [--plot FILE] [--only step prediction ...]`.

Every figure is a ratio to something timed beside it in the same run, with its quartiles, or says its unit.
`python -m benchmarks.gpu` is for a machine with CUDA.
"""

from __future__ import annotations

import argparse
import json
import platform
from datetime import date
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks import report
from benchmarks.steps import BATCH
from pyrobbb._support.files import write_text


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "processor": processor(),
        "batch": BATCH,
        "prior": "scale mixture",
    }


def processor() -> str:
    """The processor's name where the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")
    parser.add_argument("--plot", metavar="FILE", type=Path, default=Path("runs/bench/growth.png"))
    parser.add_argument("--rounds", type=int, default=10, help="how often each thing is timed")
    sections = {
        "step": report.step,
        "parts": report.parts_of_step,
        "estimators": report.of_estimators,
        "prediction": report.predict,
        "memory": report.use_of_memory,
        "growth": report.growing,
        "compile": report.compilation,
        "restarts": report.restarted,
        "bandit": report.bandits,
    }
    parser.add_argument(
        "--only", nargs="+", choices=list(sections), default=list(sections), metavar="SECTION"
    )
    options = parser.parse_args()
    sections["growth"] = partial(report.growing, path=options.plot)
    log = partial(print, flush=True)
    command = " ".join(["python -m benchmarks.run --only", *options.only])
    found: dict[str, Any] = {"command": command, "date": date.today().isoformat(), "machine": machine()}
    log(", ".join(f"{key} {value}" for key, value in found["machine"].items()))
    began = perf_counter()
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        found[name] = sections[name](options.rounds, log)
        if options.json:  # what is there so far, should a later section fail
            write_text(options.json, json.dumps(found, indent=2) + "\n")
    found["targets"] = report.targets(found, log)
    found["seconds"] = round(perf_counter() - began)
    log(f"\n{found['seconds']} s in all")
    if options.json:
        write_text(options.json, json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
