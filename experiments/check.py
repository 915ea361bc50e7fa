"""Did it work? A verdict on a run folder: `python -m experiments.check runs/mnist/default`.

Trains on for a moment with the paper's objective, compares the free energy with that of ignoring the inputs,
the held-out rows with their predictions, and restarts with one another. Writes `check.json` into the folder,
and `report.html` again if it is there.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path

from experiments import report
from experiments._runner.command import folder_command
from experiments._runner.reopen import reopen
from pyrobbb._support.files import write_text
from pyrobbb.checkup import check, verdict


def checked(folder: Path, trust: bool = False) -> str:
    """Check a run folder, and report what was found."""
    run = reopen(folder, trust=trust)
    findings = check(run.posterior, run.data, seed=run.run.seed)
    said = verdict(findings)
    write_text(
        folder / "check.json",
        json.dumps({"verdict": said, "findings": [asdict(finding) for finding in findings]}, indent=1) + "\n",
    )
    lines = [*map(str, findings), said, report.renew(folder, trust=trust)]
    return "\n".join(filter(None, lines))


def options(parser: ArgumentParser) -> None:
    """The options of `check`."""
    parser.add_argument("--trust", action="store_true", help="call whatever parts config.yaml names")


def main() -> None:
    """The command line."""
    folder_command("experiments.check", __doc__, checked, options)


if __name__ == "__main__":
    main()
