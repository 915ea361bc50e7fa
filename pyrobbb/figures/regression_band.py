"""What the posterior believes of y, inside and outside the data (paper Fig. 5)."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobbb.evaluation.calibration import quantiles
from pyrobbb.figures.style import BLACK, BLUE, caption, column, data_points, label, new_figure, styled


@styled
def regression_band(
    x: ArrayLike,
    draws: ArrayLike,
    x_train: ArrayLike,
    y_train: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    truth: ArrayLike | None = None,
    x_label: str = "x",
    y_label: str = "y",
    data_label: str = "training data",
    title: str = "Predictions of the posterior, and the training data",
) -> Figure:
    """Median, interquartile range and 2.5-97.5 % range of the predictions along x.

    Args:
        x: Where the predictions were made, `(G,)`.
        draws: Predictions there, one row for each weight draw, `(S, G)`.
        x_train: Inputs of the training data, `(N,)`.
        y_train: Targets of the training data, `(N,)`.
        weights: Of each draw, `(S,)`, summing to 1; all alike if not given.
        truth: The function that made the data, `(G,)`, where it is known.
        x_label: Name and unit of x; matplotlib reads what is between two dollar signs as a formula.
        y_label: Name and unit of y.
        data_label: What the points are, where they are not the training data.
        title: The caption.

    Raises:
        ValueError: Arrays that do not fit each other.
    """
    x, draws = column("x", x), column("draws", draws, ndim=2)
    x_train, y_train = column("x_train", x_train), column("y_train", y_train)
    if draws.shape[1] != len(x):
        raise ValueError(f"draws must have shape (S, {len(x)}), got {draws.shape}")
    if len(x_train) != len(y_train):
        raise ValueError(f"x_train and y_train must be equally long: {len(x_train)}, {len(y_train)}")
    each = None if weights is None else column("weights", weights)
    curve = None if truth is None else column("truth", truth)
    for name, given, count in (("weights", each, len(draws)), ("truth", curve, len(x))):
        if given is not None and len(given) != count:
            raise ValueError(f"{name} must have shape ({count},), got {given.shape}")
    order, reach = np.argsort(x), 0.0
    if x.min() == x.max():  # one input: a bar, since a band would have no width
        order, reach = order[[0, -1]], 0.01 * (abs(x[0]) or 1.0)
    x = x[order] + np.linspace(-reach, reach, len(order))
    low, first, median, third, high = quantiles(draws[:, order], [0.025, 0.25, 0.5, 0.75, 0.975], each)
    figure = new_figure(7.0, 4.4)
    axes = figure.subplots()
    axes.fill_between(x, low, high, color=BLUE, alpha=0.18, lw=0, label="2.5-97.5 %")
    axes.fill_between(x, first, third, color=BLUE, alpha=0.38, lw=0, label="interquartile range")
    axes.plot(x, median, color=BLUE, label="median")
    if curve is not None:
        axes.plot(x, curve[order], color=BLACK, lw=1.1, ls="--", label="truth")
    data_points(axes, x_train, y_train, data_label)
    axes.set_xlim(x[0] - 20 * reach, x[-1] + 20 * reach)
    label(axes, x_label, y_label)
    axes.legend(loc="best")
    caption(figure, title)
    return figure
