"""The user's own arrays as a data set, checked once on entry."""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.data.columns import Names
from pyrobbb.data.dataset import Dataset, Spec, Split, Task, inferred_classes
from pyrobbb.data.frames import (
    by_target,
    check_positions,
    check_same_rows,
    is_table,
    refuse_masked,
    refuse_unread,
)
from pyrobbb.data.splits import numbered, of_the_rows

ArrayLike = Any  # a tensor, a numpy array, a DataFrame, nested lists
SEVERAL = (
    "several inputs go side by side into one x, as column_stack makes it, whose columns the network takes "
    "apart again"
)
TEXT = ": encode text as numbers, or use from_table"
INSTEAD = {"U": TEXT, "S": TEXT, "O": ": if all are numbers, pass np.asarray(..., dtype=float)"}  # by kind


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    task: Task,
    weights: ArrayLike | None = None,
    validation: Any = None,
    test: Any = None,
    split_seed: int = 0,
    classes: int | None = None,
    dtype: torch.dtype | None = torch.float32,
    name: str = "arrays",
) -> Dataset:
    """A data set from numpy arrays, DataFrames, tensors or nested lists; the values are copied.

    Args:
        x: inputs of shape `(N, *features)`, any real number type; they become `dtype`.
        y: for `task="classification"` integer labels 0, 1, ..., classes - 1 of shape `(N,)`, or `(N, *grid)`
            where classes= is given, which become int64; for `task="regression"` real targets of shape
            `(N, *grid, outputs)` or `(N,)`, which become `dtype` and, for the latter, `(N, 1)`.
        task: "classification" or "regression".
        weights: how often each row's log-likelihood counts, `(N,)`, zero or more: row i counts weights[i]
            times, as if it had been seen so often, in training and in scores of rows held back. They are not
            rescaled: a sum other than N makes the data weigh more or less against the prior. Rows of a pair
            `(x, y)` for validation or test count once.
        validation: held back from training: a share of the rows, drawn by `split_seed`; a list of row
            numbers; or a pair `(x, y)` of the same kind.
        test: held back for the end, in the same forms.
        split_seed: seed of that draw, which no other random state enters.
        classes: the number of classes; the largest label of `y` plus one when not given.
        dtype: the floating point type of inputs and regression targets, that of your network; torch.long for
            inputs that are tokens; None keeps whole numbers as they are.
        name: the data set's name in output and files.

    Raises:
        ValueError: what is wrong, in which array, and what would be right.
    """
    checks.one_of("task", task, get_args(Task))
    floating = isinstance(dtype, torch.dtype) and dtype.is_floating_point
    if dtype not in (None, torch.long) and not floating:
        raise ValueError(
            f"dtype must be a floating point type, such as torch.float64, or torch.long for tokens, got "
            f"{dtype!r}"
        )
    if classes is not None:
        if task != "classification":
            raise ValueError(f"classes is for classification only, got {classes!r} for {task}")
        classes = checks.count("classes", classes)

    refuse_several(x, y)
    check_same_rows({"x": x, "y": y, "weights": weights})
    check_positions(x, validation=validation, test=test)
    names, targets = (tuple(map(str, part.columns)) if is_table(part) else () for part in (x, y))
    columns = Names(names, targets) if names or targets else None
    train = _split("", x, y, task, dtype, grid=classes is not None)
    if weights is not None:
        train = Split(train.x, train.y, row_weights("weights", weights, train.x))
    given = {"test": test, "validation": validation}
    rows = numbered(given, len(train), split_seed)
    features = tuple(train.x.shape[1:])
    if task == "classification":
        low, high = int(train.y.min()), int(train.y.max())
        outputs = inferred_classes("y", low, high, len(train)) if classes is None else classes
    else:
        outputs = train.y.shape[-1]
    spec = Spec(N=len(rows["train"]), features=features, outputs=outputs, task=task)

    _check_against(spec, "", train, inferred=classes is None)
    parts = {part: train.take(torch.from_numpy(own)) for part, own in rows.items() if part != "train"}
    if parts:
        train = train.take(torch.from_numpy(rows["train"]))
    for part, pair in given.items():
        if pair is not None and not of_the_rows(pair):
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ValueError(
                    f"{part} must be a share of the rows, a list of row numbers or a pair (x, y), got "
                    f"{type(pair).__name__}"
                )
            check_same_rows({f"{part} x": pair[0], f"{part} y": pair[1]})
            if columns is not None:
                columns.inputs(pair[0], f"{part} x")
            own = by_target(f"{part} y", pair[1], targets)
            split = _split(f"{part} ", pair[0], own, task, dtype, grid=classes is not None)
            _check_against(spec, f"{part} ", split, inferred=classes is None)
            parts[part] = split
    return Dataset(name, train, spec, parts.get("validation"), parts.get("test"), columns)


def refuse_several(x: ArrayLike, y: ArrayLike) -> None:
    """ValueError if `x` is several inputs, by name or one for each row of y."""
    several = isinstance(x, Mapping)
    sized = hasattr(y, "__len__") and getattr(y, "shape", (1,)) != ()
    if isinstance(x, list | tuple) and len(x) > 1 and sized and len(x) != len(y):
        several = all(hasattr(part, "shape") and tuple(part.shape[:1]) == (len(y),) for part in x)
    if several:
        raise ValueError(f"x must be one array, got a {type(x).__name__} of {len(x)}: {SEVERAL}")


def _split(
    part: str, x: ArrayLike, y: ArrayLike, task: Task, dtype: torch.dtype | None, *, grid: bool
) -> Split:
    inputs = as_inputs(f"{part}x", x, dtype)
    targets = as_targets(f"{part}y", y, task, dtype)
    if task == "classification" and targets.ndim != 1 and not grid:
        raise ValueError(
            f"{part}y must have the shape (N,) for classification, got {tuple(targets.shape)}: take "
            f"y[..., 0] of one column, y.argmax(-1) of one-hot rows, or pass classes= where each row has "
            f"several labels"
        )
    if len(targets) != len(inputs):
        raise ValueError(
            f"{part}x has {len(inputs):,} rows and {part}y has {len(targets):,}; they must agree"
        )
    return Split(inputs, targets.to(inputs.device))


def row_weights(name: str, weights: ArrayLike | None, rows: Tensor) -> Tensor:
    """How often each of the rows counts, `(N,)`, on their device; None is once.

    Raises:
        ValueError: A weight is negative or not finite, all are 0, or they are not one for each row.
    """
    dtype = rows.dtype if rows.dtype.is_floating_point else torch.float32  # mapped rows too
    if weights is None:
        return torch.ones(len(rows), dtype=dtype, device=rows.device)
    tensor = _tensor(name, weights).to(rows.device)
    tensor = _finite(name, tensor, weights, dtype)
    if tensor.shape != (len(rows),):
        raise ValueError(f"{name} must have the shape ({len(rows)},), got {tuple(tensor.shape)}")
    if bool((tensor < 0).any()):
        row = int(tensor.argmin())
        raise ValueError(
            f"{name} holds {float(tensor[row]):g} in row {row}, counted from 0; none may be negative"
        )
    if not bool(tensor.any()):
        raise ValueError(f"{name}: the weights are all 0, so that no row counts")
    return tensor


def check_precision(name: str, blocks: Iterable[Tensor], dtype: torch.dtype, instead: str) -> None:
    """ValueError if targets, far from zero beside their spread, are rounded away by `dtype`.

    The rows come in any number of blocks, of which one at a time is in memory.
    """
    parts = []
    for block in blocks:
        exact = block.double()
        if exact.ndim == 0 or not exact.numel() or not bool(exact.isfinite().all()):
            return
        lost = (exact.to(dtype).double() - exact).abs().amax(0)
        rows = torch.full_like(lost, len(exact))
        parts.append((rows, exact.mean(0), exact.var(0, correction=0), lost, exact.amin(0), exact.amax(0)))
    rows, means, variances, losses, low, high = (torch.stack(each) for each in zip(*parts, strict=True))
    N, differ = rows.sum(0), high.amax(0) > low.amin(0)
    mean = (rows * means).sum(0) / N
    squares = (rows * (variances + (means - mean) ** 2)).sum(0)
    least = max(1e-3, 4 * torch.finfo(dtype).eps)  # half precision loses more, wherever the values lie
    if bool((differ & (losses.amax(0) > least * (squares / (N - 1)).sqrt())).any()):
        kind = str(dtype).removeprefix("torch.")
        raise ValueError(
            f"{name} lies so far from zero, about {float(mean.mean()):g}, that {kind} rounds away the "
            f"differences between its values: subtract a constant, or pass {instead}"
        )


def as_inputs(name: str, x: ArrayLike, dtype: torch.dtype | None) -> Tensor:
    """Inputs `(N, *features)` as a tensor of `dtype`; None keeps whole numbers, and makes the rest float32.

    Raises:
        ValueError: What is wrong, where, and what would be right.
    """
    tensor = _tensor(name, x)
    if dtype == torch.long and tensor.is_floating_point():
        raise ValueError(f"{name} must hold whole numbers for dtype=torch.long, got {tensor.dtype}")
    whole = dtype is None and not tensor.is_floating_point()
    tensor = tensor.long() if whole else _finite(name, tensor, x, dtype or torch.float32)
    if tensor.ndim < 2:
        advice = (
            "; for one feature per row use x[:, None], for a single row x[None]" if tensor.ndim == 1 else ""
        )
        raise ValueError(f"{name} must have the shape (N, features...), got {tuple(tensor.shape)}{advice}")
    if tensor.numel() == 0:
        raise ValueError(f"{name} is empty: its shape is {tuple(tensor.shape)}")
    return tensor


def as_targets(name: str, y: ArrayLike, task: Task, dtype: torch.dtype | None) -> Tensor:
    """Labels as int64, or numbers `(N, *grid, outputs)` in the floating point type `dtype`.

    Raises:
        ValueError: What is wrong, where, and what would be right.
    """
    if task == "classification":
        return _labels(name, y)
    kept = dtype if dtype is not None and dtype.is_floating_point else torch.float32
    given = _tensor(name, y)
    targets = _finite(name, given, y, kept)
    check_precision(name, [given], kept, "dtype=torch.float64")
    targets = targets[:, None] if targets.ndim == 1 else targets
    if targets.ndim < 2 or 0 in targets.shape[1:]:
        shape = tuple(targets.shape)
        raise ValueError(f"{name} must have the shape (N,) or (N, outputs) for regression, got {shape}")
    return targets


def _check_against(spec: Spec, part: str, split: Split, *, inferred: bool) -> None:
    features = tuple(split.x.shape[1:])
    if features != spec.features:
        raise ValueError(
            f"{part}x has rows of shape {features}; those of the training x have {spec.features}"
        )
    if spec.task == "regression" and split.y.shape[-1] != spec.outputs:
        raise ValueError(f"{part}y has {split.y.shape[-1]} outputs; the training y has {spec.outputs}")
    if spec.task == "classification" and int(split.y.max()) >= spec.outputs:
        row = int(split.y.argmax()) // split.y.shape[1:].numel()
        source = "the training labels; pass classes= if there are more" if inferred else "classes="
        raise ValueError(
            f"{part}y holds the label {int(split.y[row].max())} in row {row}; "
            f"labels run from 0 to {spec.outputs - 1} according to {source}"
        )


def _tensor(name: str, values: ArrayLike) -> Tensor:
    """A copy as a tensor of the values' own type, booleans and all kinds of integers included."""
    refuse_unread(name, values)
    refuse_masked(name, values)
    if isinstance(values, Tensor):
        if values.is_complex():
            raise ValueError(f"{name} must hold real numbers, got {values.dtype}")
        return checks.dense(name, values).detach().clone(memory_format=torch.contiguous_format)
    if is_table(values):
        array = _of_columns(name, values)
    else:
        try:
            array = np.asarray(values)
        except (ValueError, TypeError, RuntimeError) as error:  # rows of different lengths, odd tensors
            raise ValueError(f"{name} is not an array of numbers: {error}") from error
    if array.dtype.kind not in "biuf":
        found = f"an array of {array.dtype}" if array.ndim else type(values).__name__
        advice = INSTEAD.get(array.dtype.kind, "") if array.ndim else ""
        raise ValueError(f"{name} must hold real numbers, got {found}{advice}")
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise ValueError(f"{name} holds {array.max()}, which is too large for a 64-bit integer")
    wide: Any = {"b": np.bool_, "i": np.int64, "u": np.int64}.get(array.dtype.kind, as_torch_has(array.dtype))
    return torch.from_numpy(array.astype(wide, order="C"))


def as_torch_has(dtype: np.dtype) -> np.dtype:
    """The type of numbers in this machine's byte order, of which float64 is the widest."""
    return np.dtype(np.float64) if dtype.itemsize > 8 else dtype.newbyteorder("=")


def _of_columns(name: str, table: Any) -> np.ndarray:
    """A pandas DataFrame with columns of numbers or booleans, with NaN for missing values."""
    for column, kind in zip(table.columns, table.dtypes, strict=True):
        if getattr(kind, "kind", "O") not in "biuf":
            raise ValueError(
                f"{name} must hold real numbers, and its column {column!r} is {kind}: encode it as numbers"
            )
    if all(kind.kind in "biu" for kind in table.dtypes) and not bool(table.isna().any(axis=None)):
        return np.asarray(table.to_numpy(np.int64))
    return np.asarray(table.to_numpy(np.float64, na_value=np.nan))


def _finite(name: str, given: Tensor, values: ArrayLike, dtype: torch.dtype) -> Tensor:
    """`given` as `dtype`, if all of it is finite; `values` may name its columns."""
    tensor = given.to(dtype)
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        first = (~finite).nonzero()[0].tolist()
        count, value = int((~finite).sum()), float(given[tuple(first)])
        what = "not finite" + f" in {str(dtype).removeprefix('torch.')}" * isfinite(value)
        place = f"in row {first[0]}" if first else "as its only value"
        if len(first) == 2:
            columns = getattr(values, "columns", range(tensor.shape[1]))
            place += f", column {columns[first[1]]!r}"
        raise ValueError(f"{name} holds {count:,} values that are {what}, the first ({value}) {place}")
    return tensor


def _labels(name: str, values: ArrayLike) -> Tensor:
    tensor = _tensor(name, values)
    if tensor.is_floating_point():
        raise ValueError(
            f"{name} must hold integer class labels, got {tensor.dtype}: convert it if they are integers; "
            f"for shares of classes repeat a row for each class, with its share as weights="
        )
    tensor = tensor.to(torch.int64)
    if tensor.numel() and int(tensor.min()) < 0:
        row = int(tensor.argmin()) // tensor.shape[1:].numel()
        raise ValueError(f"{name} holds the label {int(tensor.min())} in row {row}; labels start at 0")
    return tensor
