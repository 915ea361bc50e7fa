"""Columns by name from whatever holds a table: arrays, a mapping, a DataFrame, a CSV or a Parquet file.

pandas is asked only for what is its own: a DataFrame that came in, or a Parquet file.
"""

import csv
import gzip
import logging
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pyrobbb._support import checks

Column = npt.NDArray[Any]  # float64, NaN where missing; or objects: text, None where missing
Frame = dict[str, Column]

NUMBERS_OR_TEXT = (
    "a column is numbers or text (turn dates into numbers, such as days, or into text for categories, or "
    "leave them out)"
)
PLAIN = str | bool | int | float | np.number  # what a column holds as it is
UNNAMED = ((), ("y",), ("y0",))  # targets without a name of their own
CODE = re.compile(r"0\d.*")  # such as 01067; numbers do not begin so
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})

logger = logging.getLogger(__name__)


def as_frame(
    name: str,
    source: Any,
    texts: Mapping[str, Collection[str | None]] | None = None,
    used: Callable[[str], bool] = lambda column: True,
    *,
    blank_end: bool = True,
) -> Frame:
    """The columns of `source`, each float64 or text, all of one length.

    Args:
        name: What messages call it.
        source: A path to `.csv`, `.csv.gz` or `.parquet`; a DataFrame; a mapping of names to columns; or an
            array or tensor `(N, columns)`, whose columns are called "0", "1", ...
        texts: Columns that a file must not turn into numbers, as "007" and "7" would be one; each with the
            categories that it is known to have, of which none stands for a missing value.
        used: Whether a column is; others may hold what they like, such as dates, and come as missing values.
        blank_end: Whether blank rows at the end of a file count, as for predictions; where there must be a
            target they are what spreadsheets leave.

    Raises:
        ValueError: It is none of these, its columns differ in length, or a name occurs twice.
    """
    source = opened(name, source)
    refuse_unread(name, source)
    columns: Iterable[tuple[Any, Any]]
    if isinstance(source, Path):
        columns = _read_csv(source, blank_end)
    elif isinstance(source, Mapping) or is_table(source):
        check_same_rows({name: source})
        columns = source.items()
    else:
        columns = _columns_of_array(name, source)
    frame: Frame = {}
    for key, values in by_name(name, columns).items():
        if not used(key) and hasattr(values, "__len__"):
            values = [None] * len(values)
        elif isinstance(source, Path):
            values = _parsed(key, values, (texts or {}).get(key))
        frame[key] = as_column(f"{name}: column {key!r}", values)
    lengths = {key: len(column) for key, column in frame.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{name} has columns of different lengths: {lengths}")
    if not frame or not next(iter(lengths.values())):
        raise ValueError(f"{name} is empty")
    return frame


def by_name(name: str, columns: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """The columns by their names, which are text; ValueError if two have one name."""
    found: dict[str, Any] = {}
    for key, values in columns:
        if str(key) in found:
            raise ValueError(f"{name} has two columns called {str(key)!r}")
        found[str(key)] = values
    return found


def opened(name: str, source: Any) -> Any:
    """The DataFrame in a Parquet file; a CSV file as a path; any other source as it is."""
    if not isinstance(source, str | os.PathLike):
        return source
    path = Path(source).expanduser()
    if path.is_dir():
        raise ValueError(f"{name}: {path} is a folder; name the .csv, .csv.gz or .parquet file in it")
    if not path.is_file():
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise ValueError(f"{name}: there is no file {path}{where}")
    kind = path.name.removesuffix(".gz").rpartition(".")[2].lower()
    if kind == "csv":
        return path
    if kind not in ("parquet", "pq"):
        raise ValueError(f"{name}: {path.name} must end in .csv, .csv.gz or .parquet")
    try:
        return import_module("pandas").read_parquet(path)
    except ImportError as error:
        raise ValueError(f"{path.name} needs pandas and pyarrow: pip install pandas pyarrow") from error


def categories(source: Any) -> tuple[str, ...]:
    """The columns that pandas says are categories, which may be numbers."""
    columns = source.items() if isinstance(source, Mapping) or is_table(source) else ()
    return tuple(str(key) for key, values in columns if str(getattr(values, "dtype", None)) == "category")


def is_table(source: Any) -> bool:
    """Whether it is a DataFrame of pandas', which is not imported to ask."""
    return hasattr(source, "columns") and hasattr(source, "iloc")


def refuse_tensor(name: str, source: Any) -> None:
    """ValueError for a tensor: predictions take one for inputs, not for rows as they stand in the table."""
    if isinstance(source, Tensor):
        raise ValueError(
            f"{name} is a tensor, and a tensor passed to predict() is taken as standardised already: pass an "
            f"array (its numpy()) in both places; or use from_arrays, which does not standardise x"
        )


def refuse_unread(name: str, source: Any) -> None:
    """ValueError for a table of another library's, such as polars', which numpy reads without its names."""
    if hasattr(source, "columns") and not is_table(source):
        kind = f"{type(source).__module__.partition('.')[0]}.{type(source).__name__}"
        raise ValueError(f"{name} is a {kind}; pass a pandas DataFrame, from its to_pandas()")


def refuse_masked(name: str, values: Any) -> None:
    """ValueError for an array with masked values: most of numpy's functions read what lies beneath."""
    if np.ma.is_masked(values):
        raise ValueError(f"{name} holds masked values; fill them, or leave their rows out")


def by_target(name: str, y: Any, targets: Sequence[str]) -> Any:
    """A table of targets, a DataFrame or a mapping, its columns in the order of `targets`; else `y` as it is.

    Raises:
        ValueError: It has other columns, some of another length, or masked values.
    """
    if not is_table(y) and not isinstance(y, Mapping):
        return y
    found = [str(column) for column in y]
    targets = found if tuple(targets) in UNNAMED else targets
    if sorted(found) != sorted(targets):
        raise ValueError(f"{name} has the columns {', '.join(found)}; the targets are {', '.join(targets)}")
    order = [found.index(target) for target in targets]
    if is_table(y):
        return y.iloc[:, order]
    columns = list(y.values())
    for target, column in zip(found, columns, strict=True):
        refuse_masked(f"{name}: column {target!r}", column)
    lengths = {target: len(column) for target, column in zip(found, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{name} has columns of different lengths: {lengths}")
    return np.column_stack([columns[i] for i in order])


def check_same_rows(parts: Mapping[str, Any]) -> None:
    """ValueError if pandas says that parts of one table have other rows, or the same in another order."""
    labelled = _row_labels(parts)
    for first, name in pairwise(labelled):
        if not labelled[first].equals(labelled[name]):
            raise ValueError(
                f"{first} and {name} have different row labels (their index): bring them into one order, "
                f"such as {name}.loc[{first}.index], or pass {name}.to_numpy() if the rows agree as they "
                f"stand"
            )


def _row_labels(parts: Mapping[str, Any]) -> dict[str, Any]:
    """What pandas calls the rows of each part, or of each column of a mapping, that knows it."""
    columns: dict[str, Any] = {}
    for name, part in parts.items():
        held = isinstance(part, Mapping)
        columns |= {f"{name}[{key!r}]": values for key, values in part.items()} if held else {name: part}
    indices = {name: getattr(values, "index", None) for name, values in columns.items()}
    # pandas' own index: a list has a method of that name
    return {name: index for name, index in indices.items() if hasattr(index, "equals")}


def check_positions(table: Any, **parts: Any) -> None:
    """ValueError if a part is given by labels of pandas, and those of the table are not its rows' numbers.

    Or by a mask, of which the labels are others than the table's.
    """
    labels: Any = next(iter(_row_labels({"the table": table}).values()), None)
    for part, given in parts.items():
        if str(getattr(given, "dtype", "")) in ("bool", "boolean"):
            check_same_rows({"the table": table, part: given})
        by_label = type(given).__name__.endswith("Index") and labels is not None
        if by_label and [*labels] != [*range(len(labels))]:
            raise ValueError(
                f"{part} is an index, but the table's own labels are not its rows' numbers: pass those, "
                f"such as np.flatnonzero(table.index.isin({part}))"
            )


def as_column(name: str, values: Any) -> Column:
    """One column: float64 if all that is there is a number, else text; booleans count as text."""
    refuse_unread(name, values)
    if isinstance(values, Tensor):
        values = as_array(name, values)
    if is_table(values):  # whose own values would be the names of its columns
        if values.shape[1] != 1:
            raise ValueError(f"{name} must be one column, got a DataFrame of {values.shape[1]}")
        values = values.iloc[:, 0]
    if hasattr(values, "isna"):  # a pandas Series, whose missing values have several forms
        if isinstance(values.dtype, np.dtype) and values.dtype.kind in "biuf":
            values = values.to_numpy()
        else:
            named = str(values.dtype) == "category"  # also intervals and dates
            cells = [str(v) if named and not isinstance(v, PLAIN) else v for v in values]
            values = [None if lacking else v for v, lacking in zip(cells, values.isna(), strict=True)]
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind not in "mM":  # of dates it gives numbers
        values = values.tolist()  # with None where masked
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise ValueError(f"{name} must be a list of values, one for each row, got {values!r}")
    array = values if isinstance(values, np.ndarray) else np.array(list(values), dtype=object)
    if array.shape[1:] == (1,):  # a column, as a DataFrame of one is
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{name} must have one dimension, got shape {array.shape}")
    if array.dtype.kind in "iuf":
        column = array.astype(np.float64, copy=False)  # nothing writes into a column
    elif array.dtype.kind in "bOUS":
        column = _from_objects(name, array.astype(object))
    else:
        raise ValueError(f"{name} holds {array.dtype}; {NUMBERS_OR_TEXT}")
    if column.dtype.kind == "f" and np.isinf(column).any():
        row = np.isinf(column).argmax()
        raise ValueError(f"{name} holds {column[row]} in row {row}, counted from 0")
    return column


def as_zeros_and_ones(column: Column) -> Column:
    """A column of booleans, which count as text, as numbers; any other as it is."""
    if column.dtype.kind == "f" or not {*column} <= {"False", "True", None}:
        return column
    return np.where(is_missing(column), np.nan, (column == "True").astype(np.float64))


def as_array(name: str, values: Tensor) -> npt.NDArray[Any]:
    """The tensor's values; in double precision if they are fractions, as numpy lacks bfloat16."""
    values = checks.dense(name, values).detach().cpu()
    return (values.double() if values.is_floating_point() else values).numpy()


def _from_objects(name: str, values: Column) -> Column:
    present = [value for value in values if not _is_missing(value)]
    kinds = {bool if isinstance(v, bool | np.bool_) else type(v) for v in present}
    if all(issubclass(kind, int | float | np.number) and kind is not bool for kind in kinds):
        try:
            return np.array([np.nan if _is_missing(v) else float(v) for v in values])
        except OverflowError as error:
            raise ValueError(f"{name} holds a whole number that is too large: {error}") from error
    odd = next((kind for kind in kinds if not issubclass(kind, PLAIN)), None)
    if odd is not None:
        raise ValueError(f"{name} holds values of type {odd.__name__}; {NUMBERS_OR_TEXT}")
    return np.array([None if _is_missing(v) else _written(v) for v in values], dtype=object)


def _written(value: Any) -> str:
    """As a file's cell has it: without blanks around, and 1.0 as the 1 that it equals."""
    return printed(float(str(value))) if isinstance(value, float | np.floating) else str(value).strip()


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ == "NAType":  # pandas' NA, met without pandas
        return True
    if isinstance(value, str):  # as an empty cell of a file
        return not value.strip()
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def is_missing(column: Column) -> npt.NDArray[np.bool_]:
    """Where a column has no value."""
    if column.dtype.kind == "f":
        return np.isnan(column)
    return np.array([value is None for value in column], dtype=bool)


def rows_of(frame: Frame) -> int:
    """How many rows the columns have."""
    return len(next(iter(frame.values())))


def by_place(frame: Frame) -> int:
    """How many columns are called "0", "1", ..., as those of an array; 0 if a number is left out."""
    places = {name for name in frame if name.isdecimal()}
    return len(places) if places == {*map(str, range(len(places)))} else 0


def take(frame: Frame, rows: npt.NDArray[Any]) -> Frame:
    """The rows with these numbers, or those for which a mask is true; the frame itself if it is for all."""
    if rows.dtype == bool and rows.all():
        return frame
    return {name: column[rows] for name, column in frame.items()}


def _columns_of_array(name: str, source: Any) -> Iterable[tuple[str, Any]]:
    array: Any = as_array(name, source) if isinstance(source, Tensor) else source
    if not isinstance(array, np.ndarray):
        try:
            array = np.asarray(array)
        except ValueError as error:  # rows of different lengths
            raise ValueError(f"{name} is not a table: {error}") from error
        if array.dtype.kind in "US":  # numbers beside text stay numbers
            array = np.asarray(source, dtype=object)
    if array.ndim != 2:
        raise ValueError(
            f"{name} must be a file, a DataFrame, a mapping of columns or an array (N, columns), "
            f"got an array of shape {array.shape}"
        )
    return [(str(i), array[:, i]) for i in range(array.shape[1])]


def _read_csv(path: Path, blank_end: bool) -> list[tuple[str, Sequence[str]]]:
    """The columns of a comma-separated file, each as its cells.

    A first line of numbers and missing values is a row and not a head; the columns are then called "0", "1",
    ..., which is logged.
    """
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
        read: list[str] = []  # the lines of the file that make one row
        reader = csv.reader(_noted(file, read))
        lines: list[tuple[int, tuple[str, ...]]] = []
        first = 1
        try:
            for row in reader:
                if row:  # a tuple of text, unlike a list, costs the garbage collector one look
                    lines.append((first, tuple(map(str.strip, row))))
                if len(read) > 1:
                    _check_quotes(read)
                first = reader.line_num + 1
                read.clear()
        except csv.Error as error:
            raise ValueError(
                f"{path}: the row from line {first} on: {error}; is a quote open, or not doubled in a quoted "
                f"value?"
            ) from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text; save it as UTF-8, or pass a DataFrame") from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{path} is not a whole gzip file ({error}); compress or copy it anew"
            ) from error
    while not blank_end and lines and len(lines[-1][1]) > 1 and not any(lines[-1][1]):
        lines.pop()
    if not lines:
        raise ValueError(f"{path} is empty")
    head, *rows = (line for _, line in lines)
    if len(head) == 1 and any(mark in head[0] for mark in ";\t|"):
        raise ValueError(f"{path} is not separated by commas; pass pandas.read_csv({path.name!r}, sep=...)")
    for number, line in lines:
        if len(line) != len(head):
            raise ValueError(f"{path}: line {number} has {len(line)} values, the first has {len(head)}")
    values = [cell for cell in head if cell.lower() not in MISSING]
    if values and all(as_number(cell) is not None for cell in values):
        rows, head = [head, *rows], tuple(map(str, range(len(head))))
        logger.warning(
            "%s: the first line holds only numbers, so it is read as a row, and the columns are named '0' to "
            "'%d'",
            path.name, len(head) - 1,
        )  # fmt: skip
    columns = zip(*rows, strict=True) if rows else ((),) * len(head)
    return [*zip(head, columns, strict=True)]


def _noted(lines: Iterable[str], read: list[str]) -> Iterator[str]:
    for line in lines:
        read.append(line)
        yield line


def _check_quotes(row: Iterable[str]) -> None:
    """csv.Error if stray quotes made one row of several lines; blanks may follow a quote that closes."""
    for _ in csv.reader((re.sub(r'"\s+(?=,|$)', '"', line) for line in row), strict=True):
        pass


def _parsed(key: str, cells: Iterable[str], known: Collection[str | None] | None) -> Column:
    """Numbers if all are, unless categories are `known`, which may be none as yet.

    Numbers that are written as codes cause a warning.
    """
    kept = known or ()
    values = [None if cell.lower() in MISSING and cell not in kept else cell for cell in cells]
    if known is None:
        with suppress(ValueError):
            numbers = np.array([np.nan if value is None else _number(value) for value in values])
            code = next((value for value in values if value is not None and CODE.fullmatch(value)), None)
            if code is not None:
                logger.warning(
                    "column %r is read as numbers, so %r is %.15g; if these are codes, say categorical=[%r] "
                    "of the training rows",
                    key, code, _number(code), key,
                )  # fmt: skip
            return numbers
    return np.array(values, dtype=object)


def as_number(cell: str) -> float | None:
    """The number that a text is, if it is one."""
    try:
        return _number(cell)
    except ValueError:
        return None


def _number(cell: str) -> float:
    return float(cell.replace("_", "x"))  # 1_0 is a code, though Python reads it as 10


def printed(value: float) -> str:
    """A number as text: whole ones without a point."""
    value += 0.0  # makes -0 the 0 that it equals, as rounding leaves it
    text = f"{value:.15g}"  # 15 digits tell all fractions apart that a person would
    return f"{value:.0f}" if value.is_integer() and float(text) != value else text
