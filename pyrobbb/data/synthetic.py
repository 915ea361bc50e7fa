"""Small data with nothing to download: blobs, a sine, the literature's two curves, and points as given."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.data.arrays import from_arrays
from pyrobbb.data.dataset import Dataset, Task


@dataclass(frozen=True, kw_only=True)
class Blobs:
    """Classes that are round Gaussian clouds of equal size.

    c_k ~ N(0, separation^2 I),  y_n = n mod classes,  x_n ~ N(c_{y_n}, noise^2 I), of shape (N, features).

    Raises:
        ValueError: a field outside its domain, which the message names.
    """

    N: int = 300
    features: int = 2
    classes: int = 3
    separation: float = 3.0
    noise: float = 1.0
    validation: int = 100
    test: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        checks.keep(self, classes=checks.count("classes", self.classes, minimum=2))
        checks.keep(self, features=checks.count("features", self.features))
        checks.positive("separation", self.separation)
        _check_common(self, least_rows=self.classes)  # every class occurs

    def load(self) -> Dataset:
        """Draw the data; the same seed gives the same data."""
        generator = torch.Generator().manual_seed(self.seed)
        centres = self.separation * torch.randn(self.classes, self.features, generator=generator)

        def draw(rows: int) -> tuple[Tensor, Tensor]:
            y = torch.arange(rows) % self.classes
            return centres[y] + self.noise * torch.randn(rows, self.features, generator=generator), y

        return _drawn(self, draw, "classification", classes=self.classes)


@dataclass(frozen=True, kw_only=True)
class NoisySine:
    """One period of a sine with Gaussian noise: a regression with one input and one output.

    x_n ~ U(-1, 1),  y_n ~ N(sin(pi x_n), noise^2), both of shape (N, 1). No x lies within `gap`, such as
    (-0.5, 0.5), if it is given.

    Raises:
        ValueError: a field outside its domain, which the message names.
    """

    N: int = 100
    noise: float = 0.1
    validation: int = 50
    test: int = 50
    seed: int = 0
    gap: Sequence[float] | None = None

    def __post_init__(self) -> None:
        _check_common(self)
        try:
            low, high = (0.0, 0.5) if self.gap is None else self.gap
            right = -1 < low < high < 1
        except (TypeError, ValueError):  # not two, or not numbers
            right = False
        if not right:
            raise ValueError(f"gap must be two numbers in order, between -1 and 1, got {self.gap!r}")

    def load(self) -> Dataset:
        """Draw the data; the same seed gives the same data."""
        generator = torch.Generator().manual_seed(self.seed)
        low, high = self.gap or (0.0, 0.0)

        def draw(rows: int) -> tuple[Tensor, Tensor]:
            x = (2 - (high - low)) * torch.rand(rows, 1, generator=generator) - 1
            x = torch.where(x < low, x, x + (high - low))
            return x, torch.sin(math.pi * x) + self.noise * torch.randn(rows, 1, generator=generator)

        return _drawn(self, draw, "regression")


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
        _check_common(self)
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

        return _drawn(self, draw, "regression")


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


def _check_common(made: Any, least_rows: int = 1) -> None:
    """Raise ValueError if the noise, the seed, or the number of rows of a part is outside its domain."""
    checks.between("noise", made.noise, 0, math.inf)
    for name, least in (("N", least_rows), ("validation", 0), ("test", 0)):
        checks.keep(made, **{name: checks.count(name, getattr(made, name), minimum=least)})
    checks.keep(made, seed=checks.seed("seed", made.seed))


def _drawn(
    made: Any, draw: Callable[[int], tuple[Tensor, Tensor]], task: Task, classes: int | None = None
) -> Dataset:
    """The data set of which `draw` makes any number of rows: training, validation, test, in this order."""
    x, y = draw(made.N)
    validation, test = (draw(rows) if rows else None for rows in (made.validation, made.test))
    name = type(made).__name__
    return from_arrays(x, y, task=task, validation=validation, test=test, classes=classes, name=name)
