"""How the free energy, or another loss, its two parts and the validation error went down, epoch by epoch."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from pyrobbb.figures.style import BLACK, CHAINS, caption, columns, label, new_figure, styled

NATS = "nats per training datum"


@styled
def learning_curves(
    epoch: ArrayLike,
    free_energy: ArrayLike,
    kl: ArrayLike,
    nll: ArrayLike,
    validation_error: ArrayLike,
    *,
    chain: ArrayLike | None = None,
    trivial: float | None = None,
    error_label: str = "validation error (%)",
    bound: bool = True,
    title: str = "",
) -> Figure:
    """F/N = KL/N + NLL/N (paper eq. 1, in nats per training datum) and the validation error, by epoch.

    Args:
        epoch: Epoch of each row of the history, `(R,)`; so are the other columns.
        free_energy: Variational free energy per datum.
        kl: Its part KL[q || p].
        nll: Its part -E log p(y | x, w).
        validation_error: NaN where it was not measured; if it never was, its panel is left out.
        chain: Which restart a row belongs to; by default all to one.
        trivial: The free energy of a posterior that ignores the inputs, for a line in its panel.
        error_label: Name and unit of the error.
        bound: Whether the loss is a free energy; else `free_energy` is that of a point, and `kl` the prior's
            part of it.
        title: The caption; by default what is the sum of what.

    Raises:
        ValueError: Columns of different lengths, or empty.
    """
    chain = np.zeros(np.shape(epoch)) if chain is None else chain
    data = columns(
        epoch=epoch, free_energy=free_energy, kl=kl, nll=nll, validation_error=validation_error, chain=chain
    )
    whole, part = ("Free energy", "KL[q || prior]") if bound else ("Loss", "Prior")
    panels = {
        "free_energy": (whole, NATS),
        "kl": (part, NATS),
        "nll": ("Negative log-likelihood", NATS),
    }
    error = data["validation_error"]
    if np.isfinite(error).any():
        best = int(np.nanargmin(error))
        lowest = f"Validation: lowest {error[best]:.4g} at epoch {data['epoch'][best]:g}"
        panels["validation_error"] = (lowest, error_label)

    wide = len(panels) == 4
    figure = new_figure(9.0, 6.0) if wide else new_figure(11.0, 3.6)
    grid = figure.subplots(2, 2, sharex=True) if wide else figure.subplots(1, 3)
    for axes, (name, (heading, unit)) in zip(grid.flat, panels.items(), strict=True):
        level = trivial if name == "free_energy" else None
        _one_panel(axes, data["epoch"], data[name], data["chain"], level)
        axes.set_title(heading)
        label(axes, "epoch", unit)
    chains = np.unique(data["chain"])
    if len(chains) > 1:
        lines = grid.flat[0].lines[: len(chains)]
        grid.flat[0].legend(lines, [f"chain {one:g}" for one in chains], ncols=1 + (len(chains) > 5))
    if wide:
        grid.flat[3].plot(data["epoch"][best], error[best], "o", ms=9, mfc="none", mec="black", mew=1)
        for axes in grid[0]:
            axes.set_xlabel("")
    parts = f"{'KL' if bound else 'the prior'} and negative log-likelihood"
    caption(figure, title or f"Learning curves: the {whole.lower()} is the sum of {parts}")
    return figure


def _one_panel(
    axes: Axes, epoch: np.ndarray, values: np.ndarray, chain: np.ndarray, level: float | None
) -> None:
    """One line for each chain; logarithmic where the values span a factor of 20 or more."""
    for i, one in enumerate(np.unique(chain)):
        rows = (chain == one) & np.isfinite(values)
        marker = "o" if rows.sum() <= 30 else None
        axes.plot(epoch[rows], values[rows], color=CHAINS[i % len(CHAINS)], marker=marker, ms=3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if level is not None:
        axes.axhline(level, color=BLACK, ls="--", lw=1)
        words = f"ignoring the inputs: {level:.3g}"
        axes.annotate(words, (0.99, level), xycoords=("axes fraction", "data"), xytext=(0, 3),
                      textcoords="offset points", ha="right", va="bottom", fontsize=9)  # fmt: skip
        values = np.append(values, level)
    finite = values[np.isfinite(values)]
    if len(finite) and finite.min() > 0 and finite.max() > 20 * finite.min():
        axes.set_yscale("log")
