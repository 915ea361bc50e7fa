"""The parts of the scoreboard by name: `run` of each fits and leaves a record, `report` prints one."""

from __future__ import annotations

from types import ModuleType

from experiments.scoreboard import agreement, detection, regressions

PARTS: dict[str, ModuleType] = {
    "regressions": regressions,
    "detection": detection,
    "agreement": agreement,
}
