"""A user's own arrays as a data set, checked once where they come in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.data.dataset import Dataset, Spec, Split, Task, inferred_classes

ArrayLike = Tensor | npt.NDArray[Any] | Sequence[Any]
Pair = tuple[ArrayLike, ArrayLike]


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    task: Task,
    validation: Pair | None = None,
    test: Pair | None = None,
    classes: int | None = None,
    dtype: torch.dtype = torch.float32,
    name: str = "arrays",
) -> Dataset:
    """A data set from numpy arrays, tensors or nested lists; the values are copied.

    Args:
        x: inputs of shape `(N, *features)`, any real number type; they become `dtype`.
        y: for `task="classification"` integer labels 0, 1, ..., classes - 1 of shape `(N,)`, which
            become int64; for `task="regression"` real targets of shape `(N, outputs)` or `(N,)`, which
            become `dtype` and `(N, outputs)`.
        task: "classification" or "regression".
        validation: a pair `(x, y)` of the same kind, or nothing.
        test: a pair `(x, y)` of the same kind, or nothing.
        classes: the number of classes; the largest training label plus one when not given.
        dtype: the floating point type of inputs and regression targets, that of your network.
        name: what the data set is called in what is printed and stored.

    Raises:
        ValueError: what is wrong, in which array, and what would be right.
    """
    checks.one_of("task", task, get_args(Task))
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating point type, got {dtype}")
    if classes is not None:
        if task != "classification":
            raise ValueError(f"classes is for classification only, got {classes!r} for {task}")
        checks.count("classes", classes)

    train = _split("", x, y, task, dtype)
    features = tuple(train.x.shape[1:])
    if task == "classification":
        outputs = inferred_classes("y", int(train.y.max()), len(train)) if classes is None else classes
    else:
        outputs = train.y.shape[1]
    spec = Spec(N=len(train), features=features, outputs=outputs, task=task)

    _check_against(spec, "", train, inferred=classes is None)
    parts: dict[str, Split | None] = {"validation": None, "test": None}
    for part, pair in (("validation", validation), ("test", test)):
        if pair is not None:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ValueError(f"{part} must be a pair (x, y), got {type(pair).__name__}")
            split = _split(f"{part} ", pair[0], pair[1], task, dtype)
            _check_against(spec, f"{part} ", split, inferred=classes is None)
            parts[part] = split
    return Dataset(name, train, spec, parts["validation"], parts["test"])


def _split(part: str, x: ArrayLike, y: ArrayLike, task: Task, dtype: torch.dtype) -> Split:
    inputs = _real(f"{part}x", x, dtype)
    if inputs.ndim < 2:
        advice = "; for one feature per row use x[:, None]" if inputs.ndim == 1 else ""
        raise ValueError(f"{part}x must have the shape (N, features...), got {tuple(inputs.shape)}{advice}")
    if inputs.numel() == 0:
        raise ValueError(f"{part}x is empty: its shape is {tuple(inputs.shape)}")
    targets = _labels(f"{part}y", y) if task == "classification" else _real(f"{part}y", y, dtype)
    if task == "classification" and targets.ndim != 1:
        raise ValueError(f"{part}y must have the shape (N,) for classification, got {tuple(targets.shape)}")
    if task == "regression":
        targets = targets[:, None] if targets.ndim == 1 else targets
        if targets.ndim != 2 or targets.shape[1] == 0:
            shape = tuple(targets.shape)
            raise ValueError(f"{part}y must have the shape (N,) or (N, outputs) for regression, got {shape}")
    if len(targets) != len(inputs):
        raise ValueError(
            f"{part}x has {len(inputs):,} rows and {part}y has {len(targets):,}; they must agree"
        )
    return Split(inputs, targets.to(inputs.device))


def _check_against(spec: Spec, part: str, split: Split, *, inferred: bool) -> None:
    features = tuple(split.x.shape[1:])
    if features != spec.features:
        raise ValueError(
            f"{part}x has rows of shape {features}; those of the training x have {spec.features}"
        )
    if spec.task == "regression" and split.y.shape[1] != spec.outputs:
        raise ValueError(f"{part}y has {split.y.shape[1]} outputs; the training y has {spec.outputs}")
    if spec.task == "classification" and int(split.y.max()) >= spec.outputs:
        row = int(split.y.argmax())
        source = "the training labels; pass classes= if there are more" if inferred else "classes="
        raise ValueError(
            f"{part}y holds the label {int(split.y[row])} in row {row}; "
            f"labels run from 0 to {spec.outputs - 1} according to {source}"
        )


def _tensor(name: str, values: ArrayLike) -> Tensor:
    """A copy as a tensor of the values' own type, booleans and all kinds of integers included."""
    if isinstance(values, Tensor):
        if values.is_complex():
            raise ValueError(f"{name} must hold real numbers, got {values.dtype}")
        return checks.dense(name, values).detach().clone(memory_format=torch.contiguous_format)
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{name} is no array of numbers: {error}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold real numbers, got an array of {array.dtype}")
    if array.dtype.kind == "u" and array.size and int(array.max()) >= 2**63:
        raise ValueError(f"{name} holds {array.max()}, which is too large for a 64-bit integer")
    floating = np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    wide = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": floating}[array.dtype.kind]
    return torch.from_numpy(array.astype(wide, order="C"))


def _real(name: str, values: ArrayLike, dtype: torch.dtype) -> Tensor:
    tensor = _tensor(name, values).to(dtype)
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        first = (~finite).nonzero()[0].tolist()
        count, value = int((~finite).sum()), float(tensor[tuple(first)])
        place = f"in row {first[0]}" if first else "as its only value"
        raise ValueError(f"{name} holds {count:,} values that are not finite, the first ({value}) {place}")
    return tensor


def _labels(name: str, values: ArrayLike) -> Tensor:
    tensor = _tensor(name, values)
    if tensor.is_floating_point():
        raise ValueError(
            f"{name} must hold integer class labels, got {tensor.dtype}: convert it if they are integers"
        )
    tensor = tensor.to(torch.int64)
    if tensor.numel() and int(tensor.min()) < 0:
        row = int(tensor.flatten().argmin())
        raise ValueError(f"{name} holds the label {int(tensor.min())} in row {row}; labels start at 0")
    return tensor
