"""Numbers and components in words, and what each score means, for a reader who meets them first here."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, TypeVar

from pyrobbb.report.page import Cell

T = TypeVar("T")

# name, unit, what it says
SCORES: dict[str, tuple[str, str, str]] = {
    "error": ("Error", "%", "share of wrong answers; probabilities are averaged over draws of the weights"),
    "error_mean_weights": ("Error of the mean weights", "%", "the same for one network, of the mean weights"),
    "rmse": ("Root mean squared error", "", "typical distance from the truth, in the units of y"),
    "rmse_mean_weights": ("RMSE of the mean weights", "", "the same for one network, of the mean weights"),
    "nll": (
        "Negative log-likelihood",
        "nats",
        "how surprising the truth is under the predictions; lower is better, and false certainty costs most",
    ),
    "brier": (
        "Brier score",
        "",
        "squared distance of the probabilities from the truth: 0 is perfect, 2 the worst",
    ),
    "ece": (
        "Calibration error (ECE)",
        "",
        "mean distance between how sure the predictions are and how often they are right: 0 is perfect",
    ),
    "mutual_information": (
        "Mutual information",
        "nats",
        "the part of the uncertainty that comes from not knowing the weights",
    ),
}
# It would look as if the scale were fixed, which without a number is learned all the same.
UNSAID = [("learn_scale", False)]
PARTS = {"test": "Test data", "validation": "Validation data"}


def evenly_spaced(rows: Sequence[T], most: int) -> list[T]:
    """At most so many of the rows, evenly spread, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def is_number(value: Any) -> bool:
    """Whether it is a whole or a real number; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: Any, digits: int = 4) -> str:
    """Four significant digits; whole numbers and large ones with commas."""
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return "–" if value is None or value != value else str(value)
    if not is_number(value):
        return str(value)
    if isinstance(value, int) or abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def cell(value: Any, digits: int = 4) -> Cell:
    """A cell of a table, sorted by the number it holds."""
    return Cell(number(value, digits), float(value) if is_number(value) and isfinite(value) else None)


def percent(share: float | None, digits: int = 1) -> Cell:
    """A share as a percentage; a dash where there is none."""
    return cell(None) if share is None else Cell(f"{100 * share:.{digits}f} %", share)


def seconds(value: float) -> str:
    """`46 s`, `12 min`, `3.1 h`."""
    if value < 100:
        return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 6000 else f"{value / 3600:.1f} h"


def score(name: str, value: float, digits: int = 4) -> str:
    """A score with its unit, such as `2.78 %`."""
    unit = SCORES[name][1]
    return f"{value:.2f} %" if unit == "%" else f"{number(value, digits)} {unit}".strip()


def component(part: Any) -> str:
    """What a configuration names: `ScaleMixture(pi=0.5, sigma1=1.0)`."""
    if isinstance(part, Mapping):
        said = {k: v for k, v in part.items() if v is not None and (k, v) not in UNSAID}
        options = {k: v for k, v in said.items() if k not in ("_target_", "_partial_")}
        inside = ", ".join(f"{k}={component(v)}" for k, v in options.items())
        name = str(part.get("_target_", "")).rpartition(".")[2]
        return f"{name}({inside})" if inside else name
    if isinstance(part, list):
        return "[" + ", ".join(map(component, part)) + "]"
    return f"{part:.4g}" if isinstance(part, float) else "none" if part is None else str(part)
