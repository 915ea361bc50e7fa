"""A few rows of a regression, written out where the data set is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyrobbb.data.arrays import from_arrays
from pyrobbb.data.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Points:
    """The rows themselves, `x` of shape (N, features) and `y` of shape (N, outputs), as nested lists.

    There is neither a validation nor a test set.

    >>> Points(x=[[0.0], [1.0]], y=[[0.5], [2.0]]).load().spec.N
    2

    Raises:
        ValueError: `load` finds rows that are not numbers, or differ in length or count.
    """

    x: Sequence[Sequence[float]]
    y: Sequence[Sequence[float]]

    def load(self) -> Dataset:
        """The same rows every time."""
        return from_arrays(self.x, self.y, task="regression", name="Points")
