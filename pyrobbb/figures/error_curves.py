"""Error by epoch of several trainings, and where those that did not stay finite ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from pyrobbb.figures.style import CHAINS, caption, label, new_figure, styled

STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Curve:
    """One training: its errors in percent after epochs 1, 2, ..., and the epoch in which it broke, if any."""

    errors: Sequence[float]
    stopped: float | None = None


@styled
def error_curves(
    panels: Mapping[str, Mapping[str, Curve]],
    *,
    error_label: str = "validation error (%)",
    title: str = "Error by epoch",
) -> Figure:
    """One panel for each group of trainings, one line for each training.

    A cross of its colour at the upper edge marks a training whose free energy became infinite or NaN, at
    the epoch (with fraction) where that was.

    Args:
        panels: Curves by name, by the panel's heading.
        error_label: Name and unit of the error.
        title: The caption.

    Raises:
        ValueError: No panel, or a panel without curves.
    """
    if not panels or not all(panels.values()):
        raise ValueError("error_curves needs at least one panel, and at least one curve in each")
    rows = -(-len(panels) // 2)
    figure = new_figure(7.2 * min(len(panels), 2), 0.6 + 3.4 * rows)
    grid = list(figure.subplots(rows, min(len(panels), 2), squeeze=False).flat)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    every = [e for curves in panels.values() for c in curves.values() for e in c.errors if np.isfinite(e)]
    top, bottom = 115.0, max(0.8 * min(every, default=1.0), 0.1)
    for axes, (heading, curves) in zip(grid, panels.items(), strict=False):
        for i, (name, curve) in enumerate(curves.items()):
            epochs = np.arange(1, len(curve.errors) + 1)
            style = STYLES[i // len(CHAINS) % len(STYLES)]
            ended = "" if curve.stopped is None else " (not finite)"
            colour = CHAINS[i % len(CHAINS)]
            axes.plot(epochs, curve.errors, style, color=colour, marker="o", ms=3.5, label=name + ended)
            if curve.stopped is not None:
                axes.plot([curve.stopped], [100.0], "x", color=colour, ms=8, mew=2, clip_on=False)
        axes.set_yscale("log")
        axes.set_ylim(bottom, top)
        ticks = [t for t in (0.5, 1, 2, 3, 5, 10, 20, 50, 90) if bottom <= t <= top]
        axes.yaxis.set_major_locator(FixedLocator(ticks))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(heading)
        label(axes, "epoch", error_label)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7.5, handlelength=3.5)
    caption(figure, title)
    return figure
