"""Our best method on each table beside the best that was published there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from experiments.scoreboard.compare import Row, mean_se, standard_error, values
from experiments.scoreboard.compare import chosen as rows_of

Line = tuple[str, str, str, str, str, str]
HEAD = ("", "best of ours", "", "best published", "", "ours is")


def beside(rows: Sequence[Row], others: Mapping[str, Mapping[str, float]]) -> list[Line]:
    """A line for each table of which both are known, by test log-likelihood.

    The best of ours is picked by these very scores, as that of the others is. "level" is within one standard
    error over our splits.
    """
    lines = []
    for table in dict.fromkeys(row["table"] for row in rows):
        own = rows_of(rows, table=table)
        each = {name: values(rows_of(own, method=name), "log_likelihood") for name in _methods(own)}
        each = {name: scores for name, scores in each.items() if scores}
        if not each or not others.get(table):
            continue
        method = max(each, key=lambda name: fmean(each[name]))
        theirs = max(others[table], key=lambda name: others[table][name])
        reached = others[table][theirs]
        lines.append(
            (table, mean_se(each[method], 2), method, f"{reached:.2f}", theirs, _place(each[method], reached))
        )
    return lines


def _methods(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in rows))


def _place(scores: Sequence[float], reached: float) -> str:
    apart = fmean(scores) - reached
    error = standard_error(scores) if len(scores) > 1 else 0.0
    return "ahead" if apart > error else "level" if apart >= -error else f"{-apart:.2f} behind"
