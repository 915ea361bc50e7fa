"""The scoreboard of inference methods: its tables from docs/records/scoreboard_*.json."""

from __future__ import annotations

from types import ModuleType

from experiments.results.records import NOT_RUN, Record, Records
from experiments.results.tables import Text, of
from experiments.scoreboard import agreement, choose, detection, regressions

PARTS: dict[str, ModuleType] = {
    "regressions": regressions,
    "detection": detection,
    "agreement": agreement,
}


def which(records: Records) -> str:
    """Which method when: a line for each, from the parts that are recorded."""
    found = {part: record for part in PARTS if (record := records.get(f"scoreboard_{part}")) is not None}
    return choose.markdown(found) if found else f"{NOT_RUN[0].upper()}{NOT_RUN[1:]}."


def part(name: str) -> Text:
    """The tables of one part, as its command prints them."""

    def words(record: Record) -> str:
        return f"```\n{PARTS[name].report(record)}\n```"

    return of(f"scoreboard_{name}", words)


SCOREBOARD: dict[str, Text] = {
    "scoreboard": which,
    **{f"scoreboard.{name}": part(name) for name in PARTS},
}
