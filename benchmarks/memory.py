"""Peak memory, each case in a process of its own: `python -m benchmarks.memory CASE [WIDTH] [DRAWS]`.

A process is measured whole, as the operating system counts it (resident set), torch included. Where the
system can forget an earlier peak (Linux), what was needed to make or compile the step does not count.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks import prediction, steps
from benchmarks.peers import PEERS
from benchmarks.small_run import status
from benchmarks.timing import Work
from pyrobbb._support.random_state import isolated

STEPS: dict[str, Callable[[int], Work]] = {
    "plain": steps.plain,
    "ours": steps.ours,
    "ours, 10 samples": partial(steps.ours, samples=10),
    "reference": partial(steps.ours, fast="off"),
    "pyro": steps.usual,
    **{name: make for name, (_, make) in PEERS.items()},
}


def peak() -> float:
    """The largest resident set so far, in MiB."""
    if sys.platform == "linux":
        return status("VmHWM") / 2**20
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def forget() -> None:
    """Let the peak begin again at the present size, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def case(name: str, width: int, draws: int) -> dict[str, float]:
    """Run one case here; MiB before and at the peak, and seconds."""
    start = peak()
    with isolated(0):
        if name == "predict":
            fitted, x = prediction.posterior(width), prediction.images()
            fitted.predict(x[:10], draws=1)
            forget()
            began = perf_counter()
            fitted.predict(x, draws=draws)
        else:
            step = STEPS[name](width)
            step()
            forget()
            began = perf_counter()
            for _ in range(5):
                step()
    return {"start": start, "peak": peak(), "seconds": perf_counter() - began}


def measure(name: str, width: int, draws: int = 0) -> dict[str, float] | None:
    """`case` in a fresh process; None if it does not run, a peer that is not installed for one."""
    command = [sys.executable, "-m", "benchmarks.memory", name, str(width), str(draws)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(case(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
