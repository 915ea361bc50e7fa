"""A data set: training, validation and test tensors, and the facts a model needs from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod
from typing import Any, Literal, Self

import torch
from torch import Tensor

from pyrobbb._support.flat import strided

Task = Literal["classification", "regression"]


@dataclass(frozen=True, repr=False)
class Split:
    """Inputs and targets of one part of the data, row by row.

    Shapes: `x` is `(N, *features)`, floating point or tokens; `y` is `(N, *grid)` integer class labels for
    classification, `(N, *grid, outputs)` floating point for regression, mostly without a grid. `weights`,
    `(N,)`, say how often each row's log-likelihood counts; None is once.
    """

    x: Tensor
    y: Tensor
    weights: Tensor | None = None

    def __len__(self) -> int:
        return self.x.shape[0]

    def __repr__(self) -> str:
        weights = "" if self.weights is None else f", weights={tuple(self.weights.shape)}"
        return f"Split(x={tuple(self.x.shape)}, y={tuple(self.y.shape)}{weights})"

    @property
    def counts(self) -> Tensor:
        """How often each row counts, `(N,)`, whether or not `weights` say so."""
        return torch.ones(len(self), device=self.x.device) if self.weights is None else self.weights

    def to(self, device: torch.device | str) -> Split:
        """The same rows on another device."""
        return self._each(lambda values: values.to(device))

    def take(self, rows: Tensor) -> Split:
        """The rows with these numbers."""
        return self._each(lambda values: values[rows])

    def whole(self) -> Split:
        """All rows, in memory."""
        return self if isinstance(self.x, Tensor) else self.take(torch.arange(len(self)))

    def batches(self, each: Sequence[Tensor], seed: int) -> Iterator[Split]:
        """One minibatch after another; `seed` is for data whose transforms draw random numbers."""
        rows = torch.cat(list(each)).to(self.x.device)  # all at once: each copy costs a launch
        return map(self.take, rows.split([len(part) for part in each]))

    def digest(self) -> str:
        """A digest of up to 64 rows, and one of all targets in memory: they tell other data from these."""
        rows = evenly_spaced(len(self), 64).to(self.x.device)
        y = self.y if isinstance(self.y, Tensor) else self.y[rows]
        weights = "" if self.weights is None else f":{digest_of(self.weights)}"
        return f"{digest_of(self.x[rows], self.y[rows])}:{digest_of(y)}{weights}"

    def head(self, count: int) -> Split:
        """The first `count` rows."""
        return self._each(lambda values: values[:count])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Split:
        return Split(change(self.x), change(self.y), None if self.weights is None else change(self.weights))


def evenly_spaced(length: int, most: int) -> Tensor:
    """The numbers of at most so many of the rows, evenly spread."""
    return torch.arange(0, length, -(-length // most))


def scattered(length: int, most: int) -> Tensor:
    """The same, but of each block of neighbours any row, always the same: rows may come in turns."""
    starts = evenly_spaced(length, most)
    sizes = (length - starts).clamp(max=-(-length // most))
    draw = torch.Generator().manual_seed(0)
    return starts + (torch.rand(len(starts), dtype=torch.double, generator=draw) * sizes).long()


def digest_of(*parts: Tensor) -> str:
    """A digest of all numbers of some tensors."""
    found = sha256()
    for part in parts:
        found.update(strided(part).detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()[:16]


@dataclass(frozen=True)
class Units:
    """The unit of each regression target: a network's standardised value f stands for `loc + scale * f`."""

    loc: tuple[float, ...]
    scale: tuple[float, ...]


@dataclass(frozen=True)
class Spec:
    """What a model needs to know of the data: N, the shape of one input, how many outputs.

    `outputs` is the number of classes, or of regression targets; `units` are theirs, for a likelihood that
    must be `likelihoods.Rescaled`. The last `raw` inputs come as they stand in a table.
    """

    N: int
    features: tuple[int, ...]
    outputs: int
    task: Task
    units: Units | None = None
    raw: int = 0

    @property
    def width(self) -> int:
        """The number of inputs, for a network that takes all alike; ValueError if some are not scaled."""
        if self.raw:
            raise ValueError(
                f"the network treats all inputs alike, but the last {self.raw} are not scaled (data.raw): "
                f"leave raw out, or give a network of your own that knows their units, "
                f"model: {{_target_: my_model.Net}}"
            )
        return prod(self.features)


@dataclass(frozen=True)
class Dataset:
    """The three parts of a data set on one device; `validation` and `test` may be absent.

    `columns` says how new rows become inputs, if they come by name (`pyrobbb.data.columns`).
    """

    name: str
    train: Split
    spec: Spec
    validation: Split | None = None
    test: Split | None = None
    columns: Any = None

    def to(self, device: torch.device | str) -> Self:
        """The same data on another device."""
        validation = None if self.validation is None else self.validation.to(device)
        test = None if self.test is None else self.test.to(device)
        return replace(self, train=self.train.to(device), validation=validation, test=test)

    def load(self) -> Dataset:
        """Itself: data already at hand goes wherever a component that loads data does."""
        return self


def inferred_classes(name: str, smallest: int, largest: int, N: int) -> int:
    """The number of classes of N rows with labels from `smallest` to `largest`.

    Raises:
        ValueError: No label 0, so that labels may begin at 1; or more classes than rows, so that they are
            numbers of something else.
    """
    if smallest > 0:
        raise ValueError(
            f"{name} holds labels from {smallest} to {largest}, and classes are numbered from 0: subtract "
            f"{smallest}, or pass classes= if class 0 is only absent from these rows"
        )
    if largest >= N:
        raise ValueError(
            f"{name} holds the label {largest:,}, but there are {N:,} rows: number the classes 0, 1, 2, ..., "
            f"or pass classes= if there are so many"
        )
    return largest + 1
