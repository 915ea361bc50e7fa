"""Do predictions come true as often as they say? Shares by confidence, and by width of an interval."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVELS = tuple(round(0.1 * i, 1) for i in range(1, 10))


@dataclass(frozen=True)
class Bins:
    """Examples by confidence, the largest probability; only bins that hold any.

    Args:
        low: Lower edge of each bin.
        high: Upper edge.
        count: Examples in it, each as often as it counts.
        confidence: Their mean confidence.
        accuracy: The share of them that are right.
    """

    low: np.ndarray
    high: np.ndarray
    count: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def ece(self) -> float:
        """ECE = sum_b n_b/M |accuracy_b - confidence_b|."""
        return float(self.count @ np.abs(self.accuracy - self.confidence) / self.count.sum())


def by_confidence(probs: np.ndarray, y: np.ndarray, bins: int = 15, counts: np.ndarray | None = None) -> Bins:
    """Equal bins of the confidence of probabilities `(M, C)` against labels `(M,)`.

    `counts`, `(M,)`, say how often each example counts; None is once.
    """
    confidence, right = probs.max(1), probs.argmax(1) == y
    edges = np.linspace(0, 1, bins + 1)
    where = np.clip(np.digitize(confidence, edges) - 1, 0, bins - 1)
    total = np.bincount(where, counts, minlength=bins)
    used = total > 0
    mean_confidence, accuracy = (
        np.bincount(where, each if counts is None else counts * each, minlength=bins)[used] / total[used]
        for each in (confidence, right)
    )
    return Bins(edges[:-1][used], edges[1:][used], total[used], mean_confidence, accuracy)


def coverage(
    draws: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None, counts: np.ndarray | None = None
) -> dict[float, tuple[float, float]]:
    """By level, the shares of new values and of y `(M,)` that the draws' `(S, M)` central intervals hold.

    The former is the level, or what lies between the outermost draws where these are too few for it. Where
    several draws tie at an end, as counts do, it is the share of the draws, which is larger. `weights` are
    those of the draws, `(S,)`, and `counts` say how often each row counts, `(M,)`; by default all alike.
    """
    S = len(draws) if weights is None else weights.sum() ** 2 / np.square(weights).sum()
    ends = _ends(draws, [(1 + side * level) / 2 for level in LEVELS for side in (-1, 1)], weights)
    found = {}
    for level, low, high in zip(LEVELS, ends[::2], ends[1::2], strict=True):
        drawn = np.average((low <= draws) & (draws <= high), axis=0, weights=weights)
        tied = ((draws == low).sum(0) > 1) | ((draws == high).sum(0) > 1)
        expected = np.where(tied, drawn, min(level, (S - 1) / (S + 1)))
        true = np.average((low <= y) & (y <= high), weights=counts)
        found[level] = float(np.average(expected, weights=counts)), float(true)
    return found


def _ends(draws: np.ndarray, tails: list[float], weights: np.ndarray | None) -> np.ndarray:
    """Quantiles between which a new value lies as often as `tails` say, if it is from where the draws are.

    Draw k of S in ascending order has the level k / (S + 1); of weighted draws the sum of the weights up to
    it takes the place of k / S, and their effective number that of S.
    """
    if weights is None:
        return np.asarray(np.quantile(draws, tails, axis=0, method="weibull"))
    draws, weights = draws[weights > 0], weights[weights > 0]
    order, share = np.argsort(draws, axis=0), weights / weights.sum()
    effective = 1 / np.square(share).sum()
    levels = share[order].cumsum(axis=0) * effective / (effective + 1)
    ascending = np.take_along_axis(draws, order, axis=0)
    columns = zip(levels.T, ascending.T, strict=True)
    return np.array([np.interp(tails, level, values) for level, values in columns]).T


def pooled(
    draws: np.ndarray, chain_weights: Sequence[float] | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Draws `(chains, S, ...)` of all chains one after another, and their weights, None if all are alike."""
    chains, each = draws.shape[:2]
    weights = None if chain_weights is None else np.repeat(np.asarray(chain_weights) / each, each)
    return draws.reshape(chains * each, *draws.shape[2:]), weights


def quantiles(draws: np.ndarray, levels: list[float], weights: np.ndarray | None = None) -> np.ndarray:
    """Quantiles `(levels, M)` of draws `(S, M)`, whose weights may differ."""
    if weights is None:
        return np.asarray(np.quantile(draws, levels, axis=0))
    return np.asarray(np.quantile(draws, levels, axis=0, weights=weights, method="inverted_cdf"))
