"""Seconds that compilation takes, in fresh processes: `python -m benchmarks.compiling PROGRAM`.

"Cold" is with an empty cache, "cached" the next process on the same machine. The seconds are those that a
training itself announces. Each program is one that the library chooses for some run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial

import torch
from pyro.infer.autoguide import AutoNormal

from benchmarks import steps
from pyrobbb.data.dataset import Dataset, Spec, Split
from pyrobbb.training.progress import Silent
from pyrobbb.training.trainer import Training

PROGRAMS: dict[str, dict[str, int | bool]] = {
    "2x1200, one sample": {"width": 1200},
    "2x50, one sample": {"width": 50},
    "2x400, AutoNormal": {"width": 400, "auto": True},
}


class _Heard(Silent):
    """Prints what a training says."""

    def log(self, message: str) -> None:
        print(message, flush=True)


def case(width: int, samples: int = 1, auto: bool = False) -> None:
    """Make one training, which says how long it compiled."""
    x, y = steps.rows()
    data = Dataset("made", Split(x, y), Spec(len(x), (steps.INPUTS,), steps.CLASSES, "classification"))
    model = steps.network(width, len(x))
    make: Callable[..., torch.nn.Module] = AutoNormal if auto else steps.MeanFieldNormal
    optim = partial(torch.optim.Adam, lr=1e-3)
    Training(
        model, make(model), data, epochs=1, optim=optim, samples=samples, fast="compiled",
        device="cpu", progress=_Heard(),
    )  # fmt: skip


def measure(program: str) -> dict[str, float]:
    """Seconds in a process with an empty cache, and in the next one."""
    seconds = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
        command = [sys.executable, "-m", "benchmarks.compiling", program]
        for when in ("cold", "cached"):
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            found = re.search(r"compiled .* in ([\d.]+) s", done.stdout)
            if found is None:
                raise RuntimeError(f"{program}: {done.stdout.strip() or done.stderr.strip()}")
            seconds[when] = float(found[1])
    return seconds


if __name__ == "__main__":
    case(**PROGRAMS[sys.argv[1]])  # type: ignore[arg-type]
