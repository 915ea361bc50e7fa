"""The parts of the scoreboard by name: each has `run`, which fits, and `report`, which prints a record."""

from __future__ import annotations

from types import ModuleType

from experiments.scoreboard import agreement, detection, regressions

PARTS: dict[str, ModuleType] = {
    "regressions": regressions,
    "detection": detection,
    "agreement": agreement,
}
