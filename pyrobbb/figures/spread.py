"""One number of several settings, each run a dot, with mean and spread."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from pyrobbb.figures.style import BLUE, ORANGE, caption, label, new_figure, styled


@styled
def spread(
    settings: Sequence[str], values: Sequence[Sequence[float]], *, value_label: str, title: str
) -> Figure:
    """A row for each setting, in the order given: a dot per run, and bars for the mean and its spread.

    The spread is one standard deviation of the runs (with n - 1); a single run has a dot alone.

    Args:
        settings: Names of the rows.
        values: One number per run, for each setting.
        value_label: What the numbers are, with their unit.
        title: The caption.
    """
    longest = max(len(name) for name in settings)
    figure = new_figure(min(4.6 + 0.075 * longest, 12.0), 1.3 + 0.3 * len(settings))
    axes = figure.subplots()
    for row, array in enumerate(map(np.asarray, values)):
        axes.plot(array, np.full(len(array), row), "o", color=BLUE, ms=5, mew=0, alpha=0.6)
        if len(array) > 1:
            axes.errorbar(
                array.mean(), row, xerr=array.std(ddof=1), fmt="|", color=ORANGE, ms=11, mew=2, capsize=3
            )
    axes.set_yticks(range(len(settings)), settings)
    axes.set_ylim(len(settings) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    label(axes, value_label, "")
    caption(figure, title)
    return figure
