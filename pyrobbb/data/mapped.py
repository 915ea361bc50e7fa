"""Training data larger than memory: files that stay on the disk, read minibatch by minibatch."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from torch import Tensor

from pyrobbb._support import checks
from pyrobbb.data.arrays import as_torch_has, check_precision
from pyrobbb.data.dataset import Dataset, Spec, Split, Task, inferred_classes
from pyrobbb.data.images import idx

Array = np.ndarray[Any, Any]
BLOCK = 2**24  # bytes of a file checked at a time


class Mapped:
    """Rows of a mapped array, which become tensors when indexed: `mapped[rows]`, `mapped[a:b]`.

    Of a tensor it has what training and export need: `shape`, `dtype`, `device` (where the numbers of rows
    must lie), `to`, length and rows.

    Args:
        array: Any array of numpy's, usually a file mapped into memory, `(N, *features)`.
        dtype: What the values become.
        scale: What they are divided by.
        device: Device of the rows returned.
    """

    def __init__(
        self,
        array: Array,
        dtype: torch.dtype,
        *,
        scale: float = 1.0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.array, self.dtype, self.scale, self.target = array, dtype, scale, torch.device(device)
        self.shape, self.ndim, self.device = torch.Size(array.shape), array.ndim, torch.device("cpu")

    def __len__(self) -> int:
        return len(self.array)

    @property
    def whole_numbers(self) -> bool:
        """Whether the array can hold neither NaN nor infinity."""
        return self.array.dtype.kind != "f"

    def to(self, device: torch.device | str) -> Mapped:
        """The same rows, moved to another device when indexed."""
        return Mapped(self.array, self.dtype, scale=self.scale, device=device)

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        if isinstance(rows, slice):
            values = np.array(self.array[rows])
        else:
            wanted = rows.numpy()
            order = np.argsort(wanted)  # a disk is read in its own order
            values = np.empty((len(wanted), *self.array.shape[1:]), self.array.dtype)
            values[order] = self.array[wanted[order]]
        tensor = torch.from_numpy(values.astype(as_torch_has(values.dtype), copy=False))
        tensor = tensor.to(self.target).to(self.dtype)  # few bytes travel, the device converts
        return tensor if self.scale == 1 else tensor.div_(self.scale)


@dataclass(frozen=True, kw_only=True)
class OnDisk:
    """Arrays in `.npy` or (unzipped) IDX files; the training rows are never read as a whole.

    Training checks every row once, block by block, before it starts. The validation and test rows are
    read into memory. Shuffling needs 8 bytes of memory per training row.

    Args:
        x: File of the inputs, `(N, *features)`, any real number type; they become float32.
        y: File of the targets: integer labels `(N,)`, or real numbers `(N,)` or `(N, outputs)`.
        task: "classification" or "regression".
        classes: Number of classes; the largest label plus one when not given.
        scale: What the inputs are divided by.
        validation: Number of rows, from the end, kept for validation.
        test_x: File of test inputs, or nothing.
        test_y: File of test targets, or nothing.
        flatten: Give each row as a vector.
        name: The data set's name in output and files.

    Raises:
        ValueError: a field outside its domain, which the message names.
    """

    x: str
    y: str
    task: Task = "classification"
    classes: int | None = None
    scale: float = 1.0
    validation: int = 0
    test_x: str | None = None
    test_y: str | None = None
    flatten: bool = False
    name: str = "on disk"

    def __post_init__(self) -> None:
        checks.one_of("task", self.task, get_args(Task))
        checks.positive("scale", self.scale)
        checks.keep(self, validation=checks.count("validation", self.validation, minimum=0))
        if self.classes is not None:
            checks.keep(self, classes=checks.count("classes", self.classes))
        if (self.test_x is None) != (self.test_y is None):
            raise ValueError("test_x and test_y go together: give both, or neither")

    def load(self) -> Dataset:
        """Map the files; check every target and the rows that go into memory.

        Raises:
            ValueError: a file that is missing, damaged or of another shape or kind, or a value in it.
        """
        x, y = self._open(self.x, self.y)
        N = len(x) - self.validation
        if N < 1:
            raise ValueError(
                f"validation: {self.validation} of the {len(x)} rows of {self.x} leaves none for training"
            )
        if self.task == "regression":
            outputs = y.shape[1]
        else:
            outputs = self.classes or inferred_classes(self.y, int(y.min()), int(y.max()), N)
        spec = Spec(N=N, features=tuple(x.shape[1:]), outputs=outputs, task=self.task)
        _check_targets(self.y, y, spec)
        for array in (x, y):
            _expect_random_reads(array)
        validation = self._held(self.x, x[N:], y[N:], begin=N) if self.validation else None
        test = None
        if self.test_x is not None and self.test_y is not None:
            test_x, test_y = self._open(self.test_x, self.test_y)
            for path, found, wanted in ((self.test_x, test_x, x), (self.test_y, test_y, y)):
                if found.shape[1:] != wanted.shape[1:]:
                    raise ValueError(
                        f"{path} has rows of shape {found.shape[1:]}; training rows have {wanted.shape[1:]}"
                    )
            _check_targets(self.test_y, test_y, spec)
            test = self._held(self.test_x, test_x, test_y)
        return Dataset(self.name, self._rows(x[:N], y[:N]), spec, validation, test)

    def _open(self, x_path: str, y_path: str) -> tuple[Array, Array]:
        """Inputs and targets, if their shapes and kinds are those of the task; no value is read."""
        x, y = mapped(x_path), mapped(y_path)
        if x.ndim < 2 or x.size == 0:
            raise ValueError(f"{x_path} must have the shape (N, features...), got {x.shape}")
        if self.flatten and x.ndim > 2:
            if np.isfortran(x):
                raise ValueError(
                    f"{x_path} is in Fortran order, in which flatten would have to read it as a whole: write "
                    f"it row by row, np.save(path, np.ascontiguousarray(x))"
                )
            x = x.reshape(len(x), -1)
        if self.task == "regression" and y.ndim == 1:
            y = y[:, None]
        if y.ndim != (1 if self.task == "classification" else 2):
            shapes = "(N,) for classification, (N,) or (N, outputs) for regression"
            raise ValueError(f"{y_path} must have the shape {shapes}; got {y.shape} as task={self.task}")
        if len(x) != len(y):
            raise ValueError(f"{x_path} has {len(x):,} rows and {y_path} {len(y):,}; they must agree")
        if self.task == "classification" and y.dtype.kind == "f":
            raise ValueError(
                f"{y_path} must hold integer class labels, got {y.dtype}; for real targets use "
                f"task=regression (data.task=regression on the command line)"
            )
        return x, y

    def _rows(self, x: Array, y: Array) -> Split:
        targets = Mapped(y, torch.int64 if self.task == "classification" else torch.float32)
        return Split(cast(Tensor, Mapped(x, torch.float32, scale=self.scale)), cast(Tensor, targets))

    def _held(self, path: str, x: Array, y: Array, begin: int = 0) -> Split:
        _check_finite(path, x, begin)
        return self._rows(x, y).head(len(x))  # in memory


def mapped(path: Path | str) -> Array:
    """The array in a `.npy` or raw IDX file, mapped and not read.

    Raises:
        BadFileError: A file that is missing, damaged, of another format, or not of real numbers.
    """
    path = Path(path)
    if path.suffix == ".npz":
        raise idx.BadFileError(str(path), "an archive of arrays", "one array, a .npy or IDX file")
    if path.suffix != ".npy":
        return idx.mapped(path)
    expected = "a .npy file of real numbers"
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = "not in the .npy format" if "pickle" in str(error) else error
        raise idx.BadFileError(str(path), f"a file that cannot be read ({reason})", expected) from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise idx.BadFileError(str(path), f"{getattr(array, 'dtype', type(array).__name__)}", expected)
    return array


def _expect_random_reads(array: Array) -> None:
    """Ask the system not to read ahead: a minibatch is rows from all over the file."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        base.madvise(mmap.MADV_RANDOM)


def _check_targets(path: str, y: Array, spec: Spec) -> None:
    """ValueError for a label that is not a class, or a value that float32 does not hold."""
    if spec.task == "regression":
        _check_finite(path, y)
        exact = (torch.from_numpy(part.astype(np.float64)) for _, part in _blocks(y))
        check_precision(path, exact, torch.float32, "the arrays to from_arrays with dtype=torch.float64")
    elif int(y.min()) < 0:
        raise ValueError(f"{path} holds the label {y.min()} in row {y.argmin()}; labels start at 0")
    elif int(y.max()) >= spec.outputs:
        raise ValueError(f"{path} holds the label {y.max()}; labels run from 0 to {spec.outputs - 1}")


def _check_finite(path: str, array: Array, first: int = 0) -> None:
    """ValueError for a value that is not a finite float32; `first` is the array's first row in the file."""
    for begin, part in _blocks(array) if array.dtype.kind == "f" else ():
        with np.errstate(over="ignore"):
            finite = np.isfinite(part.astype(np.float32, copy=False))
        if not finite.all():
            row, *column = np.argwhere(~finite)[0] + [begin, *[0] * (array.ndim - 1)]
            value = array[(row, *column)]
            kind = "not a finite number" if not np.isfinite(value) else "too large for float32"
            raise ValueError(f"{path} holds {value} in row {first + row}, which is {kind}")


def _blocks(array: Array) -> Iterator[tuple[int, Array]]:
    """One block of rows after another, with the number of its first."""
    rows = max(1, BLOCK * len(array) // max(1, array.nbytes))
    for begin in range(0, len(array), rows):
        yield begin, array[begin : begin + rows]
