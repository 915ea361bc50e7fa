"""Our best method on each table beside the best that was published there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from scipy.stats import sem

from experiments.scoreboard.compare import Row, mean_se, rows_of, values

Line = tuple[str, str, str, str, str, str]
HEAD = ("", "best of ours", "", "best published", "", "ours is")


def beside(rows: Sequence[Row], others: Mapping[str, Mapping[str, float]]) -> list[Line]:
    """A line for each table of which both are known, by test log-likelihood.

    The best of ours is picked by these very scores, as that of the others is. "level" is within one standard
    error over our splits.
    """
    lines = []
    for table in dict.fromkeys(row["table"] for row in rows):
        own, published = rows_of(rows, table=table), others.get(table)
        each = {row["method"]: values(rows_of(own, method=row["method"]), "log_likelihood") for row in own}
        if not any(each.values()) or not published:
            continue
        method = max(filter(each.get, each), key=lambda name: fmean(each[name]))
        theirs = max(published, key=published.__getitem__)
        reached, ours = published[theirs], each[method]
        lines.append((table, mean_se(ours, 2), method, f"{reached:.2f}", theirs, _place(ours, reached)))
    return lines


def _place(scores: Sequence[float], reached: float) -> str:
    apart = fmean(scores) - reached
    error = sem(scores) if len(scores) > 1 else 0.0
    return "ahead" if apart > error else "level" if apart >= -error else f"{-apart:.2f} behind"
