"""The documents' figures, each drawn from one record, and those over many fits that no command draws."""

from collections.abc import Callable
from functools import partial

from matplotlib.figure import Figure

from experiments.paper import pruning_report, regression_report, table1_report
from experiments.paper.regret import cumulative_regret
from experiments.reproductions import training_choices
from experiments.results.records import NONE, Record, Text, of
from pyrobbb.figures.style import (
    BLACK,
    BLUE,
    CHAINS,
    GREY,
    ORANGE,
    caption,
    column,
    data_points,
    label,
    new_figure,
    styled,
)

MARKERS = ("o", "s", "D", "^")
PRIORS = {"learned": "a scale for each tensor", "learned_input": "a scale for each input"}
KINDS = {"standard": (BLUE, "standard split"), "gap": (ORANGE, "gap split: no training row near")}


@styled
def bands(record: Record) -> Figure:
    """What each method believes of one function, a panel each, and NUTS' outline over it."""
    rows = [row for row in record["rows"] if "band" in row]
    exact = next(row for row in rows if "data" in row)
    others = [row for row in rows if row is not exact]
    x, y = (column(key, exact["data"][key], ndim=2)[:, 0] for key in ("x", "y"))
    figure = new_figure(5, 5.1)  # narrow: it can be read on a telephone
    grid = figure.subplots(2, 2, sharex=True, sharey=True)
    for panel, row in zip(grid.flat, others, strict=True):
        band, outline = row["band"], exact["band"]
        panel.fill_between(band["x"], band["low"], band["high"], color=BLUE, alpha=0.25, lw=0, label="95 %")
        panel.plot(band["x"], band["median"], color=BLUE, label="median")
        for edge, name in (("low", "95 % by NUTS"), ("high", None)):
            panel.plot(outline["x"], outline[edge], color=BLACK, lw=1, ls="--", label=name)
        data_points(panel, x, y, "data")
        panel.set_title(row["method"])
        panel.set_xlim(min(band["x"]), max(band["x"]))
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    caption(figure, "The function by four methods, and by NUTS")
    return figure


@styled
def coverage(record: Record) -> Figure:
    """Share of the test rows within their 95 % interval: a row for each method, a dot for each split."""
    rows = [row for row in record["rows"] if "coverage_95" in row]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    tables = list(dict.fromkeys(row["table"] for row in rows))
    figure = new_figure(7.5, 1.3 + 0.3 * len(methods))
    axes = figure.subplots()
    axes.axvline(95, color=GREY, ls="--", lw=1.2, label="as it should be")
    for kind, (colour, name) in KINDS.items():
        chosen = [row for row in rows if row["kind"] == kind]
        at = [methods.index(row["method"]) for row in chosen]
        shares = [100 * row["coverage_95"] for row in chosen]
        axes.plot(shares, at, "o", color=colour, ms=6, mew=0, alpha=0.7, label=name)
    axes.set_yticks(range(len(methods)), methods)
    axes.set_ylim(len(methods) - 0.4, -0.6)
    label(axes, "test rows within their 95 % interval (%)", "")
    figure.legend(loc="outside lower center", ncols=3)
    caption(figure, f"95 % intervals of each method on {', '.join(tables)}")
    return figure


@styled
def bound(record: Record) -> Figure:
    """Test error against the free energy above the trivial bound: a line for each network and prior."""
    rows = record["rows"]
    networks = list(dict.fromkeys(row["network"] for row in rows))
    priors = list(dict.fromkeys(row["prior"] for row in rows))
    figure = new_figure(7.5, 4.4)
    axes = figure.subplots()
    axes.axvline(0, color=GREY, ls="--", lw=1.2, label="ignoring the inputs")
    for colour, prior in zip(CHAINS, priors, strict=False):
        for marker, network in zip(MARKERS, networks, strict=False):
            path = [row for row in rows if (row["prior"], row["network"]) == (prior, network)]
            path.sort(key=lambda row: row["rate"])
            x = [row["free_energy"] - row["trivial_free_energy"] for row in path]
            y = [row["test_error"] for row in path]
            name = f"{PRIORS.get(prior, prior)}, {network}"
            axes.plot(x, y, f"{marker}-", color=colour, lw=1, ms=5.5, mew=0, label=name)
            axes.plot(x[:1], y[:1], marker, color="white", mec=colour, mew=1, ms=5.5)  # the least rate
    label(axes, "free energy less that of ignoring the inputs (nats per datum)", "test error (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    rates = [row["rate"] for row in rows]
    along = f"from {min(rates):g} (hollow) to {max(rates):g} along a line"
    caption(figure, f"Free energy and error; rates of rho {along}")
    return figure


DRAWN: dict[str, tuple[str, Callable[[Record], Figure]]] = {  # figure -> its record, and who draws it
    "figure2": ("table1_short", table1_report.figure2),
    "figure2_full": ("table1_full", table1_report.figure2),
    "figure3": ("table1_full", table1_report.figure3),
    "figure4": ("pruning", pruning_report.figure4),
    "table2": ("pruning", pruning_report.error_figure),
    "figure4_best": ("pruning_best", pruning_report.figure4),
    "figure4_learned": ("pruning_learned", pruning_report.figure4),
    "figure5": ("regression", regression_report.figure),
    "figure6": ("bandit", cumulative_regret),
    "figure6_mixture": ("bandit_mixture", partial(cumulative_regret, setting="two random rewards")),
    "posteriors": ("agreement_gap", bands),
    "coverage": ("eight_tables", coverage),
    "training_choices": ("training_choices", training_choices.figure),
    "bound": ("bound_ranks", bound),
}
FIGURES = {name: of(record, draw, None) for name, (record, draw) in DRAWN.items()}


def source(name: str, record: Record) -> str:
    """From which record a figure was drawn, or the first and the last of its parts."""
    count = len(record.get("each", ()))
    parts = dict.fromkeys([f"{name}-1", f"{name}-{count}"]) if count else [name]
    return f"From {' to '.join(f'`docs/records/{part}.json`' for part in parts)}."


SOURCES: dict[str, Text] = {
    f"from.{name}": of(record, partial(source, record), NONE) for name, (record, _) in DRAWN.items()
}
