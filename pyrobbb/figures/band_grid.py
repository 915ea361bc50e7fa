"""Models side by side, near the data and far from it: a grid of predictions along x (paper Fig. 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobbb.figures.style import BLACK, BLUE, caption, column, data_points, label, new_figure, styled

QUANTILES = {"mean": (0.025, 0.975), "median": (0.25, 0.75)}
WORDS = {"mean": "2.5-97.5 %", "median": "interquartile range"}


@dataclass(frozen=True)
class Curves:
    """Functions that one model draws: at `x` `(G,)`, one row of `draws` `(S, G)` for each; S = 1 is a point.

    `of` says what the rows are, in the legend.

    Raises:
        ValueError: Shapes that do not fit.
    """

    x: ArrayLike
    draws: ArrayLike
    of: str = "the draws"

    def __post_init__(self) -> None:
        x, draws = column("x", self.x), column("draws", self.draws, ndim=2)
        if draws.shape[1] != len(x):
            raise ValueError(f"draws must have shape (S, {len(x)}), got {draws.shape}")


@styled
def band_grid(
    models: Mapping[str, Sequence[Curves]],
    x_train: ArrayLike,
    y_train: ArrayLike,
    *,
    centre: Literal["mean", "median"] = "mean",
    truth: Sequence[ArrayLike] | None = None,
    x_label: str = "x",
    y_label: str = "y",
    y_limits: Sequence[tuple[float, float] | None] | None = None,
    title: str = "Predictions beside each other, and the training data",
) -> Figure:
    """One column for each model, one row for each range of x; the y axis is shared along a row.

    Args:
        models: By name, the curves on each range.
        x_train: Inputs of the training data, `(N,)`.
        y_train: Targets of the training data, `(N,)`.
        centre: `mean` is drawn with the 2.5-97.5 % band, `median` with the interquartile range.
        truth: The function that made the data, at each range's x.
        x_label: Name and unit of x.
        y_label: Name and unit of y.
        y_limits: The y axis of each row; None chooses.
        title: The caption.

    Raises:
        ValueError: Arrays or numbers of ranges that do not fit each other.
    """
    x_train, y_train = column("x_train", x_train), column("y_train", y_train)
    counts = {name: len(curves) for name, curves in models.items()}
    if not counts or len(set(counts.values())) > 1 or min(counts.values()) < 1:
        raise ValueError(f"models must each have curves on the same ranges, got {counts}")
    rows = next(iter(counts.values()))
    for name, extra in (("truth", truth), ("y_limits", y_limits)):
        if extra is not None and len(extra) != rows:
            raise ValueError(f"{name} must have {rows} entries, one for each range, got {len(extra)}")
    figure = new_figure(4.6 * len(models), 0.5 + 2.9 * rows)
    grid = figure.subplots(rows, len(models), squeeze=False, sharey="row")
    for j, (name, ranges) in enumerate(models.items()):
        for i, curves in enumerate(ranges):
            axes = grid[i, j]
            _draw(axes, curves, centre, None if truth is None else truth[i])
            data_points(axes, x_train, y_train, "training data")
            axes.set_xlim(np.asarray(curves.x).min(), np.asarray(curves.x).max())
            if y_limits is not None and y_limits[i] is not None:
                axes.set_ylim(y_limits[i])
            label(axes, x_label if i == rows - 1 else "", y_label if j == 0 else "")
            if i == 0:
                axes.set_title(name)
                axes.legend(loc="best", fontsize=8)
    caption(figure, title)
    return figure


def _draw(axes: Axes, curves: Curves, centre: Literal["mean", "median"], truth: ArrayLike | None) -> None:
    x, draws = np.asarray(curves.x, float), np.asarray(curves.draws, float)
    if truth is not None:
        axes.plot(x, column("truth", truth), color=BLACK, lw=1.1, ls="--", label="truth")
    if len(draws) == 1:
        axes.plot(x, draws[0], color=BLUE, label="prediction")
        return
    low, high = np.quantile(draws, QUANTILES[centre], axis=0)
    axes.fill_between(x, low, high, color=BLUE, alpha=0.28, lw=0, label=f"{WORDS[centre]} of {curves.of}")
    middle = draws.mean(0) if centre == "mean" else np.median(draws, axis=0)
    axes.plot(x, middle, color=BLUE, label=centre)
