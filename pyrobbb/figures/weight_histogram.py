"""Where the weights are: under the prior, under the posterior, and the posterior means (paper Fig. 3)."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobbb.figures.style import BLACK, BLUE, ORANGE, caption, column, label, new_figure, styled

Density = Callable[[np.ndarray], np.ndarray]


@styled
def weight_histogram(
    means: ArrayLike,
    draws: ArrayLike,
    prior_density: Density | None = None,
    *,
    which: str = "",
    title: str | None = None,
) -> Figure:
    """Density of the weights, and of log10 |w|, where a scale mixture shows as two humps.

    Args:
        means: Posterior means of the weights, any shape.
        draws: Weights drawn from the posterior, any shape.
        prior_density: w -> p(w) for one weight, on arrays; left out where weights have several priors.
        which: Which weights, for the caption.
        title: The caption, in place of the usual one.

    Raises:
        ValueError: No weights, or one that is not finite.
    """
    samples = {"means": column("means", np.ravel(means)), "draws": column("draws", np.ravel(draws))}
    for name, sample in samples.items():
        if not np.isfinite(sample).all():
            raise ValueError(f"{name} has {int((~np.isfinite(sample)).sum())} weights that are not finite")
    reach = 1.15 * max(*(float(np.quantile(np.abs(s), 0.9999)) for s in samples.values()), 1e-12)
    bins = int(np.clip(len(samples["means"]) ** 0.5, 30, 120)) // 2 * 2 + 1  # odd: one bin is centred on 0
    figure = new_figure(9.0, 3.9)
    linear, decades = figure.subplots(1, 2)
    _by_value(linear, samples, prior_density, reach, bins)
    _by_magnitude(decades, samples, prior_density, reach, bins)
    linear.legend(loc="upper right")
    under = "the posterior" if prior_density is None else "prior and posterior"
    caption(figure, title or f"Weights{which} under {under}, and the same by order of magnitude")
    return figure


def _stairs(axes: Axes, edges: np.ndarray, draws: np.ndarray, means: np.ndarray) -> None:
    axes.stairs(draws, edges, color=BLUE, fill=True, alpha=0.45, label="posterior draws")
    axes.stairs(means, edges, color=ORANGE, lw=1.4, label="posterior means")


def _by_value(
    axes: Axes, samples: dict[str, np.ndarray], prior: Density | None, reach: float, bins: int
) -> None:
    """Density of w on a logarithmic scale, on which a narrow spike at 0 and a wide slab are both seen."""
    edges = np.linspace(-reach, reach, bins + 1)
    width = edges[1] - edges[0]
    heights = {name: np.histogram(s, edges)[0] / (len(s) * width) for name, s in samples.items()}
    _stairs(axes, edges, **heights)
    top = max(h.max() for h in heights.values())
    bottom = 0.7 / (len(samples["means"]) * width)  # just below a weight that is alone in its bin
    if prior is not None:
        # evenly spaced in asinh: fine at 0, however narrow the spike
        w = reach * np.sinh(np.linspace(-12, 12, 2001)) / np.sinh(12)
        density = prior(w)
        axes.plot(w, density, color=BLACK, lw=1.2, label="prior")
        top = max(top, density[np.isfinite(density)].max(initial=0.0))
    axes.set_yscale("log")
    axes.set_ylim(min(bottom, top / 10), 2 * top)
    axes.set_xlim(-reach, reach)
    label(axes, "weight", "density (log scale)")


def _by_magnitude(
    axes: Axes, samples: dict[str, np.ndarray], prior: Density | None, reach: float, bins: int
) -> None:
    """Density of log10 |w|."""
    sizes = np.abs(np.concatenate(list(samples.values())))
    sizes = sizes[sizes > reach * 1e-6]
    high = np.log10(reach) + 0.2
    low = min(np.log10(np.quantile(sizes, 0.002)) if len(sizes) else high, high - 1)
    if prior is not None:
        grid = np.linspace(low, high + 4, 2000)
        size = 10.0**grid
        density = (prior(size) + prior(-size)) * size * np.log(10)
        high = max(high, float(grid[density >= 0.03 * density.max()][-1]))
        axes.plot(grid, density, color=BLACK, lw=1.2, label="prior")
    edges = np.linspace(low, high, bins)
    heights = {}
    for name, sample in samples.items():  # a weight of exactly 0 has no place here, but counts in the total
        logs = np.log10(np.abs(sample[sample != 0]))
        heights[name] = np.histogram(logs, edges)[0] / (len(sample) * (edges[1] - edges[0]))
    _stairs(axes, edges, **heights)
    axes.set_xlim(low, high)
    axes.set_ylim(bottom=0)
    label(axes, r"$\log_{10}|\mathrm{weight}|$", "density per decade")
