"""Timings that survive a machine whose speed drifts: contenders in turn, ratios taken round by round."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

Work = Callable[[], Any]


class Spread(NamedTuple):
    """Median and quartiles of some measurements."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:6.2f}  ({self.low:.2f}-{self.high:.2f})"


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; all three the same for a single value."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return Spread(middle, low, high)


def ratio(a: Sequence[float], b: Sequence[float]) -> Spread:
    """Median and quartiles of a/b, round by round."""
    return spread([p / q for p, q in zip(a, b, strict=True)])


def in_turn(works: Mapping[str, Work], rounds: int, burst: int = 4) -> dict[str, list[float]]:
    """Milliseconds of one call of each work, in each of `rounds` rounds.

    In a round each work is called `burst + 1` times in a row and the first call is not counted, so that
    the processor's caches hold its own data, as in a training; an even burst, because natural gradients draw
    noise in every second step. The first round is not counted either.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for i in range(rounds + 1):
        for name, work in works.items():
            work()
            began = perf_counter()
            for _ in range(burst):
                work()
            if i > 0:
                times[name].append(1e3 * (perf_counter() - began) / burst)
    return times


def figures(name: str, value: Spread) -> dict[str, Any]:
    """The spread under `name`, and under `name_quartiles`, for the JSON file."""
    return {
        name: round(value.middle, 4),
        f"{name}_quartiles": [round(value.low, 4), round(value.high, 4)],
    }
