"""Several measures of the same runs against one, along paths of settings, with the spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from pyrobbb.figures.style import CHAINS, caption, label, new_figure, styled

MARKERS = ("o", "s", "D", "^")


@dataclass(frozen=True)
class Path:
    """A line of settings in the order of the one that changes: its values, and results by seed.

    `x` is `(settings, seeds)`, each of `y` too.
    """

    settings: Sequence[str]
    x: np.ndarray
    y: Mapping[str, np.ndarray]


@styled
def trade_off(paths: Mapping[str, Path], *, x_label: str, title: str = "A trade-off") -> Figure:
    """One panel for each measure: its mean over seeds against that of x, bars of one standard deviation.

    Args:
        paths: By name; all with the same measures.
        x_label: What x is, with its unit.
        title: The caption.

    Raises:
        ValueError: Paths whose measures differ.
    """
    measures = list(next(iter(paths.values())).y)
    if any(list(path.y) != measures for path in paths.values()):
        raise ValueError(f"all paths must have the measures {', '.join(measures)}")
    rows = -(-len(measures) // 2)
    figure = new_figure(9.4, 0.9 + 3.3 * rows)
    grid = figure.subplots(rows, 2, squeeze=False)
    for axes in grid.flat[len(measures) :]:
        axes.set_axis_off()
    for axes, measure in zip(grid.flat, measures, strict=False):
        for i, (name, path) in enumerate(paths.items()):
            x, y = path.x.mean(1), path.y[measure].mean(1)
            seeds = path.x.shape[1]
            sd = [values.std(1, ddof=min(1, seeds - 1)) for values in (path.x, path.y[measure])]
            axes.errorbar(
                x, y, sd[1], sd[0], fmt=MARKERS[i] + "-", ms=5, lw=1.2, color=CHAINS[i], capsize=2, label=name
            )
            for at, word in enumerate(path.settings):
                place = (5, 5) if i == 0 else (5, -11)
                axes.annotate(
                    word, (x[at], y[at]), place, textcoords="offset points", fontsize=7.5, color=CHAINS[i]
                )
        axes.margins(x=0.12, y=0.15)
        label(axes, x_label, measure)
    grid.flat[0].legend(loc="best")
    caption(figure, title)
    return figure
