"""How a step grows with the number of weights, of samples and of rows, as figures and as a plot."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks import steps
from benchmarks.timing import Spread, in_turn, ratio, spread
from pyrobbb._support.random_state import isolated
from pyrobbb.figures.style import BLUE, GREY, caption, label, new_figure, styled

WIDTHS = (50, 100, 200, 400, 1200)
BATCHES = (32, 128, 512, 2048)
SAMPLES = (1, 2, 5, 10)


def weights(width: int) -> int:
    """Weights and biases of 784-width-width-10."""
    return (steps.INPUTS + 1) * width + (width + 1) * width + (width + 1) * steps.CLASSES


def by_weights(rounds: int) -> list[dict[str, Any]]:
    """Our step and the plain one for each of `WIDTHS`."""
    return [
        {"width": width, "weights": weights(width)} | _pair(width, steps.BATCH, rounds) for width in WIDTHS
    ]


def by_batch(rounds: int) -> list[dict[str, Any]]:
    """Our step and the plain one for each of `BATCHES`."""
    return [{"batch": batch} | _pair(400, batch, rounds) for batch in BATCHES]


def by_samples(rounds: int) -> list[dict[str, Any]]:
    """Our step for each of `SAMPLES`."""
    with isolated(0):
        times = in_turn({str(s): steps.ours(400, samples=s) for s in SAMPLES}, rounds)
    return [
        {"samples": s, "ours": spread(times[str(s)]), "ratio": ratio(times[str(s)], times["1"])}
        for s in SAMPLES
    ]


def _pair(width: int, batch: int, rounds: int) -> dict[str, Spread]:
    with isolated(0):
        pair = {"ours": steps.ours(width, batch=batch), "plain": steps.plain(width, batch)}
        times = in_turn(pair, rounds, burst=20 if width <= 200 else 5)
    return {name: spread(times[name]) for name in pair} | {"ratio": ratio(times["ours"], times["plain"])}


@styled
def plot(panels: Sequence[tuple[str, str, Sequence[dict[str, Any]]]]) -> Figure:
    """One panel for each `(key, name of the axis, measurements)`, both axes logarithmic."""
    figure = new_figure(3.2 * len(panels), 3.2)
    for axes, (key, name, found) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        at = [row[key] for row in found]
        for line, colour, title in (("ours", BLUE, "pyrobbb"), ("plain", GREY, "plain network")):
            if line not in found[0]:
                continue
            middle = [row[line].middle for row in found]
            errors = [
                [row[line].middle - row[line].low for row in found],
                [row[line].high - row[line].middle for row in found],
            ]
            axes.errorbar(at, middle, yerr=errors, color=colour, marker="o", markersize=4, label=title)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        if key != "weights":
            axes.set_xticks(at, [str(value) for value in at])
        axes.minorticks_off()
        label(axes, name, "ms per training step")
    figure.axes[0].legend()
    caption(figure, "Time of a training step (median and quartiles)")
    return figure
