"""The documents' figures, each drawn from one record; None without it."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from experiments._runner.tables import seeds_by_name
from experiments.paper import pruning, regression_report
from experiments.paper.figures import (
    Curve,
    error_by_epoch,
    error_by_removed,
    signal_to_noise_density,
    weights_by_method,
)
from experiments.paper.table1 import declaration
from experiments.results import pictures
from experiments.results.records import Record, Records, of

Draw = Callable[[Records], Figure | None]


def figure2(record: Record) -> Figure:
    """Validation error by epoch at the greatest width."""
    width, curves = max(record["widths"]), dict[str, list[Curve]]()
    for cell in record["cells"]:
        if cell["width"] == width:
            errors = cell["validation_errors"]
            title = declaration().rows[cell["row"]].title
            curves.setdefault(title, []).append((list(range(1, len(errors) + 1)), errors))
    first = (
        f"the first {record['epochs']} epochs of the paper's 600" if record["epochs"] < 600 else "by epoch"
    )
    return error_by_epoch(
        curves, title=f"Fig. 2: validation error, {first}, 2x{width}, {seeds_by_name(record['seeds'])}"
    )


def figure3(record: Record) -> Figure:
    """Densities of the weights."""
    network = f"2x{max(record['widths'])}, seed {record['seeds'][0]}"
    title = f"Fig. 3: weights after {record['epochs']} epochs, {network}"
    return weights_by_method(record["weights"], title=f"{title}; one draw of Bayes by Backprop")


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
    "figure2": of("table1_400", figure2, None),
    "figure2_full": of("table1_full", figure2, None),
    "figure3": of("table1_400", figure3, None),
    "figure4": of("pruning", figure4, None),
    "table2": of("pruning", pruned, None),
    "figure5": of("regression", regression_report.figure, None),
    "coverage": of("eight_tables", pictures.coverage, None),
    "bound": of("bound_ranks", pictures.bound, None),
}
