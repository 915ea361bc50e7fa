"""The records under docs/records/, and the line that says how one was made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Record = dict[str, Any]
T = TypeVar("T")
NOT_RUN = "not run on today's code"
NONE = f"{NOT_RUN[0].upper()}{NOT_RUN[1:]}."  # as a sentence


class Records:
    """The files of a folder, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, name: str) -> Record | None:
        """The record `NAME.json`, or that of a command that runs one seed: `NAME-1.json`, `NAME-2.json`, ...

        Of these the first, with all of them as `each`; None if there is none.
        """
        one = self._read(name)
        each = [found for seed in range(1, 20) if (found := self._read(f"{name}-{seed}"))]
        return one or ({**each[0], "each": each} if each else None)

    def _read(self, name: str) -> Record | None:
        path = self.folder / f"{name}.json"
        if not path.exists():
            return None
        found: Record = json.loads(path.read_text(encoding="utf-8"))
        return found


def of(name: str, made: Callable[[Record], T], missing: T) -> Callable[[Records], T]:
    """What is made of the record of that name; `missing` without it."""

    def found(records: Records) -> T:
        record = records.get(name)
        return missing if record is None else made(record)

    return found


def made_by(record: Record) -> str:
    """The command, the machine and the day, for the line above a table."""
    machine = record["machine"]
    if not isinstance(machine, str):
        threads = machine["threads"]
        machine = f"{machine['processor']}, {threads} thread{'s' if threads > 1 else ''}"
    others = ", and the same for the other seeds" if len(record.get("each", [])) > 1 else ""
    when = f"{record['date']}{_spent(record)}"
    return f"`{record['command']}`{others}; {machine}, torch {torch_of(record)}, {when}."


def _spent(record: Record) -> str:
    """How long the trainings or games took in all, where a record has it."""
    seconds, what = seconds_of(record), "games" if "agents" in record else "trainings"
    return "" if seconds is None else f"; {what} of {seconds / 60:.0f} minutes in all"


def seconds_of(record: Record) -> float | None:
    """How long the trainings, or the games of the bandit, took in all; None where a record does not say."""
    parts = parts_of(record)
    runs = [record, *(part["metrics"] for part in parts if "metrics" in part)]
    every = [run["train_seconds"] for run in runs if "train_seconds" in run]
    for part in parts:
        fits = [part[name] for name in ("seconds", "seconds_choosing") if name in part]
        every += part.get("seconds_each", fits)
    for name, games in record.get("agents", {}).items():
        rate = record["interactions per second"]["greedy" if name.endswith("greedy") else "thompson"]
        every.append(games["steps"] * len(record["seeds"]) / rate)
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


def torch_of(record: Record) -> str:
    """The version of torch that a record was made with."""
    versions = record.get("versions") or record["machine"]
    return str(versions["torch"]).partition("+")[0]
