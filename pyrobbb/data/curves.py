"""The two curves on which the literature shows a Bayesian network away from its data; and points as given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.data.arrays import from_arrays
from pyrobbb.data.dataset import Dataset
from pyrobbb.data.synthetic import check_common, drawn


@dataclass(frozen=True, kw_only=True)
class ToyPoints:
    """Six points of a quartic, without noise (the Harvard tutorial's toy data).

    y = -x^4 + 3 x^2 + 1 at x = -2, -1.8, -1, 1, 1.8, 2, both of shape (6, 1). The test set is the same
    curve at `test` evenly spaced x in [-2, 2]; there is no validation set.

    Raises:
        ValueError: a field outside its domain, which the message names.
    """

    test: int = 101

    def __post_init__(self) -> None:
        checks.keep(self, test=checks.count("test", self.test, minimum=0))

    def truth(self, x: Tensor) -> Tensor:
        """The curve itself."""
        return -(x**4) + 3 * x**2 + 1

    def load(self) -> Dataset:
        """The same six points every time."""
        x = torch.tensor([[-2.0], [-1.8], [-1.0], [1.0], [1.8], [2.0]])
        grid = torch.linspace(-2, 2, self.test)[:, None]
        test = (grid, self.truth(grid)) if self.test else None
        return from_arrays(x, self.truth(x), task="regression", test=test, name="ToyPoints")


@dataclass(frozen=True, kw_only=True)
class PaperCurve:
    """The paper's regression (section 5.2, Fig. 5); one noise draw enters the curve in three places.

    y_n = x_n + 0.3 sin(2 pi (x_n + e_n)) + 0.3 sin(4 pi (x_n + e_n)) + e_n,  e_n ~ N(0, noise^2),
    x_n ~ U(low, high), both of shape (N, 1). The paper does not say N, the range of x, nor whether its
    0.02 is a variance or a standard deviation; ours is a standard deviation.

    Raises:
        ValueError: a field outside its domain, which the message names.
    """

    N: int = 1000
    noise: float = 0.02
    low: float = 0.0
    high: float = 0.5
    validation: int = 0
    test: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        checks.keep(self, N=checks.count("N", self.N))
        check_common(self)
        checks.number("low", self.low)
        if checks.number("high", self.high) <= self.low:
            raise ValueError(f"high must be greater than low, got low={self.low!r} and high={self.high!r}")

    def value(self, x: Tensor, noise: Tensor) -> Tensor:
        """The paper's y for given inputs and noise."""
        z = x + noise
        return x + 0.3 * torch.sin(2 * math.pi * z) + 0.3 * torch.sin(4 * math.pi * z) + noise

    def truth(self, x: Tensor) -> Tensor:
        """E[y | x] = x + 0.3 sin(2 pi x) e^(-2 pi^2 noise^2) + 0.3 sin(4 pi x) e^(-8 pi^2 noise^2)."""
        one, two = (math.exp(-0.5 * (k * math.pi * self.noise) ** 2) for k in (2, 4))
        return x + 0.3 * one * torch.sin(2 * math.pi * x) + 0.3 * two * torch.sin(4 * math.pi * x)

    def load(self) -> Dataset:
        """Draw the data; the same seed gives the same data."""
        generator = torch.Generator().manual_seed(self.seed)

        def draw(rows: int) -> tuple[Tensor, Tensor]:
            x = self.low + (self.high - self.low) * torch.rand(rows, 1, generator=generator)
            return x, self.value(x, self.noise * torch.randn(rows, 1, generator=generator))

        return drawn(self, draw, "regression")


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
