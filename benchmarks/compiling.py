"""Seconds that compilation takes, in fresh processes: `python -m benchmarks.compiling PROGRAM`.

"Cold" is with an empty cache, "cached" the next process on the same machine. The seconds are those that a
training itself announces. Each program is one that the library chooses for some run.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable

from pyro.infer.autoguide import AutoNormal
from torch import nn

from benchmarks import steps
from pyrobbb.mean_field import MeanFieldNormal

PROGRAMS: dict[str, tuple[int, Callable[..., nn.Module]]] = {
    "2x1200, one sample": (1200, MeanFieldNormal),
    "2x50, one sample": (50, MeanFieldNormal),
    "2x400, AutoNormal": (400, AutoNormal),
}


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
    width, guide = PROGRAMS[sys.argv[1]]
    steps.training(width, "compiled", guide=guide)  # which says how long it compiled
