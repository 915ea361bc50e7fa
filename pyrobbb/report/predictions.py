"""The sections on the predictions for test data: are they calibrated, and which inputs are uncertain?"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.image import imsave

from pyrobbb.evaluation import arviz_io
from pyrobbb.evaluation.calibration import by_confidence, coverage, pooled
from pyrobbb.report import charts
from pyrobbb.report.page import Cell, Chart, Charts, Example, Gallery, Picture, Section, Table
from pyrobbb.report.words import cell, evenly_spaced, number, percent

IMAGES = 12
ROWS = 15  # of a table of uncertain inputs
CURVE = 400  # inputs of a band
QUANTILES = ("low90", "low50", "median", "high50", "high90")  # as `posterior.nc` holds them
OLD = (
    "The posterior.nc of this run is of an earlier version, which kept no means and quantiles of the test "
    "rows. Delete it and start the run again: the fit is kept, and the file is made anew."
)


def of_classes(test: Any) -> list[Section]:
    """Of a classification: `predictions_constant_data` with the probabilities."""
    probs, y = test["probs"].values, np.asarray(test["y"].values)
    y = y if y.ndim == 1 else y[..., 0]
    entropy = test["predictive_entropy"].values
    return [_calibration(probs, y, arviz_io.row_weights(test)), _uncertain(test, probs, y, entropy)]


def of_values(data: Any, chain_weights: Sequence[float] | None = None) -> list[Section]:
    """Of a regression with one target: `posterior.nc`, with predictions for test rows."""
    test = data["predictions_constant_data"]
    draws, weights = pooled(data["predictions"]["y"].values.astype(float), chain_weights)
    y = np.asarray(test["y"].values)
    calibration = _coverage(draws, y, weights, arviz_io.row_weights(test))
    if "predictive_quantile" not in test:
        return [calibration, Section("Predictions", OLD, [])]
    found = dict(zip(QUANTILES, test["predictive_quantile"].values, strict=True))
    without = {"predictive_mean": found["median"], "predictive_sd": np.full(len(y), np.nan)}
    found["mean"], found["sd"] = (test[name].values if name in test else of for name, of in without.items())
    band = [_band(*arviz_io.one_input(data), y, found)] if test["x"].shape[1] == 1 else []
    return [*band, calibration, _widest(y, found)]


def without_inputs(test: Any, seen: np.ndarray, seen_counts: np.ndarray | None = None) -> str:
    """The score of a constant prediction, from some targets `seen` in training; "" where that is unclear.

    `seen_counts` says how often each of these counts; by default once.
    """
    y, counts = np.asarray(test["y"].values), arviz_io.row_weights(test)
    if y.ndim > 1 or seen.ndim > 1 or not y.size or not seen.size:
        return ""
    if "probs" in test:
        labels, which = np.unique(seen, return_inverse=True)
        times = np.bincount(which, seen_counts)
        error = 100 * float(np.average(y != labels[times.argmax()], weights=counts))
        said = f"Predicting the most common class of {len(seen):,} training rows for every test row"
        return f"{said}: {error:.2f} % wrong."
    mean = np.average(seen, weights=seen_counts)
    rmse = float(np.sqrt(np.average((y - mean) ** 2, weights=counts)))
    return f"Predicting the mean of {len(seen):,} training targets for every test row: RMSE {number(rmse)}."


def _calibration(probs: np.ndarray, y: np.ndarray, counts: np.ndarray | None) -> Section:
    found = by_confidence(probs, y, counts=counts)
    said, came = "confidence", "share that is right"
    columns = (found.low, found.high, found.count, found.confidence, found.accuracy)
    rows, lines = [], []
    for low, high, count, confidence, right in zip(*(column.tolist() for column in columns), strict=True):
        rows.append({said: confidence, came: right, "examples": count})
        edges = Cell(f"{100 * low:.0f}–{100 * high:.0f} %", low)
        lines.append([edges, cell(count), percent(confidence), percent(right)])
    head = ["Confidence", "Examples", "Mean confidence", "Right"]
    table = Table("Test examples by confidence", head, lines, folded=True)
    words = (
        "Of the predictions made with 80 % confidence, 80 % should be right: points on the dashed line. "
        "Points below the line are predictions that are too sure, points above it are not sure enough. A "
        "group of few may lie off the line by chance."
    )
    chart = Chart(
        "How sure, and how often right",
        charts.against_diagonal(rows, said, came, ["examples"]),
        f"The mean distance from the line (ECE) is {found.ece:.4f} over {len(y):,} test examples.",
    )
    return Section("Calibration", words, [Charts([chart], table)])


def _coverage(
    draws: np.ndarray, y: np.ndarray, weights: np.ndarray | None, counts: np.ndarray | None
) -> Section:
    said, came = "central interval", "share of test values in it"
    found = coverage(draws, y, weights, counts)
    rows = [{said: level, came: share} for level, share in found.items()]
    lines = [[percent(level, 0), percent(share)] for level, share in found.items()]
    table = Table(
        "Test values within the central intervals", ["Interval", "Test values in it"], lines, folded=True
    )
    words = (
        "A 90 % interval should hold 90 % of the true values: points on the dashed line. Below it the "
        "intervals are too narrow, above it too wide. A count at the end of an interval lies in it in part."
    )
    chart = Chart(
        "Intervals, and how many values they hold",
        charts.against_diagonal(rows, said, came, []),
        f"The 90 % intervals hold {100 * found[0.9]:.0f} % of {len(y):,} test values.",
    )
    return Section("Calibration", words, [Charts([chart], table)])


def _band(x: np.ndarray, x_name: str, y_name: str, y: np.ndarray, found: dict[str, np.ndarray]) -> Section:
    order = evenly_spaced(list(np.argsort(x)), CURVE)
    columns = {"x": x, **{name: found[name] for name in ("mean", "low90", "low50", "high50", "high90")}}
    rows = [{name: float(values[i]) for name, values in columns.items()} for i in order]
    points = [{"x": float(x[i]), "y": float(y[i])} for i in order]
    lines = []
    for row in evenly_spaced(rows, 25):
        intervals_of = (_interval(row[f"low{level}"], row[f"high{level}"]) for level in (50, 90))
        lines.append([cell(row["x"]), cell(row["mean"]), *intervals_of])
    head = [x_name, "Mean", "50 % interval", "90 % interval"]
    table = Table("Predictions over the input", head, lines, folded=True)
    words = (
        "The mean prediction, intervals that should hold half and nine tenths of new values, and test data."
    )
    chart = Chart("Test data and predictions", charts.band(rows, x_name, y_name, points), words)
    return Section("Predictions", "", [Charts([chart], table)])


def _uncertain(test: Any, probs: np.ndarray, y: np.ndarray, entropy: np.ndarray) -> Section:
    words = (
        "The test examples whose predicted probabilities are spread most evenly (largest entropy). If many "
        "of them look clear to you, or are labelled wrongly, look at the data."
    )
    order = np.argsort(-entropy)[:ROWS]
    images = arviz_io.images(test["x"].values)
    if images is None:
        lines = []
        for row in order:
            classes = [cell(int(y[row])), cell(int(probs[row].argmax())), percent(probs[row].max())]
            lines.append([Cell(str(row), float(row)), *classes, cell(float(entropy[row]), 3)])
        head = ["Test row", "True class", "Predicted class", "Its probability", "Entropy (nats)"]
        table = Table("The most uncertain test examples", head, lines)
        return Section("Most uncertain inputs", words, [table])
    rows = test["shown_row"].values[:IMAGES]
    examples = [
        _example(image, probs[row], int(y[row]), float(entropy[row]), int(row))
        for image, row in zip(images, rows, strict=False)
    ]
    coloured = " Of the bars, green is the true class and red a wrong prediction."
    return Section("Most uncertain inputs", words + coloured, [Gallery(examples)])


def _widest(y: np.ndarray, found: dict[str, np.ndarray]) -> Section:
    words = "The test rows whose predictions have the largest standard deviation or, without one, interval."
    rows = []
    for row in np.lexsort((found["low90"] - found["high90"], -found["sd"]))[:ROWS]:
        values = [cell(float(y[row])), cell(float(found["mean"][row])), cell(float(found["sd"][row]), 3)]
        interval = _interval(float(found["low90"][row]), float(found["high90"][row]))
        rows.append([Cell(str(row), float(row)), *values, interval])
    head = ["Test row", "True value", "Prediction", "Standard deviation", "90 % interval"]
    return Section("Most uncertain inputs", words, [Table("The most uncertain test rows", head, rows)])


def _interval(low: float, high: float) -> Cell:
    return Cell(f"{number(low, 3)} to {number(high, 3)}", high - low)


def _example(image: np.ndarray, probs: np.ndarray, truth: int, entropy: float, row: int) -> Example:
    guess = int(probs.argmax())
    likely = [int(c) for c in np.argsort(-probs)[:3]]
    predicted = ", ".join(f"{c} with {probs[c]:.0%}" for c in likely)
    words = f"Test row {row}: its class is {truth}; predicted {predicted}"
    picture = Picture(f"Test row {row}", _png(image), words)
    tones = {guess: "bad", truth: "good"} if guess != truth else {truth: "good"}
    bars = [(str(c), float(probs[c]), tones.get(c, "")) for c in sorted({*likely, truth})]
    right = "right" if guess == truth else "wrong"
    facts = [f"True class {truth}", f"Predicted {guess}, {right}", f"{entropy:.2f} nats"]
    return Example(picture, facts, bars)


def _png(image: np.ndarray) -> bytes:
    written = io.BytesIO()
    imsave(written, image, cmap="gray_r", format="png")
    return written.getvalue()
