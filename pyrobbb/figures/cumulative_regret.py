"""How much a bandit's agents lost by not knowing best: cumulative regret, on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import ArrayLike

from pyrobbb.figures.style import CHAINS, GREY, caption, column, label, new_figure, styled

POINTS = 1000  # of a line: more cannot be seen


@styled
def cumulative_regret(
    regrets: Mapping[str, ArrayLike],
    *,
    references: Mapping[str, float] | None = None,
    ylabel: str = "cumulative expected regret (units of reward)",
    title: str = "Cumulative regret by step: mean of the runs, and from the least to the greatest of them",
) -> Figure:
    """Mean over runs as a line, least to greatest as a band, one colour for each agent.

    Args:
        regrets: Cumulative regret of each agent after steps 1, 2, ..., `(R, T)`; T may differ.
        references: Regret per step of fixed behaviour, drawn as dashed lines; such as never eating.
        ylabel: What is counted, and its unit.
        title: The caption.

    Raises:
        ValueError: No agent, or an array of another shape.
    """
    if not regrets:
        raise ValueError("regrets must hold at least one agent")
    figure = new_figure(7.2, 4.6)
    axes = figure.subplots()
    longest = 0
    for (name, values), colour in zip(regrets.items(), CHAINS * (1 + len(regrets) // 8), strict=False):
        runs = column(f"regrets[{name!r}]", values, ndim=2)
        steps = _shown(runs.shape[1])
        longest = max(longest, runs.shape[1])
        shown = np.where(runs[:, steps - 1] > 0, runs[:, steps - 1], np.nan)
        mean = runs.mean(axis=0)[steps - 1]
        axes.plot(steps, np.where(mean > 0, mean, np.nan), color=colour, label=name)
        if len(runs) > 1:
            low = np.nanmin(np.where(np.isnan(shown), np.inf, shown), axis=0)
            high = np.nanmax(np.where(np.isnan(shown), -np.inf, shown), axis=0)
            drawn = np.isfinite(low) & np.isfinite(high)
            axes.fill_between(steps, low, high, where=drawn, color=colour, alpha=0.18, lw=0)
    for name, per_step in (references or {}).items():
        steps = _shown(longest)
        axes.plot(steps, per_step * steps, color=GREY, ls="--", lw=1.0)
        axes.annotate(name, (longest, per_step * longest), color=GREY, fontsize=8, ha="right", va="bottom")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlim(0, longest)
    axes.set_ylim(bottom=10)
    label(axes, "step (mushrooms met)", ylabel)
    axes.legend(loc="lower right")
    caption(figure, title)
    return figure


def _shown(steps: int) -> np.ndarray:
    """Which steps, from 1, to draw: all of the first few hundred, then fewer."""
    return np.unique(
        np.concatenate([np.arange(1, min(steps, 300) + 1), np.linspace(1, steps, POINTS)]).astype(int)
    )
