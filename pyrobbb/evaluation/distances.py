r"""How far two sets of function draws are from each other, input by input."""

import numpy as np
import numpy.typing as npt

Draws = npt.NDArray[np.float64]
BINS = 20


def total_variation(first: Draws, second: Draws, *, bins: int = BINS) -> Draws:
    r""":math:`\tfrac12 \int |p - q|` of the marginals at each of G inputs, from draws `(S, G)` and `(T, G)`.

    Both are counted in the same bins, which hold equally many of all draws: 0 for the same draws, 1 for draws
    that share no bin. Two samples of one distribution are about :math:`\sqrt{b (1/S + 1/T) / 2 \pi}` apart.

    Raises:
        ValueError: Draws at different inputs, or none.
    """
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1]:
        raise ValueError(f"draws must have shapes (S, G) and (T, G), got {first.shape} and {second.shape}")
    if min(len(first), len(second)) < 1:
        raise ValueError("there are no draws to compare")
    found = np.empty(first.shape[1])
    for g in range(first.shape[1]):
        both = np.concatenate([first[:, g], second[:, g]])
        edges = np.unique(np.quantile(both, np.linspace(0, 1, bins + 1)[1:-1]))
        p, q = (
            np.bincount(np.searchsorted(edges, part, side="right"), minlength=len(edges) + 1) / len(part)
            for part in (first[:, g], second[:, g])
        )
        found[g] = 0.5 * np.abs(p - q).sum()
    return found


def symmetric_difference(draws: Draws) -> Draws:
    """Total variation between f(x) and f(-x), of draws `(S, G)` at a grid that is symmetric around 0."""
    return total_variation(draws, draws[:, ::-1])[: draws.shape[1] // 2]
