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
) -> dict[float, float]:
    r"""By level, the share of y `(M,)` in the central intervals of draws `(S, M)`: the level, if y is alike.

    A value that is like the draws has any rank among them with equal chance, also beyond all of them:

    .. math::
        u \sim U\left[\frac{\#\{s: y_s < y\}}{S + 1}, \frac{\#\{s: y_s \le y\} + 1}{S + 1}\right]

    is uniform in [0, 1], however few the draws are and however many of them tie, as counts do (the randomised
    probability integral transform: Czado et al. 2009). The interval of level c is :math:`|2 u - 1| \le c`;
    of a value that ties with its end a part counts.

    `weights` are those of the draws, `(S,)`, whose effective number is then S, and `counts` say how often
    each row counts, `(M,)`; by default all alike.
    """
    shares = np.full(len(draws), 1 / len(draws)) if weights is None else weights / weights.sum()
    S = 1 / np.square(shares).sum()
    low = S * (shares @ (draws < y)) / (S + 1)
    high = (S * (shares @ (draws <= y)) + 1) / (S + 1)
    found = {}
    for level in LEVELS:
        tail = (1 - level) / 2
        held = (np.minimum(high, 1 - tail) - np.maximum(low, tail)).clip(0) / (high - low)
        found[level] = float(np.average(held, weights=counts))
    return found


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
