"""What others printed, beside this run's number: a sentence of the form below becomes a table.

>>> said = "scale mixture, test error %, 2x400, 600 epochs, paper 1.36 (Table 1), 1.24; JINKEHE 1.33"
>>> printed(said).rows
[('paper', '1.36', 'Table 1'), ('paper', '1.24', ''), ('JINKEHE', '1.33', '')]
>>> printed(said).under
'scale mixture, 2x400, 600 epochs'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyrobbb.report.page import Cell, Table
from pyrobbb.report.words import SCORES, score

NUMBER = r"-?\d+(?:\.\d+)?"
VALUES = rf"(?P<values>(?:{NUMBER}|-)(?: / (?:{NUMBER}|-))*)"
NOTE = r"(?: \((?P<note>[^()]*)\))?"
SCORE = re.compile(
    rf"(?P<part>test|validation) (?P<score>error|rmse|nll)(?: %)?(?P<mean> of (?:the )?mean weights)?"
    rf"(?P<under> after \d+ epochs)?(?: {VALUES}{NOTE})?$"
)
SOURCED = re.compile(rf"(?:(?P<source>[A-Za-z][\w'-]*(?: [\w'-]+)?) )?{VALUES}{NOTE}$")


@dataclass(frozen=True)
class Printed:
    """The score of one sentence; `rows` are source, values and note, `under` says of what."""

    part: str
    name: str
    rows: list[tuple[str, str, str]]
    under: str


def printed(sentence: str) -> Printed | None:
    """What a sentence says: conditions and one score, then sources, each with its values; None if otherwise.

    The score is such as `test error %`, with `of mean weights` for theirs; a value without a source is that
    of the source before it, or of what the sentence begins with.
    """
    clauses = re.split(r"[,;] (?![^(]*\))", sentence)
    at, found = next(((i, m) for i, c in enumerate(clauses) if (m := SCORE.match(c))), (0, None))
    if found is None:
        return None
    first = clauses[0] if at else ""
    rows = [(first, found["values"], found["note"] or "")] if found["values"] else []
    source, under = first, clauses[:at]
    for clause in clauses[at + 1 :]:
        value = SOURCED.match(clause)
        if value is None:
            under.append(clause)
            continue
        source = value["source"] or source
        rows.append((source, value["values"], value["note"] or ""))
    if not rows or not all(source for source, *_ in rows):
        return None
    if any(source == first for source, *_ in rows):
        under = under[1:]
    under += [found["under"].strip()] if found["under"] else []
    name = found["score"] + ("_mean_weights" if found["mean"] else "")
    return Printed(found["part"], name, rows, ", ".join(under))


def of_others(sentence: str, metrics: Mapping[str, Any]) -> Table | None:
    """A row for each source, and one of this run; None if the sentence or the run has no such score."""
    said = printed(sentence)
    own = None if said is None else metrics.get(said.part, {}).get(said.name)
    if said is None or own is None:
        return None
    what, unit, _ = SCORES[said.name]
    rows = [
        [Cell(_named(source), note=note), Cell(f"{values} {unit}".strip())]
        for source, values, note in said.rows
    ]
    caption = f"{what} on {said.part} data beside what others published"
    caption += f": {said.under}" if said.under else ""
    return Table(caption, ["Source", what], [[Cell("This run"), Cell(score(said.name, own))], *rows])


def _named(source: str) -> str:
    """`Paper` of `paper`; names and handles as they are."""
    return source.capitalize() if source.isalpha() and source.islower() else source
