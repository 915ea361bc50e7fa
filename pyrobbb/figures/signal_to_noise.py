"""Which weights carry signal: density and distribution of |mu| / sigma (paper Fig. 4)."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobbb._support import checks
from pyrobbb.figures.style import BLUE, RED, as_array, caption, label, new_figure, styled


@styled
def signal_to_noise(
    mu: ArrayLike,
    sigma: ArrayLike,
    *,
    share: float = 0.75,
    title: str = "Signal-to-noise ratio of the weights",
) -> Figure:
    """Density and distribution of 10 log10(|mu| / sigma) in dB, with the cut below which `share` lie.

    The paper does not say how it takes decibels; ours are 10 log10 of the ratio itself, and the axis
    says so. Weights with mu = 0 (-inf dB) count in the distribution and lie left of the axes.

    Args:
        mu: Locations of q(w), any shape.
        sigma: Scales of q(w), of the same shape, greater than 0.
        share: The share of weights that the line cuts off.
        title: The caption.

    Raises:
        ValueError: Shapes that differ, sigma that is not positive, or no weight with a signal.
    """
    mu, sigma = as_array(mu).astype(float), as_array(sigma).astype(float)
    if mu.shape != sigma.shape or not mu.size:
        raise ValueError(f"mu and sigma must have the same shape, not empty: {mu.shape}, {sigma.shape}")
    if not (sigma > 0).all():
        raise ValueError(f"sigma must be greater than 0, got a minimum of {sigma.min():g}")
    checks.share("share", share)
    ratio = np.ravel(np.abs(mu) / sigma)
    decibel = np.sort(10 * np.log10(ratio, out=np.full(ratio.shape, -np.inf), where=ratio > 0))
    finite = decibel[np.isfinite(decibel)]
    if not len(finite):
        raise ValueError("mu is 0 for every weight; there is no signal to show")
    cut = float(np.quantile(decibel, share, method="inverted_cdf"))
    low, high = np.quantile(finite, [0.001, 1.0])
    margin = 0.03 * (high - low) + 0.1
    low, high = low - margin, high + margin

    figure = new_figure(9.0, 3.9)
    density, cumulative = figure.subplots(1, 2)
    edges = np.linspace(low, high, 101)
    heights = np.histogram(finite, edges)[0] / (len(decibel) * np.diff(edges))
    density.stairs(heights, edges, color=BLUE, fill=True, alpha=0.55)
    density.set_ylim(bottom=0)
    grid = np.linspace(low, high, 600)
    cumulative.plot(grid, np.searchsorted(decibel, grid, side="right") / len(decibel), color=BLUE)
    cumulative.set_ylim(0, 1.02)
    words = f"{100 * share:g} % of the weights\nbelow {cut:.1f} dB".replace("-", "\u2212")
    for panel, name in ((density, "density (1/dB)"), (cumulative, "share of the weights below")):
        label(panel, r"signal-to-noise ratio, $10\,\log_{10}(|\mu|/\sigma)$ (dB)", name)
        panel.set_xlim(low, high)
        if np.isfinite(cut):
            panel.axvline(cut, color=RED, ls="--", lw=1.3, label=words)
    if np.isfinite(cut):
        cumulative.axhline(share, color=RED, ls=":", lw=1)
        cumulative.legend(loc="upper left")
    caption(figure, title)
    return figure
