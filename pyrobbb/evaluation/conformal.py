"""Split conformal prediction: intervals and sets that cover as often as they say, whatever the posterior.

Rows that the fit has not seen give scores s_i, large where the prediction is poor; their quantile

    q = the ceil((n + 1) level)-th smallest of s_1, ..., s_n

decides how far a new interval or set reaches; where rows count by fractions, it is the least score that
(n + 1) level of them do not exceed. If the new row is exchangeable with these n, it is covered
with probability at least `level`, on average over such rows, and with at most 1 / (n + 1) more for scores
without ties (Vovk et al. 2005; Lei et al. 2018). Rows by which something was chosen, such as when to stop or
which prior, are not unseen.

>>> conformal = calibrate(posterior.predict(held_x), held_y)  # doctest: +SKIP
>>> low, high = conformal.interval(posterior.predict(x), 0.9)  # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, floor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.data.arrays import row_weights
from pyrobbb.predictive import ClassPrediction, Prediction, ValuePrediction

SCORES = ("aps", "lac")


def calibrate(
    prediction: Prediction, y: Any, weights: Any = None, *, score: str = "aps"
) -> ConformalIntervals | ConformalSets:
    """Intervals for values, sets for class labels, from rows that the fit has not seen.

    Args:
        prediction: What the posterior predicts for these n rows.
        y: Their targets, as `predict` takes them.
        weights: How often each row counts, `(n,)`; n is then their sum, and a row of weight 0 is left out.
        score: Of class labels: "aps", the probability of the classes that are at least as likely as y, whose
            sets adapt to how hard a row is (Romano et al. 2020, without randomisation) and always hold the
            likeliest class, or all that tie for it; or "lac", 1 - p(y | x), whose sets are the smallest on
            average, if the probabilities are right, and may be empty (Sadinle et al. 2019).

    Raises:
        ValueError: The targets or the weights do not fit the prediction.
    """
    checks.one_of("score", score, SCORES)
    if isinstance(prediction, ValuePrediction):
        centre, scale = _centre_and_scale(prediction)
        y = prediction.targets(y).to(centre).reshape(centre.shape)
        scores, counts = _sorted((y - centre).abs() / scale, weights)
        return ConformalIntervals(scores, counts=counts)
    if not isinstance(prediction, ClassPrediction) or prediction.probs.dim() != 2:
        raise ValueError("conformal sets are for one class label in each row")
    probs = prediction.probs
    if weights is not None and len(y) == len(probs):  # the label of a row that counts nothing may be any
        counts = row_weights("weights", weights, probs)
        there = counts > 0
        y = y[there.to(y.device)] if isinstance(y, Tensor) else np.asarray(y)[there.numpy(force=True)]
        probs, weights = probs[there], counts[there]
    y = prediction.labels(y)
    if y.shape != probs.shape[:1]:
        raise ValueError(f"y has the shape {tuple(y.shape)}, but {len(probs)} rows were predicted")
    of_classes = _class_scores(probs, score)
    labels = y.long().to(of_classes.device)[:, None]
    scores, counts = _sorted(of_classes.gather(1, labels), weights)
    return ConformalSets(scores, score, of_classes.shape[1], counts=counts)


@dataclass(frozen=True)
class _Calibrated:
    """The scores of calibration rows, `(rows, K)` for K outputs, each in ascending order.

    Beside each score lies how often its row counts; without `counts`, once.
    """

    scores: Tensor = field(repr=False)  # of a thousand rows it would fill a screen
    counts: Tensor | None = field(default=None, kw_only=True, repr=False)

    def quantile(self, level: float) -> Tensor:
        """The ceil((n + 1) level)-th smallest score of each output, `(K,)`.

        Raises:
            ValueError: There is no such score among n: only the whole line, or all classes, cover so often.
        """
        counts = torch.ones_like(self.scores) if self.counts is None else self.counts
        reached = counts.double().cumsum(0)  # how many scores are at most each
        n = float(reached[-1, 0])
        rank = _exact((n + 1) * checks.share("level", level))  # not its ceil: counts may be fractions
        if rank > _exact(n):
            of_one = 1 if bool((counts % 1 == 0).all()) else 100
            least = ceil(_exact(of_one * level / (1 - level))) / of_one
            counted = "" if bool((counts == 1).all()) else " by their weights, which count them"
            raise ValueError(
                f"a level of {level:g} needs at least {least:g} calibration rows, got {n:g}{counted}: "
                f"hold more rows back, or ask for at most {floor(1e4 * n / (n + 1)) / 1e4:g}"
            )
        place = (reached < rank - 1e-9).sum(0, keepdim=True)  # the sum of many fractions is rounded
        return self.scores.gather(0, place)[0]


@dataclass(frozen=True)
class ConformalIntervals(_Calibrated):
    """Central intervals around the posterior predictive mean, as wide as calibration rows say.

    The score is |y - E[y | x]| / sd[y | x], so that an interval is wide where the posterior says so; several
    outputs are calibrated, and covered, each by itself.
    """

    def interval(self, prediction: ValuePrediction, level: float = 0.9) -> Tensor:
        """Ends `(2, M, *K)` of intervals that contain y with probability `level`, as `prediction.interval`.

        Raises:
            ValueError: Too few calibration rows for this level, another number of outputs, or class labels.
        """
        if not isinstance(prediction, ValuePrediction):
            raise ValueError("values were calibrated, and the prediction is of class labels")
        centre, scale = _centre_and_scale(prediction)
        if centre.shape[1:] != self.scores.shape[1:]:
            raise ValueError(f"{self.scores.shape[1]} outputs were calibrated, not {centre.shape[1]}")
        reach = scale * self.quantile(level)
        return torch.stack([centre - reach, centre + reach]).reshape(2, *prediction.means.shape[1:])


@dataclass(frozen=True)
class ConformalSets(_Calibrated):
    """Sets of classes, as large as calibration rows say."""

    score: str
    classes: int

    def sets(self, prediction: ClassPrediction, level: float = 0.9) -> Tensor:
        """Which classes are in each row's set, `(M, C)` of booleans; one contains y with probability `level`.

        By "aps" the probability is at least that: the likeliest class is in the set even if its score is too
        large, which it is where the posterior is surest. By "lac" a set may be empty: no class is likely
        enough to look like the calibration rows.

        Raises:
            ValueError: Too few calibration rows for this level, another number of classes, or values.
        """
        if not isinstance(prediction, ClassPrediction) or prediction.probs.dim() != 2:
            raise ValueError("class labels were calibrated, and the prediction is of something else")
        probs = prediction.probs
        if probs.shape[1] != self.classes:
            raise ValueError(f"{self.classes} classes were calibrated, not {probs.shape[1]}")
        scores = _class_scores(probs, self.score)
        inside = scores <= self.quantile(level).to(scores)
        return inside | (probs == probs.amax(1, keepdim=True)) if self.score == "aps" else inside


def _class_scores(probs: Tensor, score: str) -> Tensor:
    """The score that each class would have, were it the label, `(M, C)`."""
    if score == "lac":
        return 1 - probs
    ordered = probs.sort(dim=-1, descending=True).values.contiguous()
    last = torch.searchsorted(-ordered, -probs.contiguous(), right=True) - 1  # the same for classes that tie
    cumulative = ordered.double().cumsum(-1).clamp_max(1)
    cumulative[..., -1] = 1  # not what rounding leaves: equal scores must tie
    return cumulative.gather(-1, last)


def _centre_and_scale(prediction: ValuePrediction) -> tuple[Tensor, Tensor]:
    """E[y | x] and sd[y | x], `(M, K)` each; ValueError if y has no finite standard deviation."""
    centre, scale = prediction.mean, prediction.std
    if not bool(scale.isfinite().all()):
        raise ValueError(
            "y has no finite standard deviation under this prediction, in units of which intervals are "
            "calibrated: choose another likelihood, such as StudentT with df above 2"
        )
    return centre.reshape(len(centre), -1), scale.reshape(len(scale), -1)


def _sorted(scores: Tensor, weights: Any) -> tuple[Tensor, Tensor]:
    """The scores of the rows that count, in ascending order, and beside each how often it does."""
    counts = row_weights("weights", weights, scores.double())[:, None].expand(scores.shape)
    lost = ~scores.isfinite() & (counts > 0)
    if bool(lost.any()):
        row = int(lost.any(dim=1).nonzero()[0])
        raise ValueError(f"row {row} has no finite score: check y and the prediction there")
    there = counts[:, 0] > 0
    found = scores[there].sort(dim=0)
    return found.values, counts[there].gather(0, found.indices)


def _exact(value: float) -> float:
    """Without the rounding of floating point: 20 * 0.95 is 19, and not the number after it."""
    return round(value, 9)
