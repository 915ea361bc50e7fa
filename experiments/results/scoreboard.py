"""The scoreboard of inference methods: its tables, which method when, and what was spent to know it."""

from __future__ import annotations

from experiments.results.records import NONE, NOT_RUN, Record, Records, made_by, of
from experiments.results.tables import Text, as_printed, headed
from experiments.scoreboard import choose
from experiments.scoreboard.parts import PARTS


def which(records: Records) -> str:
    """Which method when: a line for each."""
    parts = choose.read(records.folder)
    return choose.markdown(parts) if parts else NONE


def budget(records: Records) -> str:
    """What each method could spend, by part."""
    parts = choose.read(records.folder).values()
    return "\n".join(f"- {choose.spent(record)} {made_by(record)}" for record in parts) or NOT_RUN


def part(name: str, record: str = "") -> Text:
    """The tables of one part, as its command prints them, from its record or that of another run."""

    def words(record: Record) -> str:
        return as_printed(PARTS[name].report(record))

    return of(record or f"scoreboard_{name}", headed(words), NONE)


SCOREBOARD: dict[str, Text] = {
    "scoreboard": which,
    "scoreboard_budget": budget,
    **{f"scoreboard.{name}": part(name) for name in PARTS},
    "gap": part("agreement", "agreement_gap"),
    "eight_tables": part("regressions", "eight_tables"),
}
