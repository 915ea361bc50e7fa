"""Which method when, and what was spent to know it, from the records of the scoreboard."""

from __future__ import annotations

from experiments.results.records import NOT_RUN, Record, Records, made_by
from experiments.scoreboard import choose


def found(records: Records) -> dict[str, Record]:
    """The records by part; without those that are not there."""
    each = {part: records.get(f"scoreboard_{part}") for part in choose.PARTS}
    return {part: record for part, record in each.items() if record is not None}


def which(records: Records) -> str:
    """A line for each method."""
    parts = found(records)
    return choose.markdown(parts) if parts else NOT_RUN


def budget(records: Records) -> str:
    """What each method could spend, by part."""
    parts = found(records)
    return "\n".join(f"- {choose.spent(record)} {made_by(record)}" for record in parts.values()) or NOT_RUN


SCOREBOARD = {"scoreboard": which, "scoreboard_budget": budget}
