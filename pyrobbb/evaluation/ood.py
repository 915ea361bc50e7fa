"""Telling out-of-distribution inputs from familiar ones by the model's uncertainty."""

import numpy as np
import scipy
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.evaluation.metrics import as_tensor

Array = np.ndarray | Tensor


def auroc(inside: Array, outside: Array) -> float:
    """Area under the ROC curve: P(score of an outsider > score of an insider), a tie counting one half.

    It is Mann and Whitney's statistic over its largest value. 0.5 is guessing, 1 is a perfect separation.

    Args:
        inside: Scores of inputs like the training data, `(m,)`.
        outside: Scores of inputs of another kind, `(n,)`; these should be larger.

    Raises:
        ValueError: Scores that are not finite, or none.
    """
    m, n = _scores("inside", inside), _scores("outside", outside)
    return float(scipy.stats.mannwhitneyu(n, m, method="asymptotic").statistic / (len(m) * len(n)))


def roc_curve(inside: Array, outside: Array, points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """False alarms among `inside` and hits among `outside`, as shares, for thresholds from high to low."""
    m, n = np.sort(_scores("inside", inside)), np.sort(_scores("outside", outside))
    thresholds = np.quantile(np.concatenate([m, n]), np.linspace(1, 0, points))
    alarms = 1 - np.searchsorted(m, thresholds, side="right") / len(m)
    hits = 1 - np.searchsorted(n, thresholds, side="right") / len(n)
    return np.append(alarms, 1.0), np.append(hits, 1.0)


def hits(inside: Array, outside: Array, alarms: float) -> float:
    """The share of `outside` above the score that at most a share `alarms` of `inside` exceeds.

    This is the true-positive rate at a false-positive rate of at most `alarms`.
    """
    m, n = np.sort(_scores("inside", inside)), _scores("outside", outside)
    checks.between("alarms", alarms, 0, 1)
    allowed = int(round(alarms * len(m), 9))
    threshold = m[len(m) - 1 - allowed] if allowed < len(m) else -np.inf
    return float((n > threshold).mean())


def _scores(name: str, values: Array) -> np.ndarray:
    array = as_tensor(values).cpu().double().numpy()
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(f"{name} must be a vector of finite scores, got shape {array.shape}")
    return array
