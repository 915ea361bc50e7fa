"""Small synthetic data, for tests and quick starts: nothing to download, and the truth is known."""

from __future__ import annotations

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
        checks.keep(self, N=checks.count("N", self.N, minimum=self.classes))  # every class occurs
        checks.keep(self, features=checks.count("features", self.features))
        checks.positive("separation", self.separation)
        check_common(self)

    def load(self) -> Dataset:
        """Draw the data; the same seed gives the same data."""
        generator = torch.Generator().manual_seed(self.seed)
        centres = self.separation * torch.randn(self.classes, self.features, generator=generator)

        def draw(rows: int) -> tuple[Tensor, Tensor]:
            y = torch.arange(rows) % self.classes
            return centres[y] + self.noise * torch.randn(rows, self.features, generator=generator), y

        return drawn(self, draw, "classification", classes=self.classes)


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
        checks.keep(self, N=checks.count("N", self.N))
        check_common(self)
        if self.gap is not None and not (len(self.gap) == 2 and -1 < self.gap[0] < self.gap[1] < 1):
            raise ValueError(f"gap must be two numbers in order, between -1 and 1, got {self.gap!r}")

    def load(self) -> Dataset:
        """Draw the data; the same seed gives the same data."""
        generator = torch.Generator().manual_seed(self.seed)
        low, high = self.gap or (0.0, 0.0)

        def draw(rows: int) -> tuple[Tensor, Tensor]:
            x = (2 - (high - low)) * torch.rand(rows, 1, generator=generator) - 1
            x = torch.where(x < low, x, x + (high - low))
            return x, torch.sin(math.pi * x) + self.noise * torch.randn(rows, 1, generator=generator)

        return drawn(self, draw, "regression")


def check_common(made: Any) -> None:
    """Raise ValueError if the noise, the seed, or the number of rows of a part is outside its domain."""
    checks.between("noise", made.noise, 0, math.inf)
    for name in ("validation", "test"):
        checks.keep(made, **{name: checks.count(name, getattr(made, name), minimum=0)})
    checks.keep(made, seed=checks.seed("seed", made.seed))


def drawn(
    made: Any, draw: Callable[[int], tuple[Tensor, Tensor]], task: Task, classes: int | None = None
) -> Dataset:
    """The data set of which `draw` makes any number of rows: training, validation, test, in this order."""
    x, y = draw(made.N)
    validation, test = (draw(rows) if rows else None for rows in (made.validation, made.test))
    name = type(made).__name__
    return from_arrays(x, y, task=task, validation=validation, test=test, classes=classes, name=name)
