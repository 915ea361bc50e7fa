"""How fast, on the CPU: `python -m benchmarks.run [--json FILE] [--plot FILE] [--only step prediction ...]`.

Every figure is a ratio to something timed beside it in the same run, with its quartiles, or says its unit.
`python -m benchmarks.gpu` is for a machine with CUDA.
"""

import argparse
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import report
from experiments._runner.record import provenance, write_record


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
        "gradients": report.of_gradients,
        "prediction": report.predict,
        "memory": report.use_of_memory,
        "growth": report.growing,
        "compile": report.compilation,
        "replay": report.replay,
        "guides": report.of_guides,
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
    head = provenance(command)
    log(f"{head['machine']}, torch {head['versions']['torch']}")
    found: dict[str, Any] = {}
    began = perf_counter()

    def keep() -> None:
        if options.json:
            write_record(options.json, command, found)

    for name in options.only:
        found[name] = sections[name](options.rounds, log)
        keep()  # what is there so far, should a later section fail
    found["targets"] = report.targets(found, log)
    found["seconds"] = round(perf_counter() - began)
    log(f"\n{found['seconds']} s in all")
    keep()


if __name__ == "__main__":
    main()
