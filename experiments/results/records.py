"""The records under docs/records/, and the line that says how one was made."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from experiments.paper.table1_report import DECLARED, shown_width
from experiments.scoreboard.compare import joined, refuse_other_budgets, rows_of
from experiments.studies import bound
from pyrobbb._support.files import read_json

Record = dict[str, Any]
T = TypeVar("T")
NOT_RUN = "not run on today's code"
NONE = f"{NOT_RUN[0].upper()}{NOT_RUN[1:]}."  # as a sentence


class Records:
    """The files of a folder, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, name: str) -> Record | None:
        """The record `NAME.json`, or what was run in parts: `NAME-1.json`, `NAME-2.json`, ...

        Of these the first, with all of them as `each`, and with the cells, rows, recipes or agents of all if
        they are parts of one table, in which a later one takes the place of the same one, run again; None if
        there is none.

        Raises:
            ConfigError: Parts of one table have rows of the same data under different budgets.
        """
        one = self._read(name)
        each: list[Record] = []
        while found := self._read(f"{name}-{len(each) + 1}"):
            each.append(found)
        if one or not each:
            return one
        found = {**each[0], "each": each}
        if "cells" in found:
            found |= _cells_of(each)
        elif "part" in found:  # of the scoreboard
            refuse_other_budgets({Path(f"{name}-{k}.json"): part for k, part in enumerate(each, 1)})
            found["rows"] = joined([part["rows"] for part in each])
            found["budget"] = {
                key: " or ".join(dict.fromkeys(str(part["budget"].get(key)) for part in each))
                for key in each[0]["budget"]
            }
        elif "study" in found:  # of the bound
            found["rows"] = bound.joined(each)
        elif "agents" in found:  # of a bandit, whose arms were played apart
            found["agents"] = {name: kept for part in each for name, kept in part["agents"].items()}
        elif "restarts" in found:  # of recipes
            for key in ("found", "restarts"):
                found[key] = {name: kept for part in each for name, kept in part[key].items()}
        return found

    def tables(self, names: Sequence[str]) -> Record | None:
        """The rows of several records of tables, each table's from the last record that has it."""
        each = [found for name in names if (found := self.get(name))]
        if len(each) < len(names):
            return None
        rows: dict[str, list[Any]] = {}
        for record in each:
            own = dict.fromkeys(row["table"] for row in record["rows"])
            rows |= {table: rows_of(record["rows"], table=table) for table in own}
        return {**each[0], "each": each, "rows": [row for found in rows.values() for row in found]}

    def _read(self, name: str) -> Record | None:
        return read_json(self.folder / f"{name}.json") or None


def _cells_of(each: Sequence[Record]) -> Record:
    """The cells of several parts of a table; of weights those of the lowest seed at the width shown."""
    keys = ("row", "width", "seed")
    cells = list({tuple(cell[key] for key in keys): cell for part in each for cell in part["cells"]}.values())
    found: Record = {"cells": cells}
    for key in keys:
        found[f"{key}s"] = list(dict.fromkeys(cell[key] for cell in cells))
    found["widths"].sort()
    found["seeds"].sort()
    shown = [part for part in each if max(part["widths"]) == shown_width(found)]
    shown.sort(key=lambda part: -part["seeds"][0])  # the weights of a part are of its first seed
    weights = {
        name: {**kept, "seed": part["seeds"][0]} for part in shown for name, kept in part["weights"].items()
    }
    titles = (row.title for row in DECLARED.rows.values())
    found["weights"] = {title: weights[title] for title in titles if title in weights}
    return found


Text = Callable[[Records], str]


def of(name: str, made: Callable[[Record], T], missing: T) -> Callable[[Records], T]:
    """What is made of the record of that name; `missing` without it."""

    def found(records: Records) -> T:
        record = records.get(name)
        return missing if record is None else made(record)

    return found


UNTIMED = {  # what a record may hold without its time: its key, and that of the time
    "without those that chose settings": ("tried", "seconds_choosing"),
    "without those of plain networks": ("mlp_loss", "mlp_seconds"),
}


def made_by(record: Record) -> str:
    """The command, the machine and the day, for the line above a table; a line for each part of a table."""
    if "each" in record and any(key in record for key in ("cells", "part", "study", "restarts", "agents")):
        return "\\\n".join(map(made_by, record["each"]))
    others = ", and the same for the other seeds" if len(record.get("each", [])) > 1 else ""
    time, what = spent(seconds_of(record)), "games" if "agents" in record else "trainings"
    parts = parts_of(record)
    left = [
        said
        for said, (has, timed) in UNTIMED.items()
        if any(has in part for part in parts) and not any(timed in part for part in parts)
    ]
    counted = f", {', '.join(left)}" if left else " in all"
    when = record["date"] + (f"; {what} of {time}{counted}" if time else "")
    torch = record["versions"]["torch"].partition("+")[0]
    return f"`{record['command']}`{others}; {record['machine']}, torch {torch}, {when}."


def spent(seconds: float | None) -> str:
    """In minutes, or what suits; nothing where it was not recorded."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def seconds_of(record: Record) -> float | None:
    """How long the trainings, or the games of the bandit, took in all; None where a record does not say."""
    parts = parts_of(record)
    runs = [record, *(part["metrics"] for part in parts if "metrics" in part)]
    every = [run["train_seconds"] for run in runs if "train_seconds" in run]
    for part in parts:
        times = ("seconds", "seconds_choosing", "mlp_seconds")
        fits = [part[name] for name in times if part.get(name) is not None]
        every += part.get("seconds_each", fits)
    for part in record.get("each", [record]):
        for name, games in part.get("agents", {}).items():
            rate = part["interactions per second"]["greedy" if name.endswith("greedy") else "thompson"]
            every.append(games["steps"] * len(part["seeds"]) / rate)
    return sum(every) if every else None


def seeds_of(record: Record) -> list[int]:
    """The seeds that a record is of; empty if it says none."""
    found = {part["seed"] for part in (record, *parts_of(record)) if "seed" in part}
    return sorted(found | set(record.get("seeds", ())))


def parts_of(record: Record) -> list[Record]:
    """What a record has of each seed, run, cell, row and fit."""
    parts: list[Any] = [*record.get("each", ())]
    for key in ("runs", "cells", "rows"):
        parts += record.get(key, ())
    for found in record.get("found", {}).values():
        fits = found if isinstance(found, list) else [found]
        parts += [part for fit in fits for part in (fit, fit.get("scores"))]
    return [part for part in parts if isinstance(part, dict)]
