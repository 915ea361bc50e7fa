"""The test examples that the posterior is least certain of, as images with its predictions."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobbb.evaluation.metrics import labelled
from pyrobbb.figures.style import BLUE, GREEN, RED, as_array, caption, column, new_figure, styled, verbatim

NAMED = 12  # classes that have room for a name beside their bar; of more, names at even steps


@styled
def uncertain_examples(
    images: ArrayLike,
    probs: ArrayLike,
    y: ArrayLike,
    uncertainty: ArrayLike,
    *,
    classes: Sequence[str] | None = None,
    rows: int = 3,
    columns: int = 4,
    title: str | None = None,
) -> Figure:
    """The `rows * columns` images of largest `uncertainty`, each next to its predictive probabilities.

    The bar of the true class is green; that of a wrong prediction is red.

    Args:
        images: Grey images, `(M, height, width)`.
        probs: Predictive probabilities, `(M, C)`.
        y: Labels, `(M,)`.
        uncertainty: What to sort by, `(M,)`, in nats, such as the predictive entropy.
        classes: Names of the C classes; by default their numbers.
        rows: Rows of the grid, if there are as many images.
        columns: Columns of the grid, if there are as many images.
        title: The caption.

    Raises:
        ValueError: Arrays or names that do not fit each other, or what `classification_metrics` refuses.
    """
    chances, labels = map(as_array, labelled(probs, y))
    images, uncertainty = column("images", images, ndim=3), column("uncertainty", uncertainty)
    M, C = chances.shape
    lengths = (len(images), M, len(uncertainty))
    if len(set(lengths)) > 1:
        raise ValueError(f"images, probs and uncertainty must be equally long, got {lengths}")
    classes = [str(c) for c in range(C)] if classes is None else list(classes)
    if len(classes) != C:
        raise ValueError(f"classes must have {C} names, got {len(classes)}")
    columns = min(columns, M)
    rows = min(rows, math.ceil(M / columns))
    chosen = np.argsort(-uncertainty, kind="stable")[: rows * columns]
    limit = 0.5 if chances[chosen].max() <= 0.5 else 1.0
    wide = max(map(len, classes)) > 2
    classes = [*map(verbatim, classes)]
    step = math.ceil(C / NAMED)
    figure = new_figure((2.9 if wide else 2.55) * columns, 0.55 + 1.62 * rows)
    cells = figure.subplots(rows, 2 * columns, squeeze=False, width_ratios=[1.0, 1.15] * columns)
    for cell in cells.flat[2 * len(chosen) :]:
        cell.set_axis_off()
    for i, m in enumerate(chosen):
        picture, bars = cells.flat[2 * i], cells.flat[2 * i + 1]
        picture.imshow(images[m], cmap="gray_r", interpolation="nearest")
        picture.set_axis_off()
        guess, truth = int(chances[m].argmax()), int(labels[m])
        picture.set_title(f"true: {classes[truth]}", color=GREEN, fontsize=8, pad=3)
        picture.set_anchor("N")
        colours = [GREEN if c == truth else RED if c == guess else BLUE for c in range(C)]
        bars.barh(range(C), chances[m], color=colours, height=0.75)
        bars.set_yticks(range(0, C, step), classes[::step], fontsize=6.5)
        bars.set_ylim(C - 0.4, -0.6)
        bars.set_xlim(0, limit)
        bars.set_xticks([0, limit / 2, limit], [f"{tick:g}" for tick in (0, limit / 2, limit)], fontsize=7)
        bars.tick_params(length=2, pad=1.5)
        bars.grid(False, axis="y")
        bars.set_title(f"{uncertainty[m]:.2f} nats", fontsize=8, pad=3)
        if i + columns >= len(chosen):
            bars.set_xlabel("probability", fontsize=8)
    default = f"The {len(chosen)} most uncertain test examples: true class in green, wrong prediction in red"
    caption(figure, title or default)
    return figure
