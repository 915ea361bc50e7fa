"""A number over a grid of two choices, as tiles with the numbers in them; one panel for each third choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobbb.figures.style import caption, column, new_figure, styled


@styled
def heat_map(
    panels: Mapping[str, ArrayLike],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    row_name: str,
    column_name: str,
    value_name: str,
    digits: int = 2,
    title: str = "Values over the grid",
) -> Figure:
    """Tiles coloured by value, the same colours in all panels; NaN (no value) is left white and says so.

    Args:
        panels: Values `(R, C)` by the panel's heading.
        rows: Labels of the R rows.
        columns: Labels of the C columns.
        row_name: What the rows are.
        column_name: What the columns are.
        value_name: What is shown, with its unit.
        digits: Decimals in the tiles.
        title: The caption.

    Raises:
        ValueError: Values of another shape than (R, C), or no finite value.
    """
    arrays = {name: column(name, values, ndim=2) for name, values in panels.items()}
    for name, values in arrays.items():
        if values.shape != (len(rows), len(columns)):
            raise ValueError(f"{name} must have shape ({len(rows)}, {len(columns)}), got {values.shape}")
    every = np.concatenate([values.ravel() for values in arrays.values()])
    every = every[np.isfinite(every)]
    if not len(every):
        raise ValueError("no value is finite; there is nothing to show")
    low, high = float(every.min()), float(every.max())
    colours = Normalize(low, max(high, low + 10.0**-digits))
    figure = new_figure(1.6 + (0.55 + 0.8 * len(columns)) * len(arrays), 1.9 + 0.55 * len(rows))
    axes = figure.subplots(1, len(arrays), squeeze=False)[0]
    for axis, (name, values) in zip(axes, arrays.items(), strict=True):
        picture = axis.imshow(values, cmap="viridis", norm=colours, aspect="auto")
        for (r, c), value in np.ndenumerate(values):
            dark = np.isfinite(value) and colours(value) < 0.6
            words = f"{value:.{digits}f}" if np.isfinite(value) else "stopped"
            axis.text(c, r, words, ha="center", va="center", fontsize=8, color="white" if dark else "black")
        axis.set_xticks(range(len(columns)), columns)
        axis.set_yticks(range(len(rows)), rows)
        axis.grid(False)
        axis.set_title(name)
        axis.set_xlabel(column_name)
    axes[0].set_ylabel(row_name)
    figure.colorbar(picture, ax=axes, label=value_name, pad=0.02)
    caption(figure, title)
    return figure
