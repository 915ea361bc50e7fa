"""Rows of a record side by side: means with standard errors, and paired differences with intervals."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import sem

from experiments._runner.build import ConfigError
from experiments._runner.tables import interval
from pyrobbb.data.uci import KNOWN

Row = dict[str, Any]
REFERENCE = "plain network"
BUDGET = ("network", "noise", "steps of a fit", "epochs")  # that rows side by side have in common


def rows_of(rows: Sequence[Row], **keys: Any) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in keys.items())]


def joined(parts: Sequence[Sequence[Row]]) -> list[Row]:
    """The rows of records made one after another; a later row takes the place of the same one, run again."""
    places = ("network", "table", "kind", "split", "model", "seed", "method")
    return list({tuple(row.get(key) for key in places): row for rows in parts for row in rows}.values())


def refuse_other_budgets(records: Mapping[Path, Mapping[str, Any]]) -> None:
    """ConfigError if two records have rows of the same data under different budgets: no one table."""
    data = ("network", "table", "kind", "split", "model")
    for (path, one), (other, two) in combinations(records.items(), 2):
        own, others = ({tuple(map(row.get, data)) for row in part["rows"]} for part in (one, two))
        budgets = [(key, one["budget"].get(key), two["budget"].get(key)) for key in BUDGET]
        apart = [f"{key} {a} and {b}" for key, a, b in budgets if None not in (a, b) and a != b]
        if own & others and apart:
            raise ConfigError(
                f"record: {path} and {other} have rows of the same data, under {', '.join(apart)}: "
                f"keep them in different folders"
            )


def of_one_network(rows: Sequence[Row]) -> Sequence[Row]:
    """These rows; ConfigError if they are of several networks, whose seeds are not pairs."""
    networks = list(dict.fromkeys(row["network"] for row in rows if "network" in row))
    if len(networks) > 1:
        raise ConfigError(f"record: its rows are of several networks ({', '.join(networks)}), not of one")
    return rows


def values(rows: Sequence[Row], measure: str) -> list[float]:
    """A measure of the rows that have it."""
    return [row[measure] for row in rows if row.get(measure) is not None]


def distinct(rows: Sequence[Row]) -> list[Row]:
    """The rows without those of a gap split that tests what an earlier one does, so says nothing new.

    Of such splits the first stays that has a number.
    """
    first: dict[tuple[str, str, int], Row] = {}
    for row in sorted(rows, key=lambda row: bool(reason(row))):
        if row.get("kind") == "gap":
            first.setdefault((row["method"], row["table"], KNOWN[row["table"]].first_gap(row["split"])), row)
    return [row for row in rows if row.get("kind") != "gap" or row in first.values()]


def mean_se(rows: Sequence[Row], measure: str) -> tuple[float, float | None]:
    """Mean of a measure and its standard error over distinct test sets, None for one alone."""
    different = values(distinct(rows), measure)
    return float(np.mean(values(rows, measure))), float(sem(different)) if len(different) > 1 else None


def shown(mean: float, error: float | None, digits: int) -> str:
    """Mean and standard error, `-1.21 ± 0.04`."""
    return f"{mean:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def reason(row: Row) -> str:
    """Why a method has no number, on one line; nothing if it has one."""
    return next((" ".join(row[key].split()) for key in ("refused", "stopped") if key in row), "")


def failures(count: int) -> str:
    """` (1 failed)` after what is of the others; nothing if none failed."""
    return f" ({count} failed)" if count else ""


def cell(rows: Sequence[Row], measure: str, digits: int) -> str:
    """Mean and standard error of a measure; a mark where there is none, for which `notes` has the reason."""
    found, failed = values(rows, measure), sum(bool(reason(row)) for row in rows)
    if not found:
        return "-" if failed else ""
    return shown(*mean_se(rows, measure), digits) + failures(failed)


def notes(rows: Sequence[Row]) -> list[str]:
    """Why a method has no number somewhere, once for each reason."""
    return list(dict.fromkeys(f"- {row['method']}: {reason(row)}" for row in rows if reason(row)))


def pairs(own: Sequence[Row], other: Sequence[Row], measure: str, *keys: str) -> list[tuple[float, float]]:
    """A measure of both, for each split or seed (`keys`) that both have."""
    first, second = (
        {tuple(row[key] for key in keys): row[measure] for row in rows if row.get(measure) is not None}
        for rows in (own, other)
    )
    return [(first[place], second[place]) for place in sorted(first.keys() & second.keys())]


def difference(own: Sequence[Row], other: Sequence[Row], measure: str, pair: str, digits: int = 2) -> str:
    """How much `own` is above `other`, over the splits or seeds (`pair`) that both have, each test once."""
    apart = [a - b for a, b in pairs(distinct(own), other, measure, pair)]
    if len(apart) < 2:
        return "-"
    mean, low, high = interval(apart)
    seen = "" if low > 0 or high < 0 else ", no difference seen"
    return f"{mean:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]{seen}"


def lines_of(
    rows: Sequence[Row], methods: Sequence[str], digits: Mapping[str, int], pair: str = ""
) -> list[list[str]]:
    """A line for each method: its measures, by name with so many digits.

    With `pair` also how far the first of them is above the plain network's, over splits or seeds.
    """
    lines, first = [], next(iter(digits))
    for method in methods:
        own = rows_of(rows, method=method)
        lines.append([method, *(cell(own, name, places) for name, places in digits.items())])
        if pair:
            plain = rows_of(rows, method=REFERENCE)
            apart = difference(own, plain, first, pair, digits[first])
            lines[-1].append("" if method == REFERENCE else apart)
    return lines


def spent(budget: Mapping[str, Any]) -> str:
    """What each method could spend."""
    return ", ".join(f"{key} {value}" for key, value in budget.items() if key != "settings")
