"""Several models' predictions for the same images: each image next to the class probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobbb.figures.style import BLUE, GREEN, ORANGE, caption, column, new_figure, styled

COLOURS = (BLUE, ORANGE, GREEN)


@styled
def prediction_bars(
    images: ArrayLike,
    probs: Mapping[str, ArrayLike],
    names: Sequence[str],
    *,
    columns: int = 4,
    title: str = "Class probabilities for each image",
) -> Figure:
    """A grid of images, each next to one bar per class and model.

    Args:
        images: Grey images, `(M, height, width)`.
        probs: Class probabilities `(M, C)` by the model's name; at most three models.
        names: What each image is, M words.
        columns: Images in a row.
        title: The caption.

    Raises:
        ValueError: Arrays or names that do not fit each other.
    """
    images = column("images", images, ndim=3)
    arrays = {model: column(model, p, ndim=2) for model, p in probs.items()}
    lengths = {len(images), len(names), *(len(p) for p in arrays.values())}
    if len(lengths) > 1 or not 1 <= len(arrays) <= len(COLOURS):
        raise ValueError(
            f"images, names and the probabilities of 1 to {len(COLOURS)} models must be equally long, got "
            f"{len(images)}, {len(names)} and { {model: len(p) for model, p in arrays.items()} }"
        )
    rows = -(-len(images) // columns)
    figure = new_figure(2.6 * columns, 0.8 + 1.75 * rows)
    cells = figure.subplots(rows, 2 * columns, squeeze=False, width_ratios=[1.0, 1.25] * columns)
    for cell in cells.flat[2 * len(images) :]:
        cell.set_axis_off()
    height = 0.8 / len(arrays)
    for i, name in enumerate(names):
        picture, bars = cells.flat[2 * i], cells.flat[2 * i + 1]
        picture.imshow(images[i], cmap="gray_r", interpolation="nearest")
        picture.set_axis_off()
        picture.set_title(name, fontsize=8, pad=3)
        picture.set_anchor("N")
        for j, (model, p) in enumerate(arrays.items()):
            place = np.arange(p.shape[1]) + (j - (len(arrays) - 1) / 2) * height
            bars.barh(place, p[i], color=COLOURS[j], height=height, label=model)
        C = next(iter(arrays.values())).shape[1]
        bars.set_yticks(range(C), range(C), fontsize=6.5)
        bars.set_ylim(C - 0.4, -0.6)
        bars.set_xlim(0, 1)
        bars.set_xticks([0, 0.5, 1], ["0", "0.5", "1"], fontsize=7)
        bars.tick_params(length=2, pad=1.5)
        bars.grid(False, axis="y")
        bars.set_ylabel("class" if i % columns == 0 else "", fontsize=8)
        if i + columns >= len(names):
            bars.set_xlabel("probability", fontsize=8)
    handles, labels = cells.flat[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(arrays), fontsize=8.5)
    caption(figure, title)
    return figure
