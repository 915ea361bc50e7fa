"""Can the model tell that an input is of another kind? ROC curves of its uncertainties."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobbb.evaluation.ood import auroc, roc_curve
from pyrobbb.figures.style import BLUE, CHAINS, GREY, ORANGE, caption, label, new_figure, styled


@styled
def detection(
    scores: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    inside: str = "like the training data",
    outside: str = "of another kind",
    unit: str = "nats",
    title: str = "Telling unknown inputs from known ones by uncertainty",
) -> Figure:
    """The ROC curve of each score with its area, and the scores' densities for both kinds of input.

    Args:
        scores: By name: scores of inputs like the training data `(m,)`, and of others `(n,)`.
        inside: What the first are.
        outside: What the others are.
        unit: Unit of the scores.
        title: The caption.

    Raises:
        ValueError: Scores that are not finite, or none.
    """
    figure = new_figure(4.2 + 2.6 * len(scores), 4.0)
    axes = figure.subplots(1, 1 + len(scores), width_ratios=[1.5] + [1.0] * len(scores))
    axes[0].plot([0, 1], [0, 1], color=GREY, ls="--", lw=1, label="guessing (0.5)")
    for i, (name, (known, unknown)) in enumerate(scores.items()):
        known, unknown = np.asarray(known, dtype=float), np.asarray(unknown, dtype=float)
        area = auroc(known, unknown)
        dashes = "-" if i % 3 < 2 else "--"  # a curve that covers another shows it
        axes[0].plot(*roc_curve(known, unknown), dashes, color=CHAINS[i], label=f"{name} ({area:.3f})")
        high = max(known.max(), unknown.max()) * 1.001 + 1e-9
        edges = np.linspace(min(0.0, known.min(), unknown.min()), high, 41)
        panel = axes[1 + i]
        panel.hist(known, edges, density=True, color=BLUE, alpha=0.55, label=inside)
        panel.hist(unknown, edges, density=True, color=ORANGE, alpha=0.55, label=outside)
        panel.set_yscale("log")
        panel.set_title(name)
        label(panel, f"uncertainty ({unit})", f"density (1/{unit.removesuffix('s')})")
    label(axes[0], f"share of {inside} taken for unknown", f"share of {outside} found")
    axes[0].set_title("ROC curves (area)")
    axes[0].legend(loc="lower right", fontsize=8)
    axes[1].legend(loc="upper right", fontsize=8)
    caption(figure, title)
    return figure
