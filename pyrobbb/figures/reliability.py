"""Does a prediction made with 80 % confidence come true 80 % of the time?"""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import ArrayLike

from pyrobbb._support import checks
from pyrobbb.data.arrays import row_weights
from pyrobbb.evaluation.calibration import by_confidence
from pyrobbb.evaluation.metrics import labelled
from pyrobbb.figures.style import BLUE, GREY, RED, as_array, caption, label, new_figure, styled

NORMAL = 1.959964  # standard deviations on either side that hold 95 %


@styled
def reliability(
    probs: ArrayLike,
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    bins: int = 15,
    title: str = "Reliability of the predictions",
) -> Figure:
    """Accuracy against confidence (the largest probability) in equal bins, and how many examples are in each.

    Accuracies have Wilson's 95 % intervals, with weights those of the effective number of examples. The
    caption gives ECE = sum_b n_b/M |accuracy_b - confidence_b|.

    Args:
        probs: Predictive probabilities, `(M, C)`.
        y: Labels, `(M,)`.
        weights: How often each example counts, `(M,)`; once by default.
        bins: Number of bins.
        title: The caption, to which the calibration error is added.

    Raises:
        ValueError: What `classification_metrics` refuses, or no bins.
    """
    given = labelled(probs, y)
    often = as_array(row_weights("weights", weights, given[0]))
    chances, labels = map(as_array, given)
    found, squares = (
        by_confidence(chances, labels, checks.count("bins", bins), c) for c in (often, often**2)
    )
    counts, accuracy = found.count, found.accuracy
    figure = new_figure(5.4, 5.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    above.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--", label="perfectly calibrated")
    slack = NORMAL**2 * squares.count / counts**2  # the latter are 1 / effective number (Kish 1965)
    middle = (accuracy + slack / 2) / (1 + slack)
    half = np.sqrt(slack * (accuracy * (1 - accuracy) + slack / 4)) / (1 + slack)
    low, high = np.minimum(middle - half, accuracy), np.maximum(middle + half, accuracy)  # rounded as it is
    above.vlines(found.confidence, found.confidence, accuracy, color=RED, lw=2.5, alpha=0.5, label="gap")
    error = (accuracy - low, high - accuracy)  # of a single example too, where a standard error would be 0
    above.errorbar(
        found.confidence, accuracy, error, fmt="o", ms=5, color=BLUE, lw=1, label="accuracy, 95 % interval"
    )
    above.set_ylim(-0.02, 1.02)
    above.set_ylabel("accuracy in the bin")
    above.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    below.bar(found.low, counts, 1 / bins, align="edge", color=BLUE, alpha=0.55)
    below.set_yscale("log")
    below.set_ylim(min(0.5, counts.min() / 2), 6 * counts.max())
    least = counts.min() / 2
    below.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.10g}" if value >= least else "")
    )
    below.yaxis.set_minor_formatter(NullFormatter())  # else of few examples powers of ten
    for centre, count in zip((found.low + found.high) / 2, counts, strict=True):
        words = f"{count:,.4g}" if count < 10_000 else f"{count / 1000:.0f}k"
        below.annotate(words, (centre, count), (0, 2), textcoords="offset points", ha="center", fontsize=6.5)
    examples = "examples" if weights is None else "examples, by weight"
    label(below, "confidence: probability of the predicted class", examples)
    lowest = found.low.min()
    below.set_xlim(0 if lowest < 0.35 else lowest - 0.02, 1.005)
    total = int((often > 0).sum())
    examples = "1 example" if total == 1 else f"{total:,} examples"
    caption(figure, f"{title}\nECE {found.ece:.4f}, {examples}, {bins} bins")
    return figure
