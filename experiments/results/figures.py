"""The documents' figures, each drawn from one record; None without it."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from experiments.paper import pruning, regression_report, table1_report
from experiments.paper.figures import (
    Curve,
    error_by_removed,
    signal_to_noise_density,
)
from experiments.results import pictures
from experiments.results.records import Record, Records, of

Draw = Callable[[Records], Figure | None]


def pruned(record: Record) -> Figure:
    """Error by share removed."""
    removed = [row["removed"] for row in record["rows"]]
    curves: dict[str, Curve] = {
        f"by {words}, {what}": (removed, [row[by][key] for row in record["rows"]])
        for by, words in (("snr", "signal-to-noise"), ("magnitude", "magnitude"))
        for key, what in (("mean", "mean weights"), ("draws", f"{record['draws']} draws"))
    }
    curves["paper, 2x1200, 600 epochs"] = (list(pruning.PAPER), list(pruning.PAPER.values()))
    return error_by_removed(curves, title=f"Table 2: test error after removing weights, {network(record)}")


def figure4(record: Record) -> Figure:
    """Density of the signal-to-noise ratio."""
    title = f"Fig. 4: signal-to-noise ratio, {network(record)}"
    found = record["density"]
    return signal_to_noise_density(
        found["dB"], found["per dB"], cut=record["cut_75"], valley=record["valley"], title=title
    )


def network(record: Record) -> str:
    """Which network was pruned, in a caption."""
    return f"{record['weights']:,} weights, {record['epochs']} epochs, seed {record['seed']}"


FIGURES: dict[str, Draw] = {
    "figure2": of("table1_400", table1_report.figure2, None),
    "figure2_full": of("table1_full", table1_report.figure2, None),
    "figure3": of("table1_400", table1_report.figure3, None),
    "figure4": of("pruning", figure4, None),
    "table2": of("pruning", pruned, None),
    "figure5": of("regression", regression_report.figure, None),
    "coverage": of("eight_tables", pictures.coverage, None),
    "bound": of("bound_ranks", pictures.bound, None),
}
