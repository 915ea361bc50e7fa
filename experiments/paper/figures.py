"""Figures that compare several networks: error by epoch, weights by method, error by share removed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.stats import norm

from pyrobbb.figures.style import BLACK, CHAINS, GREY, RED, caption, data_points, label, new_figure, styled

Curve = tuple[Sequence[float], Sequence[float]]
Draws = tuple[np.ndarray, np.ndarray]  # x, (G,), and functions there, (S, G); S = 1 is a point


LONG, RUNNING = 100, 20  # epochs: a curve that is smoothed, and over how many


@styled
def error_by_epoch(curves: Mapping[str, Sequence[Curve]], *, title: str) -> Figure:
    """One colour for each method, one line for each seed (paper Fig. 2); long ones with a running mean.

    Errors measured at intervals of several epochs have a marker each, and no mean.
    """
    figure = new_figure(7.5, 4.2)
    axes = figure.subplots()
    lows, last = [], []
    for colour, (name, lines) in zip(CHAINS, curves.items(), strict=False):
        named = set()
        for epoch, error in lines:
            every = int(np.diff(epoch).max(initial=1))
            over = RUNNING if len(error) > LONG and every == 1 else 1
            mean = np.convolve(error, np.ones(over) / over, "valid")
            said = f"{name}, mean of {over} epochs" if over > 1 else name
            said += f", every {every} epochs" * (every > 1)
            style = {"marker": "o", "ms": 3, "lw": 0.7} if every > 1 else {"lw": 1.3}
            axes.plot(epoch[over - 1 :], mean, color=colour, label=None if said in named else said, **style)
            named.add(said)
            if over > 1:
                axes.plot(epoch, error, color=colour, lw=0.5, alpha=0.4)
            lows.append(np.nanmin(error))
            last.append(error[len(error) // 4])
    axes.set_ylim(0.93 * min(lows), max(1.15 * max(last), 1.1 * min(lows)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label(axes, "epoch", "validation error (%)")
    figure.legend(loc="outside lower center", ncols=2)
    caption(figure, title)
    return figure


@styled
def weights_by_method(weights: Mapping[str, Mapping[str, Any] | None], *, title: str) -> Figure:
    """Density of the weights in [-reach, reach] by method, linear and logarithmic (paper Fig. 3).

    Args:
        weights: By method, their `sd`, and their `density` in bins of one width from -`reach` to `reach`; of
            a method that was not run None.
        title: The caption.
    """
    figure = new_figure(9.0, 3.9)
    panels = figure.subplots(1, 2)
    for colour, (name, found) in zip(CHAINS, weights.items(), strict=False):
        if found is None:
            continue
        edges = np.linspace(-found["reach"], found["reach"], len(found["density"]) + 1)
        middle, density = (edges[1:] + edges[:-1]) / 2, np.asarray(found["density"], dtype=float)
        for axes in panels:
            axes.plot(middle, np.where(density > 0, density, np.nan), color=colour, lw=1.5,
                      label=f"{name} (sd {found['sd']:.3f})")  # fmt: skip
            axes.set_xlim(middle[0], middle[-1])
    panels[0].set_ylim(bottom=0)
    panels[1].set_yscale("log")
    for axes, scale in zip(panels, ("", " (log scale)"), strict=True):
        label(axes, "weight", f"density{scale}")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    caption(figure, title)
    return figure


@styled
def error_by_removed(curves: Mapping[str, Curve], *, title: str) -> Figure:
    """Test error in percent against the share of the weights removed, the share left on a log axis."""
    figure = new_figure(7.5, 4.2)
    axes = figure.subplots()
    styles = ("-", "--", "-", "--", ":", ":")
    colours = (CHAINS[0], CHAINS[0], CHAINS[1], CHAINS[1], GREY, RED)
    for colour, style, (name, (removed, error)) in zip(colours, styles, curves.items(), strict=False):
        shares = 1 - np.asarray(removed, dtype=float)
        axes.plot(np.maximum(shares, 0.004), error, style, color=colour, marker="o", ms=4, label=name)
    ticks = [1, 0.75, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.004]
    names = ["0 %", "25 %", "50 %", "75 %", "90 %", "95 %", "98 %", "99 %", "100 %"]
    axes.set_xscale("log")
    axes.set_yscale("log")
    values = np.concatenate([np.asarray(error, dtype=float) for _, error in curves.values()])
    low, high = 0.8 * max(values.min(), 0.1), 1.3 * values.max()  # an error of 0 has no logarithm
    y_ticks = [t for t in (0.5, 1, 1.5, 2, 3, 5, 10, 20, 50, 100) if low <= t <= high]
    axes.set_yticks(y_ticks, [f"{t:g}" for t in y_ticks])
    axes.set_xticks(ticks, names)
    axes.minorticks_off()
    least = min(1 - max(removed) for removed, _ in curves.values())
    axes.set_xlim(1.1, max(0.9 * least, 0.0035))
    axes.set_ylim(low, high)
    label(axes, "weights removed", "test error (%, log scale)")
    axes.legend(loc="upper left")
    caption(figure, title)
    return figure


@styled
def weight_posteriors(
    weights: Mapping[str, tuple[float, float]], *, prior: float | None, title: str
) -> Figure:
    """Posterior density N(mu, sigma^2) of single weights, by name, and the prior N(0, prior^2)."""
    figure = new_figure(3.6 * len(weights), 3.6)
    panels = figure.subplots(1, len(weights), squeeze=False)[0]
    for axes, (name, (mu, sigma)) in zip(panels, weights.items(), strict=True):
        w = np.linspace(mu - 4 * sigma, mu + 4 * sigma, 200)
        axes.plot(w, norm.pdf(w, mu, sigma), color=CHAINS[0], label="posterior")
        if prior is not None:
            axes.plot(w, norm.pdf(w, 0.0, prior), color=GREY, ls="--", label=f"prior, sd {prior:g}")
        axes.set_ylim(bottom=0)
        axes.set_title(f"{name}: mean {mu:.4f}, sd {sigma:.4f}".replace("-", "\u2212"))
        label(axes, "weight", "density")
    panels[0].legend(loc="upper right")
    caption(figure, title)
    return figure


@styled
def band_grid(
    models: Mapping[str, Sequence[Draws]],
    x_train: np.ndarray,
    y_train: np.ndarray,
    *,
    truth: Sequence[np.ndarray],
    y_limits: Sequence[tuple[float, float]],
    title: str,
) -> Figure:
    """Predictions along x: one column for each model, one row for each range, the y axis shared along a row.

    Args:
        models: By name, the functions on each range.
        x_train: Inputs of the training data, `(N,)`.
        y_train: Targets of the training data, `(N,)`.
        truth: The function that made the data, at each range's x.
        y_limits: The y axis of each row.
        title: The caption.
    """
    rows = len(truth)
    figure = new_figure(4.6 * len(models), 0.5 + 2.9 * rows)
    grid = figure.subplots(rows, len(models), squeeze=False, sharey="row")
    for j, (name, ranges) in enumerate(models.items()):
        for i, (x, draws) in enumerate(ranges):
            axes = grid[i, j]
            axes.plot(x, truth[i], color=BLACK, lw=1.1, ls="--", label="truth")
            if len(draws) == 1:
                axes.plot(x, draws[0], color=CHAINS[0], label="prediction")
            else:
                low, high = np.quantile(draws.astype(float), (0.025, 0.975), axis=0)
                words = "2.5-97.5 % of the draws"
                axes.fill_between(x, low, high, color=CHAINS[0], alpha=0.28, lw=0, label=words)
                axes.plot(x, draws.astype(float).mean(0), color=CHAINS[0], label="mean")
            data_points(axes, x_train, y_train, "training data")
            axes.set_xlim(x.min(), x.max())
            axes.set_ylim(y_limits[i])
            label(axes, "x" if i == rows - 1 else "", "y" if j == 0 else "")
            if i == 0:
                axes.set_title(name)
                axes.legend(loc="best", fontsize=8)
    caption(figure, title)
    return figure
