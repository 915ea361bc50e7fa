"""Rows of a record side by side: means with standard errors, and paired differences with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from experiments._runner.tables import interval

Row = dict[str, Any]
FAILED = ("refused", "stopped")


def mean_se(values: Sequence[float], digits: int) -> str:
    """Mean and standard error, `-1.21 ± 0.04`; a single value shows none."""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {standard_error(values):.{digits}f}"


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of at least two values."""
    return float(np.std(values, ddof=1)) / sqrt(len(values))


def chosen(rows: Sequence[Row], **keys: Any) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in keys.items())]


def joined(parts: Sequence[Sequence[Row]]) -> list[Row]:
    """The rows of records made one after another; a later row takes the place of the same one, run again."""
    places = ("network", "table", "kind", "split", "model", "seed", "method")
    return list({tuple(row.get(key) for key in places): row for rows in parts for row in rows}.values())


def values(rows: Sequence[Row], measure: str) -> list[float]:
    """A measure of the rows that have it."""
    return [row[measure] for row in rows if row.get(measure) is not None]


def cell(rows: Sequence[Row], measure: str, digits: int) -> str:
    """Mean and standard error of a measure; a mark where there is none, for which `notes` has the reason."""
    found = values(rows, measure)
    failed = [row for row in rows if any(key in row for key in FAILED)]
    if not found:
        return "-" if failed else ""
    return mean_se(found, digits) + (f" ({len(failed)} failed)" if failed else "")


def notes(rows: Sequence[Row]) -> list[str]:
    """Why a method has no number somewhere, once for each reason."""
    found: dict[str, None] = {}
    for row in rows:
        for key in FAILED:
            if key in row:
                found[f"{row['method']}: {' '.join(row[key].split())}"] = None
    return [f"- {words}" for words in found]


def paired(own: Sequence[float], other: Sequence[float]) -> tuple[float, float, float] | None:
    """The mean difference over pairs and its 95 % interval by Student's t; None for fewer than two pairs.

    >>> paired([1.0, 2.0, 3.0], [0.0, 1.0, 2.5])[0]
    0.8333333333333334
    """
    apart = np.subtract(own, other)
    return interval(apart.tolist()) if len(apart) > 1 else None


def difference(own: Sequence[Row], other: Sequence[Row], measure: str, pair: str, digits: int = 2) -> str:
    """How much `own` is above `other`, over the splits or seeds (`pair`) that both have."""
    scores = [
        {row[pair]: row[measure] for row in rows if row.get(measure) is not None} for rows in (own, other)
    ]
    both = sorted(scores[0].keys() & scores[1].keys())
    found = paired([scores[0][key] for key in both], [scores[1][key] for key in both])
    if found is None:
        return "-"
    mean, low, high = (f"{value:+.{digits}f}" for value in found)
    seen = "" if found[1] > 0 or found[2] < 0 else ", no difference seen"
    return f"{mean} [{low}, {high}]{seen}"
