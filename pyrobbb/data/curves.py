"""The two curves on which the literature shows how a Bayesian network behaves away from its data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.data.arrays import from_arrays
from pyrobbb.data.dataset import Dataset


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
        checks.count("test", self.test, minimum=0)

    def truth(self, x: Tensor) -> Tensor:
        """The curve itself."""
        return -(x**4) + 3 * x**2 + 1

    def load(self) -> Dataset:
        """The same six points every time."""
        x = torch.tensor([[-2.0], [-1.8], [-1.0], [1.0], [1.8], [2.0]])
        grid = torch.linspace(-2, 2, self.test)[:, None]
        return from_arrays(
            x,
            self.truth(x),
            task="regression",
            test=(grid, self.truth(grid)) if self.test else None,
            name="ToyPoints",
        )


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
        checks.count("N", self.N)
        checks.between("noise", self.noise, 0, math.inf)
        checks.number("low", self.low)
        if checks.number("high", self.high) <= self.low:
            raise ValueError(f"high must be greater than low, got low={self.low!r} and high={self.high!r}")
        checks.count("validation", self.validation, minimum=0)
        checks.count("test", self.test, minimum=0)
        checks.count("seed", self.seed, minimum=0)
        checks.between("seed", self.seed, 0, 2**63 - 1)

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

        x, y = draw(self.N)
        return from_arrays(
            x,
            y,
            task="regression",
            validation=draw(self.validation) if self.validation else None,
            test=draw(self.test) if self.test else None,
            name="PaperCurve",
        )
