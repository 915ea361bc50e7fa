"""The GPU's figures: `python -m benchmarks.gpu FOLDER [--first] [--only SECTION ...] [--rounds N]`.

Sections of at most eight minutes each; FOLDER/gpu.json is written after every one, and the same command
resumes: what stands there is not measured again. Beside each figure stands what was reckoned without a
device. `--first` is the first run on a new one: tests, profile, steps, 600 epochs and a cell of Table 1, each
with a verdict; a section that fails does not keep the others from running.
"""

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import gpu_sections as measure
from experiments._runner.record import provenance
from pyrobbb._support.files import read_json, write_json
from pyrobbb._support.text import kind_and_reason

MINUTES = 8
COUNTED = Path(__file__).parents[1] / "docs" / "records" / "cuda_kernels.json"
BANDWIDTH, LAUNCH = 4.3e12, 1.5e-6  # bytes a second, seconds
PRODUCTS = {"Adam": 87e-6, "Adam, TF32": 55e-6}  # seconds of the eight products at 2x1200, on an H200
STEPS = 391 * measure.EPOCHS
SLOWER = ("training with", "training more slowly", "training step by step")  # how such a line begins
FAST_PATH = ["tests/accelerated", "tests/test_mean_field.py"]
Found = dict[str, Any]


class Section(NamedTuple):
    """What to measure, whether the first run asks for it, and whether it is as it should be, in a line."""

    measure: Callable[[Path, int], Found]
    first: bool
    verdict: Callable[[Found], tuple[bool, str]]


def reckoned(case: str = "Adam") -> float:
    """Milliseconds of a step at 2x1200, from the kernels and bytes of its generated code.

    It is a floor: the noise, the logarithms and the exponentials take longer than their bytes.
    """
    kernels = json.loads(COUNTED.read_text(encoding="utf-8"))[case]["kernels"]
    own = [large for name, large, _ in kernels if name.startswith(("triton", "normal_"))]
    return 1e3 * (sum(own) / BANDWIDTH + LAUNCH * len(kernels) + PRODUCTS[case])


def _lost(lines: Iterable[str]) -> list[str]:
    """What a training said of a slower path."""
    return [line for line in lines if line.startswith(SLOWER)]


def _passed(found: Found) -> tuple[bool, str]:
    return found["status"] == 0, found["said"][-1] if found["said"] else "no output"


def _profiled(found: Found) -> tuple[bool, str]:
    kernels, wall = found["kernels_ms"], found["wall_ms"]
    text = f"{found['launches']} kernels, {kernels} ms of {wall} ms a step (reckoned: {_both()})"
    lost = _lost(found["said"])
    text += "" if kernels >= 0.7 * wall else ": bound by the host"
    return kernels >= 0.7 * wall and not lost, "; ".join([text, *lost])


def _both() -> str:
    return f"{reckoned():.2f} ms, {reckoned('Adam, TF32'):.2f} ms in TF32"


def _stepped(width: int, found: Found) -> tuple[bool, str]:
    ms, faster = found["ms"], found["pyro_over_ours"]
    text = f"{ms['ours']} ms, {ms['ours, TF32']} in TF32; {faster:.1f} times as fast as Pyro's loop"
    lost = _lost(chain(*found["said"].values()))
    if width == 1200:
        text += f" (reckoned: {_both()}; at least 15 times)"
    return not lost and faster >= 15, "; ".join([text, *lost])


def _together(found: Found) -> tuple[bool, str]:
    alone, together = (found["seconds_per_epoch"][way] for way in ("alone", "together"))
    text = f"{found['chains']} chains take {together / alone:.2f} of their time one after the other"
    lost = [line for line in found["said"] if not line.startswith("compiling")]
    lost += [] if found["same"] else ["they do not end alike"]
    return together < alone and not lost, "; ".join([text, *lost])


def _trained(found: Found) -> tuple[bool, str]:
    seconds = found.get("seconds", found.get("seconds_for_600_reckoned"))
    lost = _lost(found.get("said", []))
    text = f"600 epochs of 2x1200 in {seconds} s (reckoned: {STEPS * reckoned() / 1e3:.0f}; aim: 60)"
    return seconds < 60 and not lost, "; ".join([text, *lost])


def _table(found: Found) -> tuple[bool, str]:
    minutes = found.get("training_minutes", found.get("minutes_for_45_cells_reckoned"))
    lost = _lost(found.get("said", []))
    text = f"Table 1's 45 cells in {minutes} minutes (aim: 15, with the seeds of a cell side by side)"
    return minutes < 15 and not lost, "; ".join([text, *lost])


SECTIONS = {
    "tests": Section(lambda *_: measure.suite(["tests/test_cuda.py"]), True, _passed),
    "cpu_tests": Section(lambda *_: measure.suite(FAST_PATH, hidden=True), True, _passed),
    "suite": Section(lambda *_: measure.suite(["tests"], "-n", "auto"), False, _passed),
    "profile": Section(lambda at, _: measure.profile(at / "profile"), True, _profiled),
    "profile_tf32": Section(lambda at, _: measure.profile(at / "profile", tf32=True), False, _profiled),
    "step_400": Section(lambda _, rounds: measure.step(400, rounds), False, partial(_stepped, 400)),
    "step_1200": Section(lambda _, rounds: measure.step(1200, rounds), True, partial(_stepped, 1200)),
    "chains_400": Section(lambda *_: measure.chains(400), True, _together),
    "chains_1200": Section(lambda *_: measure.chains(1200), True, _together),
    "epochs": Section(lambda at, _: measure.epochs(at / "some", measure.SAMPLE), False, _trained),
    "epochs_600": Section(lambda at, _: measure.epochs(at / "2x1200", measure.EPOCHS), True, _trained),
    "cell": Section(lambda at, _: measure.cell(at / "cell"), True, _table),
    "table1": Section(lambda at, _: measure.paper_table(at / "table1"), False, _table),
}


@contextmanager
def limited(minutes: float) -> Iterator[None]:
    """Interrupt the body as Ctrl-C does after so many minutes: a training then leaves a checkpoint."""
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(names: list[str], folder: Path, rounds: int, found: Found) -> bool:
    """Measure what `found` lacks, write it after each section, and print a verdict; whether all are good."""
    good = True
    for name in names:
        section = SECTIONS[name]
        if name not in found:
            print(f"\n{name}", flush=True)
            try:
                with limited(MINUTES):
                    found[name] = section.measure(folder, rounds)
            except (Exception, KeyboardInterrupt) as error:
                if isinstance(error, KeyboardInterrupt):
                    print(
                        f"UNFINISHED {name}: {MINUTES} minutes at most; the same command resumes", flush=True
                    )
                else:
                    traceback.print_exc()
                    print(f"FAILED {name}: {kind_and_reason(error)}", flush=True)
                good = False
                continue
            write_json(folder / "gpu.json", found, indent=2)
        holds, text = section.verdict(found[name])
        good &= holds
        print(f"{'GOOD' if holds else 'BAD'} {name}: {text}", flush=True)
    return good


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where results go, and what resumes")
    parser.add_argument("--first", action="store_true", help="the checklist of a first run on a device")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: torch finds no CUDA device here, and these figures are of a GPU", file=sys.stderr)
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "gpu.json"
    found: Found = read_json(path)
    device = measure.device()
    if found.setdefault("device", device) != device:
        print(f"error: {path} is of another machine: {found['device']}", file=sys.stderr)
        return 2
    print(", ".join(f"{key} {value}" for key, value in device.items()))
    usual = ["profile", "step_400", "step_1200", "epochs"]
    first = [name for name, section in SECTIONS.items() if section.first]
    names = options.only or (first if options.first else usual)
    asked = ["--only", *names] if options.only else ["--first"] * options.first
    found = provenance(" ".join(["python -m benchmarks.gpu", *asked, f"--rounds {options.rounds}"])) | found
    return 0 if run(names, options.folder, options.rounds, found) else 1


if __name__ == "__main__":
    sys.exit(main())
