"""What is learned about each column from the training rows, and how rows become inputs.

Everything is learned from the training rows alone; validation, test and new rows are transformed by it.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobbb.data.frames import (
    Column,
    Frame,
    as_column,
    as_frame,
    as_zeros_and_ones,
    by_place,
    is_missing,
    is_table,
    rows_of,
)
from pyrobbb.data.texts import MOST, as_text, first_text, print_of

Matrix = npt.NDArray[np.float64]
SHOWN = 20  # names in a message, at most
SQUEEZED = 0.01  # standard deviations that the middle half of a column spans, below which it is said
LARGE = 1e9  # bytes of the training inputs that categories make, from which on it is said
BOOLEANS = {"0": "false", "1": "true", "false": "false", "true": "true"}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Numeric:
    """A column of numbers: (x - mean) / sd, missing values at the median.

    If training rows lack values, a second input says which rows do: 1 or 0, less their share in training.
    """

    name: str
    mean: float
    sd: float
    median: float
    missing: float  # share of the training rows without a value

    @classmethod
    def learn(cls, name: str, column: Column) -> Numeric:
        """From the training rows; `sd` is that of the values themselves (n in the denominator)."""
        there = column[~is_missing(column)]
        if not len(there):
            return cls(name, 0.0, 0.0, 0.0, 1.0)
        advice = "leave the cell empty if it is a slip or means missing, or rescale the column"
        mean, sd = mean_and_sd(f"column {name!r}", there, advice)
        return cls(name, mean, sd, float(np.median(there)), float(is_missing(column).mean()))

    @property
    def constant(self) -> bool:
        """Whether the training rows hold one value, up to rounding; whether it is missing may vary."""
        return not self.sd > 1e-12 * abs(self.mean)

    @property
    def empty(self) -> bool:
        """Whether it gives no input."""
        return self.constant and self.missing in (0, 1)

    def inputs(self, column: Column) -> Matrix:
        """`(M, 0 to 2)`: a column that is constant or empty in training gives no input."""
        if self.missing == 1:  # whatever kind other rows show it to be
            return np.zeros((len(column), 0))
        column = as_zeros_and_ones(column)
        if column.dtype.kind != "f":
            raise ValueError(
                f"column {self.name!r} holds numbers in the training rows, but here {first_text(column)}"
            )
        lacking = is_missing(column)
        parts: list[Matrix] = []
        if not self.constant:
            if not self.missing:
                _warn_of_empty(self.name, lacking, "the median")
            parts.append((np.where(lacking, self.median, column) - self.mean) / self.sd)
        if self.missing:
            parts.append(lacking.astype(np.float64) - self.missing)
        return np.stack(parts, axis=1) if parts else np.zeros((len(column), 0))


@dataclass(frozen=True)
class Categorical:
    """A column of text: for each category of the training rows 1 or 0, less its share there.

    Missing is a category if training rows lack values. A category that no training row has is unknown: all
    inputs 0, as on average over the training rows.
    """

    name: str
    categories: tuple[str | None, ...]
    shares: tuple[float, ...]

    @classmethod
    def learn(cls, name: str, column: Column) -> Categorical:
        """From the training rows.

        Raises:
            ValueError: Most rows have a text of their own, as names and numbers of rows do.
        """
        counts = Counter(column)  # which counts None too
        texts: list[str] = sorted(value for value in counts if value is not None)
        if len(texts) > max(MOST, len(column) // 2):
            raise ValueError(
                f"column {name!r} has {len(texts)} different texts in {len(column)} training rows: it "
                f"identifies the rows; leave it out, or turn it into numbers or fewer categories"
            )
        categories = (*texts, None) if None in counts else tuple(texts)
        return cls(name, categories, tuple(counts[value] / len(column) for value in categories))

    @property
    def empty(self) -> bool:
        """Whether the training rows hold one category; its input is always 0."""
        return len(self.categories) == 1

    def inputs(self, column: Column) -> Matrix:
        """`(M, categories)`; numbers count as the texts they print as.

        Raises:
            ValueError: Numbers, where training rows have texts that differ and are the same number.
        """
        texts = self._texts(column)
        numbers = {value: i for i, value in enumerate(self.categories)}
        found = {text: numbers.get(self._known(text), -1) for text in {*texts} - {*numbers}} | numbers
        at = np.array([found[text] for text in texts])
        unknown = at < 0
        lacking = unknown & is_missing(texts)
        _warn_of_empty(self.name, lacking, "an average row")
        odd = texts[unknown & ~lacking]
        if len(odd):
            logger.warning(
                "column %r: %d of %d rows hold a category that no training row has, such as %r; they count "
                "as an average row",
                self.name, len(odd), len(texts), odd[0],
            )  # fmt: skip
        inputs = np.full((len(at), len(numbers)), -np.array(self.shares))
        inputs[np.arange(len(at)), at] += 1.0
        inputs[unknown] = 0.0
        return inputs

    def _texts(self, column: Column) -> Column:
        if column.dtype.kind == "f" and not is_missing(column).all():
            written = [c for c in self.categories if c is not None and print_of(c) not in (None, c)]
            if written:
                raise ValueError(
                    f"column {self.name!r} holds numbers here but text such as {written[0]!r} in the "
                    f"training rows, which a number cannot tell from {print_of(written[0])!r}: pass it as "
                    f"text, such as read_csv(..., dtype={{{self.name!r}: str}})"
                )
        return as_text(self.name, column)

    def _known(self, text: str | None) -> str | None:
        """Of a text that is not a category, the category that is the same number or truth value."""
        if text is None:
            return text
        if (truth := _truth(text, [each for each in self.categories if each is not None])) is not None:
            return truth
        printed = print_of(text)
        return text if printed is None or printed not in self.categories else printed


@dataclass(frozen=True)
class Raw:
    """A column of numbers that comes as it stands, such as the exposure of a count."""

    name: str

    def inputs(self, column: Column) -> Matrix:
        """`(M, 1)`.

        Raises:
            ValueError: A value is not a number, or is missing: there is none to take instead.
        """
        if column.dtype.kind != "f":
            raise ValueError(
                f"column {self.name!r} is raw and must hold numbers, but here {first_text(column)}"
            )
        lacking = is_missing(column)
        if lacking.any():
            raise ValueError(
                f"column {self.name!r} is raw, but has no value in row {lacking.argmax()}, counted from 0"
            )
        return column[:, None]


Kind = Numeric | Categorical | Raw


@dataclass(frozen=True)
class Columns:
    """How the rows of a table become inputs, and what its targets are called.

    `classes` are the names of the classes in the order of the labels 0, 1, ...; empty for regression. `width`
    is how many columns were called by their place, as those of an array; 0 of a table with names.
    """

    kinds: tuple[Kind, ...]
    targets: tuple[str, ...]
    classes: tuple[str, ...] = ()
    width: int = 0

    @classmethod
    def learn(
        cls,
        frame: Frame,
        targets: tuple[str, ...],
        classes: tuple[str, ...],
        texts: frozenset[str],
        raw: Sequence[str] = (),
    ) -> Columns:
        """From the training rows; the columns `texts` are categorical even if they hold numbers.

        The columns `raw` come as they stand, after all others.
        """
        kinds: list[Numeric | Categorical] = []
        for name, column in frame.items():
            if name in targets or name in raw:
                continue
            if name in texts or column.dtype.kind != "f":
                kinds.append(Categorical.learn(name, as_text(name, column)))
            else:
                kinds.append(Numeric.learn(name, column))
        same = [kind.name for kind in kinds if kind.empty]
        if same:
            logger.warning(
                "the training rows hold one value or none, up to rounding, in %d column%s, which says "
                "nothing: %s",
                len(same), "s" * (len(same) > 1), ", ".join(map(repr, same[:SHOWN])),
            )  # fmt: skip
        many = {kind.name: len(kind.categories) for kind in kinds if isinstance(kind, Categorical)}
        size = 8 * rows_of(frame) * sum(many.values())
        if size > LARGE:
            most = max(many, key=many.__getitem__)
            logger.warning(
                "the categories of %d training rows make %d inputs, %.3g GB in double precision: column %r "
                "has %d; leave it out, or turn it into numbers or fewer categories",
                rows_of(frame), sum(many.values()), size / 1e9, most, many[most],
            )  # fmt: skip
        return cls((*kinds, *map(Raw, raw)), targets, classes)

    @property
    def raw(self) -> int:
        """How many of the inputs, which are the last, are raw and thus not standardised."""
        return sum(isinstance(kind, Raw) for kind in self.kinds)

    def inputs(self, rows: Any, reach: float = inf) -> Tensor:
        """Inputs `(M, features)`, in double precision, for rows in any form that `Table` takes.

        Other columns of a table are ignored; an array has the columns of the training array, of which the
        last may be absent if they are not inputs. Values more than `reach` standard deviations from the mean
        cause a warning.

        Raises:
            ValueError: A column is absent, or holds text where the training rows hold numbers; or the columns
                go by their place, and without some of the training table's are each at another.
        """
        texts = {kind.name: kind.categories for kind in self.kinds if isinstance(kind, Categorical)}
        frame = as_frame("rows", rows, texts, {kind.name for kind in self.kinds}.__contains__)
        if not isinstance(rows, Mapping | str | os.PathLike) and not is_table(rows):
            self._check_places(frame)
        absent = [kind.name for kind in self.kinds if kind.name not in frame]
        if absent:
            raise ValueError(f"the rows have no column {', '.join(map(repr, absent))}, which training had")
        parts = [kind.inputs(frame[kind.name]) for kind in self.kinds]
        for kind, part in zip(self.kinds, parts, strict=True):
            if isinstance(kind, Numeric) and (np.abs(part) > reach).any():
                logger.warning(
                    "column %r holds values up to %.3g standard deviations from %.3g, the mean of the "
                    "training rows: is it in the same units?",
                    kind.name, np.abs(part).max(), kind.mean,
                )  # fmt: skip
        values = np.concatenate([np.zeros((rows_of(frame), 0)), *parts], axis=1)
        if not values.shape[1]:
            raise ValueError("no column varies over the training rows, so there is nothing to predict from")
        return torch.from_numpy(np.ascontiguousarray(values))

    def _check_places(self, frame: Frame) -> None:
        """Columns called by their place mean the same there only if all are there, or the last are absent."""
        given, first = by_place(frame), len(self.kinds)
        if not self.width or given in (0, self.width):
            return
        if {kind.name for kind in self.kinds} != {*map(str, range(first))} or given > self.width:
            raise ValueError(
                f"the rows have {given} columns without names, those of training had {self.width}, so it is "
                f"not known which is which: give all {self.width} in the same order, with any value for a "
                f"target, or a DataFrame whose columns are named by their numbers there"
            )

    def labels(self, name: str, values: Any) -> Tensor:
        """The numbers `(M,)` of classes that are given as they stand in the table, as `class_numbers`."""
        return class_numbers(self.classes, name, values)

    def plain(self) -> dict[str, Any]:
        """Plain values, of which `from_plain` makes the same columns."""
        kinds = [{"kind": type(kind).__name__, **asdict(kind)} for kind in self.kinds]
        plain = {"targets": list(self.targets), "classes": list(self.classes), "kinds": kinds}
        return plain | {"width": self.width}


@dataclass(frozen=True)
class Names:
    """What the columns of the training inputs and targets were called, where these came as DataFrames."""

    names: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def inputs(self, rows: Any, name: str = "x") -> Any:
        """The rows as they are; ValueError for a DataFrame of other columns, or in another order."""
        given = tuple(map(str, rows.columns)) if is_table(rows) else self.names
        if self.names and given != self.names:
            raise ValueError(
                f"{name} has the columns {', '.join(given)}; those of the training x were "
                f"{', '.join(self.names)}, in this order"
            )
        return rows

    def plain(self) -> dict[str, Any]:
        """Plain values, of which `from_plain` makes the same names."""
        return {"names": list(self.names), "targets": list(self.targets)}


def from_plain(content: Mapping[str, Any] | None) -> Columns | Names | None:
    """The columns or names that `plain` described; None of nothing."""
    if not content:
        return None
    if "names" in content:
        return Names(tuple(content["names"]), tuple(content.get("targets", ())))  # once without targets
    kinds = tuple(map(_kind, content["kinds"]))
    width = content.get("width", 0)  # once without
    return Columns(kinds, tuple(content["targets"]), tuple(content["classes"]), width)


def mean_and_sd(name: str, values: Column, advice: str) -> tuple[float, float]:
    """Mean and standard deviation (n in the denominator) of numbers; a warning if a few outliers rule both.

    Raises:
        ValueError: They are too large or too small for it; `advice` says what to do.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean, sd = float(values.mean()), float(values.std())
    most = values[np.abs(values).argmax()]
    if not np.isfinite(sd):
        raise ValueError(f"{name} holds {most:g}, so large that the standard deviation overflows: {advice}")
    if sd**2 < np.finfo(np.float64).tiny and values.min() < values.max():
        raise ValueError(
            f"{name} holds {most:g} at most, so small that the standard deviation underflows: {advice}"
        )
    low, high = np.quantile(values, (0.25, 0.75))
    if 0 < high - low < SQUEEZED * sd:  # 0 is usual: most rows alike, as of two values
        logger.warning(
            "%s holds %.6g, so far out that the middle half of the rows spans %.2g standard deviations: %s",
            name, values[np.abs(values - mean).argmax()], (high - low) / sd, advice,
        )  # fmt: skip
    return mean, sd


def class_numbers(classes: Sequence[str], name: str, values: Any) -> Tensor:
    """The numbers `(M,)`, from 0, of classes that are given by name.

    Raises:
        ValueError: One of them is not a class of the training rows; `name` is what the values are called.
    """
    numbers = {label: i for i, label in enumerate(classes)}
    texts = as_text(name, as_column(name, values)).tolist()
    found = {text: numbers.get(_truth(text, classes) or text) for text in {*texts}}
    unseen = [text for text in texts if found[text] is None]
    if unseen:
        raise ValueError(
            f"{name} is {unseen[0]!r}, a class not in the training rows; they are "
            f"{', '.join(classes[:SHOWN])}, numbered from 0 in a tensor"
        )
    return torch.tensor([found[text] for text in texts], dtype=torch.int64)


def _truth(text: str | None, known: Sequence[str]) -> str | None:
    """Which of two truth values, FALSE and TRUE however they are written, a text is; None if it is none."""
    written = {each.lower(): each for each in known}
    if not {*written} <= {"false", "true"} or len(written) < len(known):
        return None
    return written.get(BOOLEANS.get(str(text).lower(), ""))


def _warn_of_empty(name: str, lacking: npt.NDArray[np.bool_], like: str) -> None:
    """Log that a column is empty, as after a join that failed, although no training row lacked its value."""
    if len(lacking) > 1 and lacking.all():
        logger.warning(
            "column %r has no value in any of %d rows, and no training row lacked one: they count as %s",
            name, len(lacking), like,
        )  # fmt: skip


def _kind(each: Mapping[str, Any]) -> Kind:
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in each.items() if key != "kind"}
    return {"Numeric": Numeric, "Categorical": Categorical, "Raw": Raw}[each["kind"]](**values)
