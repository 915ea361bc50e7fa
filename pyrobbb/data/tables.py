"""A table as a data set: numbers and categories in, standardised inputs and targets in their units out."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.data.arrays import check_precision, row_weights
from pyrobbb.data.columns import Columns, mean_and_sd
from pyrobbb.data.dataset import Dataset, Spec, Split, Task, Units
from pyrobbb.data.frames import (
    Column,
    Frame,
    as_column,
    as_frame,
    as_zeros_and_ones,
    by_place,
    categories,
    check_positions,
    check_same_rows,
    is_missing,
    is_table,
    opened,
    refuse_tensor,
    rows_of,
    take,
)
from pyrobbb.data.splits import is_share, split_rows
from pyrobbb.data.texts import MOST, as_text, check_slips, first_text, holds_number


@dataclass(frozen=True)
class TableData(Dataset):
    """A data set made from a table, with what is needed to transform new rows the same way.

    Inputs are standardised by the training rows. Targets of a regression are in their own units, and
    `spec.units` tells a likelihood what they are.
    """

    columns: Columns = field(kw_only=True)

    def inputs(self, rows: Any) -> Tensor:
        """Inputs `(M, features)` for `Posterior.predict`, of rows in any form that `Table` takes."""
        return self.columns.inputs(rows).to(self.train.x)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows and columns, of which some are targets.

    Numbers become (x - mean) / sd, missing ones the median, with an input that says which were missing if
    training rows lack any. Text, without blanks around it, becomes one input a category; missing is one if
    training rows lack any. A category that no training row has counts as an average row. All of it is learned
    from the training rows alone (`pyrobbb.data.columns`).

    Args:
        source: A path to a CSV (first line: names; missing: empty, NA, NaN, null, none or ?) or Parquet
            file; a DataFrame; a mapping of names to columns; an array `(N, columns)`.
        target: The name of the target column, or several for a regression; by default the last one.
        task: "regression" or "classification"; inferred where text, categories or fractions leave no doubt.
        categorical: Columns of numbers that name categories, or the target's classes; those of pandas' dtype
            "category" need no word.
        drop: Columns to leave out.
        raw: Columns of numbers that come as they stand, in this order, as the last inputs: such as the
            exposure of a count, for a network that knows its units. None of their values may be missing.
        weights: The column that says how often each row's log-likelihood counts, in training and in scores
            of validation and test rows; no input. A training row that counts 0 times is left out of
            everything; in means and standard deviations each other one counts once. A validation or test
            row that counts 0 times is kept, but not scored, and left out if it lacks a target. Rows of
            another table for validation or test that has no such column count once.
        validation: Held back from training: a share of all rows, drawn by `split_seed`; a list of row
            numbers, or a mask of booleans; or another table with the same columns.
        test: Held back for the end, in the same forms.
        split_seed: Seed of that draw, which no other random state enters.
        dtype: "float32" or "float64", that of your network.

    Raises:
        ValueError: A field outside its domain; `load` finds a table that it cannot use. The message says
            which column and row.
    """

    source: Any
    target: str | int | Sequence[str | int] | None = None
    task: Task | None = None
    categorical: Sequence[str | int] = ()
    drop: Sequence[str | int] = ()
    raw: Sequence[str | int] = ()
    weights: str | int | None = None
    validation: Any = 0.0
    test: Any = 0.0
    split_seed: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.task is not None:
            checks.one_of("task", self.task, get_args(Task))
        checks.one_of("dtype", self.dtype, ("float32", "float64"))
        checks.keep(self, split_seed=checks.seed("split_seed", self.split_seed))
        for name in ("categorical", "drop", "raw"):
            if isinstance(getattr(self, name), str | Integral):
                raise ValueError(f"{name} must be a list of column names, got {getattr(self, name)!r}")
            checks.keep(self, **{name: tuple(map(str, getattr(self, name)))})
        if self.weights is not None:
            if not isinstance(self.weights, str | Integral):
                raise ValueError(
                    f"weights must name a column of the table, got {type(self.weights).__name__}: make them "
                    f"one, or pass the targets as y beside them, from_table(x, y, weights=...)"
                )
            checks.keep(self, weights=str(self.weights))
        for name in ("validation", "test"):
            if getattr(self, name) is None:  # as from_arrays and YAML say that there is none
                checks.keep(self, **{name: 0.0})
            if is_share(getattr(self, name)):
                checks.share(name, getattr(self, name), zero=True)

    def load(self) -> TableData:
        """Read the table, split its rows and learn its columns from those for training."""
        refuse_tensor("the table", self.source)
        source = opened("the table", self.source)
        texts = self._texts(source)
        frame = as_frame("the table", source, texts, lambda column: column not in self.drop, blank_end=False)
        targets = self._targets(frame)
        self._check_names(frame, targets)
        width = by_place(frame)
        frame = {name: column for name, column in frame.items() if name not in self.drop}
        frame = self._with_numbers(frame, targets)
        self._weights("the table", frame)  # here the rows still have their own numbers
        counting = self._counting(frame)
        _check_targets("the table", frame, targets, self.task, counting)
        named: Task | None = "classification" if {*targets} & {*texts} else None
        task = self.task or named or _task(targets, take(frame, counting))
        if task == "classification" and len(targets) > 1:
            raise ValueError(f"a classification has one target, got {', '.join(targets)}")
        given = {"test": self.test, "validation": self.validation}
        check_positions(source, **given)
        for name, column in frame.items():
            if name not in texts:
                check_slips(name, column, target=name in targets)
        known = {name: frozenset(column) for name, column in frame.items() if column.dtype.kind != "f"}
        split = split_rows(frame, given, self.split_seed, {**known, **texts})
        parts = {part: self._with_numbers(rows, targets) for part, rows in split.items()}
        train = parts["train"] = take(parts["train"], self._counting(parts["train"]))
        for part, rows in parts.items():
            parts[part] = rows = take(rows, self._counting(rows) | _complete(rows, targets))
            _check_targets(part, rows, targets, task)
        classes = _classes(targets[0], train[targets[0]]) if task == "classification" else ()
        inputs = {name: column for name, column in train.items() if name != self.weights}
        columns = Columns.learn(inputs, targets, classes, frozenset(texts), tuple(map(str, self.raw)))
        columns = replace(columns, width=width)
        splits = {part: self._split(rows, columns, part) for part, rows in parts.items()}
        x = splits["train"].x
        units = None if classes else _units(targets, train, x.dtype)
        spec = Spec(len(x), tuple(x.shape[1:]), len(classes) or len(targets), task, units, columns.raw)
        name = self.source if isinstance(self.source, str) else "table"
        return TableData(name, spec=spec, columns=columns, **splits)

    def _texts(self, source: Any) -> dict[str, tuple[()]]:
        """The columns that name categories, none of them known as yet: those said, and pandas' own."""
        own = [name for name in categories(source) if name not in self.raw]
        return dict.fromkeys((*map(str, self.categorical), *own), ())

    def _targets(self, frame: Frame) -> tuple[str, ...]:
        if self.target is None:
            return tuple([name for name in frame if name not in self.drop][-1:])
        if isinstance(self.target, str | int | Integral):
            return (str(self.target),)
        return tuple(map(str, self.target))

    def _check_names(self, frame: Frame, targets: tuple[str, ...]) -> None:
        if "" in frame and "" not in self.drop:
            raise ValueError(
                "the table has a column without a name, such as the index that DataFrame.to_csv writes: "
                "leave it out with drop=[''], or name it"
            )
        weights = () if self.weights is None else (self.weights,)
        kinds = {
            "target": targets, "categorical": self.categorical, "drop": self.drop, "raw": self.raw,
            "weights": weights,
        }  # fmt: skip
        for key, names in kinds.items():
            absent = [name for name in names if name not in frame]
            if absent:
                raise ValueError(f"{key}: the table has no column {absent[0]!r}; it has {', '.join(frame)}")
        if not targets or len(set(targets)) < len(targets):
            found = f"names {', '.join(targets)}" if targets else "names no column"
            raise ValueError(f"target {found}; it must name one column or more, each once, not dropped")
        if set(targets) & set(weights):
            raise ValueError(f"weights: {self.weights!r} is the target; name another column, or none")
        if set(targets) & {*self.drop, *self.raw}:
            raise ValueError(f"target: {', '.join(targets)} must not be in drop or raw")
        if len(set(self.raw)) < len(self.raw) or set(self.raw) & {*self.drop, *self.categorical, *weights}:
            raise ValueError(f"raw: {', '.join(map(str, self.raw))}: name each once, and nowhere else")
        if set(weights) & {*self.drop}:
            raise ValueError(f"weights: {self.weights!r} is never an input; leave it out of drop")
        if not set(frame) - {*targets, *self.drop, *weights}:
            raise ValueError(
                f"the table has no column that can be an input: it has {', '.join(map(repr, frame))}; the "
                f"columns of a file must be separated by commas"
            )

    def _with_numbers(self, rows: Frame, targets: tuple[str, ...]) -> Frame:
        """The rows with booleans as numbers in the weights, and in targets that are said to be values."""
        names = (self.weights, *(targets if self.task == "regression" else ()))
        return rows | {str(name): as_zeros_and_ones(rows[str(name)]) for name in names if name in rows}

    def _counting(self, rows: Frame) -> npt.NDArray[np.bool_]:
        """Which rows count: no mean, no class has those that count nothing."""
        every = np.ones(rows_of(rows), dtype=bool)
        if self.weights not in rows or (counts := rows[str(self.weights)]).dtype.kind != "f":
            return every
        there: npt.NDArray[np.bool_] = counts > 0
        return there if there.any() and (counts >= 0).all() else every  # for `row_weights` to refuse

    def _split(self, rows: Frame, columns: Columns, part: str) -> Split:
        x = columns.inputs(rows).to(getattr(torch, self.dtype))
        if columns.classes:
            (name,) = columns.targets
            y = columns.labels(f"{part}: target {name!r}", rows[name])
        else:
            y = torch.from_numpy(np.stack([rows[name] for name in columns.targets], axis=1)).to(x.dtype)
        return Split(x, y, self._weights(part, rows))

    def _weights(self, part: str, rows: Frame) -> Tensor | None:
        if self.weights not in rows:
            return None
        name, like = str(self.weights), torch.empty(rows_of(rows), dtype=getattr(torch, self.dtype))
        try:
            return row_weights(f"{part}: column {name!r}", rows[name], like)
        except ValueError as error:
            raise ValueError(
                f"{error}: give these rows weights; those for validation or test may also come as a table "
                f"without this column, and count once"
            ) from error


def from_table(source: Any, y: Any = None, **options: Any) -> TableData:
    """`Table(source=source, ...).load()`; `y` is the target if the table has only inputs.

    >>> data = from_table("houses.csv", target="price", task="regression", test=0.2)
    >>> data = from_table(x.numpy(), y, task="classification", test=0.2)

    With `y`, `weights` are numbers as well, one for each row, and a table for validation or test is a pair
    `(x, y)`.

    Raises:
        TypeError: There is no option of that name.
        ValueError: What is wrong with the table, in which column and row, and what would be right.
    """
    known = [each.name for each in fields(Table) if each.name != "source"]
    for name in options:
        if name not in known:
            said = f"{checks.meant(name, known)}; the options are {', '.join(known)}"
            raise TypeError(f"from_table has no option {name!r}{said}")
    if y is None:
        return Table(source=source, **options).load()
    if isinstance(y, str | Integral):
        raise ValueError(f"y must hold the targets, got {y!r}: say target={y!r} if that is a column")
    if "target" in options:
        raise ValueError("target names a column of the table; it cannot be combined with y")
    source, weights = opened("x", source), options.pop("weights", None)
    table = Table(source=source, **options)
    texts = table._texts(source)
    check_positions(source, validation=table.validation, test=table.test)
    check_same_rows({"x": source, "weights": weights})
    own = y.name if isinstance(getattr(y, "name", None), str) else "y"
    targets, frame = _with_targets("", source, y, texts, table.drop, own)
    texts |= dict.fromkeys(categories(y if is_table(y) else {own: y}), ())
    if weights is not None and not isinstance(weights, str | Integral):
        if "weights" in frame:
            raise ValueError(_TAKEN.format("weights", "weights"))
        frame["weights"], weights = as_column("weights", weights), "weights"
    held = {"validation": table.validation, "test": table.test}
    for part, given in held.items():
        if isinstance(given, tuple | list) and len(given) == 2 and hasattr(given[0], "__len__"):
            held[part] = _with_targets(f"{part} ", given[0], given[1], texts, table.drop, targets[0])[1]
    made = replace(table, source=frame, target=targets, categorical=(*texts,), weights=weights, **held)
    return made.load()


_TAKEN = (
    "x has a column {0!r} already, which {1} would overwrite: rename the column, or let target= and weights= "
    "name columns of x"
)


def _with_targets(
    part: str,
    x: Any,
    y: Any,
    texts: Mapping[str, Collection[str]],
    drop: Collection[str | int],
    own: str,
) -> tuple[tuple[str, ...], Frame]:
    """Names of the targets, that of one dimension its `own`, and the columns of x with them."""
    refuse_tensor(f"{part}x", x)
    check_same_rows({f"{part}x": x, f"{part}y": y})
    frame = as_frame(f"{part}x", x, texts, lambda column: column not in drop)
    if np.ndim(y) == 2:
        start = "" if is_table(y) else "y"  # the columns of an array are numbers
        targets = {f"{start}{name}": column for name, column in as_frame(f"{part}y", y).items()}
    else:
        targets = {own: as_column(f"{part}y", y)}
    taken = [name for name in targets if name in frame]
    if taken:
        raise ValueError(_TAKEN.format(taken[0], "y"))
    return tuple(targets), frame | targets


def _complete(rows: Frame, targets: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Which rows lack no target."""
    lacking = [is_missing(rows[name]) for name in targets if name in rows]
    return ~np.any([np.zeros(rows_of(rows), dtype=bool), *lacking], axis=0)


def _check_targets(
    part: str,
    rows: Frame,
    targets: tuple[str, ...],
    task: Task | None,
    counting: npt.NDArray[np.bool_] | None = None,
) -> None:
    """ValueError if a target is absent or missing in a row, or text where the task is surely a regression.

    Missing in one of the rows that are `counting`, if that is given.
    """
    for name in targets:
        if name not in rows:
            raise ValueError(f"{part} has no column {name!r}, the target")
        lacking = is_missing(rows[name])
        if counting is not None:
            lacking &= counting
        if lacking.any():
            raise ValueError(
                f"{part}: target {name!r} is missing in {lacking.sum()} rows, the first of them row "
                f"{lacking.argmax()}, counted from 0; a target cannot be filled in: leave these rows out, "
                f"or fit each of several targets by itself, to the rows that have it"
            )
        if task == "regression" and rows[name].dtype.kind != "f":
            what = first_text(rows[name])
            raise ValueError(f"{part}: target {name!r} holds the text {what}; a regression needs numbers")


def _task(targets: tuple[str, ...], frame: Frame) -> Task:
    """What the targets show; ValueError for a column of whole numbers, which could be either."""
    column = frame[targets[0]]
    if len(targets) > 1 or (column.dtype.kind == "f" and (column != column.round()).any()):
        return "regression"
    if column.dtype.kind != "f":
        texts = {*column}
        if len(texts) > MOST and all(map(holds_number, texts)):
            raise ValueError(
                f"target {targets[0]!r} holds {len(texts)} numbers written as text: for a regression strip "
                f"currency signs and units and make them plain numbers, such as 1034.5, for example with "
                f"pandas.to_numeric; otherwise pass task='classification'"
            )
        return "classification"
    raise ValueError(
        f"target {targets[0]!r} holds whole numbers, which can be labels or values: pass "
        f"task='classification' or task='regression' (on the command line data.task=regression)"
    )


def _classes(name: str, column: Column) -> tuple[str, ...]:
    """The classes of the training rows: numbers by size, text by the alphabet.

    Raises:
        ValueError: There is one, or so many that they name the rows.
    """
    values = sorted(set(column.tolist()))
    classes = tuple(dict.fromkeys(as_text(name, np.array(values, dtype=column.dtype))))  # 0.3 is 0.1 + 0.2
    if len(classes) < 2:
        raise ValueError(f"target {name!r} has one class in the training rows, {classes[0]!r}")
    if column.dtype.kind != "f" and len(classes) > max(MOST, len(column) // 2):
        raise ValueError(
            f"target {name!r} has {len(classes)} different texts in {len(column)} training rows, such as "
            f"{classes[0]!r}: for a regression write plain numbers, such as 4123.5; for a classification, "
            f"fewer labels"
        )
    return classes


def _units(targets: tuple[str, ...], train: Frame, dtype: torch.dtype) -> Units:
    """Mean and standard deviation (n in the denominator) of each target over the training rows.

    Raises:
        ValueError: A target that is the same in every row, too large, or that loses its precision in `dtype`.
    """
    found = []
    for name in targets:
        values = train[name]
        mean, sd = mean_and_sd(f"target {name!r}", values, "leave the row out, or rescale the target")
        if not sd > 1e-12 * abs(mean):
            raise ValueError(f"target {name!r} is {values[0]:g} in every training row")
        check_precision(f"target {name!r}", [torch.from_numpy(values)], dtype, "dtype='float64' in Python")
        found.append((mean, sd))
    means, sds = zip(*found, strict=True)
    return Units(means, sds)
