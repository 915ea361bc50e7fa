"""How good, and how certain, a prediction is: from probabilities and labels to numbers.

Entropies and NLL are in nats, classification errors in percent, the RMSE in units of y; the Brier score and
the calibration error have no unit.
"""

from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobbb._support import text
from pyrobbb.data.arrays import row_weights
from pyrobbb.data.frames import refuse_masked
from pyrobbb.evaluation.calibration import by_confidence

Array = np.ndarray | Tensor
SUM_TOLERANCE = 1e-4


def classification_metrics(probs: Array, y: Array, weights: Array | None = None) -> dict[str, float]:
    """Scores of predictive probabilities `(M, C)` against labels `(M,)` in 0..C-1.

    `weights`, `(M,)`, say how often each example counts; None is once.

    `error`: share of examples whose most probable class is wrong, in percent.
    `nll`: -mean_m log p_m[y_m], in nats per example. A probability that was rounded to 0 counts as the
    smallest normal number of its type, float32 in place of a shorter one (87 nats), so that the mean stays
    finite.
    `brier`: mean_m sum_c (p_mc - [y_m = c])^2, from 0 to 2.
    `ece`: expected calibration error, sum_b n_b/M |accuracy_b - confidence_b| over 15 equal bins.

    Raises:
        ValueError: Shapes that do not match, labels out of range, or rows that are not probabilities, such
            as an unnormalised geometric mean.
    """
    probs, y = labelled(probs, y)
    C = probs.shape[1]
    chosen = probs.gather(1, y[:, None])[:, 0].clamp_min(torch.finfo(probs.dtype).tiny).double()
    difference = probs.double() - torch.nn.functional.one_hot(y, C)
    counts = row_weights("weights", weights, chosen)
    return {
        "error": row_mean(100 * (probs.argmax(1) != y), weights),
        "nll": 0.0 - row_mean(chosen.log(), weights),  # not -0.0 when every prediction is perfect
        "brier": row_mean(difference.square().sum(1), weights),
        "ece": by_confidence(probs.cpu().numpy(), y.cpu().numpy(), counts=counts.cpu().numpy()).ece,
    }


def regression_metrics(
    mean: Array, log_density: Array, y: Array, weights: Array | None = None
) -> dict[str, float]:
    """Scores of a predictive density of real targets.

    `rmse`: sqrt(mean (mean - y)^2), in the units of y; the mean is over all D targets, too.
    `nll`: -mean_m log p(y_m | x_m), in nats per example, where the density is averaged over weight
    draws: p(y | x) = mean_s p(y | x, w_s).

    Args:
        mean: Predictive means, `(M,)` or `(M, D)`.
        log_density: Log predictive density of each target, `(M,)`.
        y: Targets, of the shape of `mean`.
        weights: How often each row counts, `(M,)`; None is once.

    Raises:
        ValueError: Shapes that differ (they are never broadcast), or a value that is not finite in a row that
            counts.
    """
    mean, log_density, y = (as_tensor(a).double() for a in (mean, log_density, y))
    if mean.shape != y.shape or y.ndim not in (1, 2) or not len(y):
        raise ValueError(
            f"mean and y must share a shape (M,) or (M, D): {tuple(mean.shape)}, {tuple(y.shape)}"
        )
    if log_density.shape != y.shape[:1]:
        raise ValueError(f"log_density must have shape ({len(y)},), got {tuple(log_density.shape)}")
    counting = row_weights("weights", weights, y) > 0
    for name, rows in (("mean", mean), ("log_density", log_density), ("y", y)):
        value = rows[counting]
        if not value.isfinite().all():
            raise ValueError(f"{name} has {int((~value.isfinite()).sum())} values that are not finite")
    squares = (mean - y).square().reshape(len(y), -1).mean(1)
    return {"rmse": sqrt(row_mean(squares, weights)), "nll": 0.0 - row_mean(log_density, weights)}


def row_mean(values: Tensor, weights: Any = None) -> float:
    """The mean over rows of values `(M,)`, each as often as it counts; one that does not may be infinite.

    Raises:
        ValueError: `weights` are not one for each row, at least 0, finite and not all 0.
    """
    values = values.double()
    counts = row_weights("weights", weights, values)
    return float((counts @ values.where(counts > 0, 0.0)) / counts.sum())


def entropy(probs: Array) -> Tensor:
    """H(p) = -sum_c p_c log p_c over the last axis, in nats, with 0 log 0 = 0."""
    probs = as_tensor(probs)
    return -torch.special.xlogy(probs, probs).sum(-1)


def as_tensor(values: Any) -> Tensor:
    """Tensors without their gradient; arrays and lists as tensors of their own.

    Raises:
        ValueError: They are not numbers, or some are masked.
    """
    refuse_masked("the array", values)
    if isinstance(values, Tensor):
        return values.detach()
    array = np.ascontiguousarray(values)
    if array.dtype.kind not in "biufc":
        raise ValueError(
            f"values must be numbers, got {text.short(array.flat[0]) if array.size else 'none'}; classes "
            f"are numbered from 0, for a table by data.columns.labels(name, values)"
        )
    return torch.tensor(array)  # a copy: torch shares no read-only memory


def labelled(probs: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Probabilities `(M, C)` and labels `(M,)` in 0..C-1 as tensors, or a ValueError that says why not."""
    probs, y = _probabilities(probs), as_tensor(y)
    M, C = probs.shape
    if y.shape != (M,) or y.is_complex() or not torch.equal(y, y.long().to(y.dtype)):
        raise ValueError(f"y must hold {M} whole-number labels, got shape {tuple(y.shape)}, dtype {y.dtype}")
    y = y.to(probs.device, torch.long)
    if y.min() < 0 or y.max() >= C:
        raise ValueError(f"y must lie in 0..{C - 1} for {C} classes, got {int(y.min())}..{int(y.max())}")
    return probs, y


def _probabilities(probs: Any) -> Tensor:
    """`probs` with rows that sum to 1 exactly, or the reason why they are not probabilities."""
    probs = as_tensor(probs)
    if probs.ndim != 2 or not probs.numel():
        raise ValueError(f"probs must have shape (M, C), got {tuple(probs.shape)}")
    if probs.shape[-1] < 2:
        raise ValueError("probs must have at least 2 classes; for one probability p, stack (1 - p, p)")
    if not probs.is_floating_point():
        raise ValueError(f"probs must be floating-point numbers, got {probs.dtype}")
    tolerance = max(SUM_TOLERANCE, 2 * torch.finfo(probs.dtype).eps)
    if probs.dtype in (torch.float16, torch.bfloat16):
        probs = probs.float()
    total = probs.sum(-1)
    bad = ~((probs >= 0).all(-1) & ((total - 1).abs() <= tolerance))  # so written, NaN is bad too
    if bad.any():
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"probs must be at least 0 and sum to 1 within {tolerance:.2g}: {int(bad.sum())} of "
            f"{bad.numel()} rows do not; row {first} has sum "
            f"{float(total[first]):.6g}, minimum {float(probs[first].min()):.3g}"
        )
    return probs / total[:, None]
