"""Which rows are for training, for validation and for the test."""

import os
from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pyrobbb._support import checks
from pyrobbb.data.frames import Frame, as_frame, is_table, rows_of, take

Rows = npt.NDArray[np.int64]


def split_rows(
    frame: Frame,
    given: Mapping[str, Any],
    seed: int,
    texts: Mapping[str, Collection[str]] | None = None,
) -> dict[str, Frame]:
    """The rows of each part that has any: `train`, and those that are `given`.

    Args:
        frame: All rows, of the columns that are used.
        given: A share of all rows, a list of row numbers, a mask of booleans or a table, by part.
        seed: Of the draw of shares.
        texts: Columns that are text in every part, as in `as_frame`.

    Raises:
        ValueError: A part is in none of these forms, or as for `numbered` and `as_frame`.
    """
    parts = {part: take(frame, own) for part, own in numbered(given, rows_of(frame), seed).items()}
    for part, asked in given.items():
        if not of_the_rows(asked):
            pair = isinstance(asked, tuple | list) and len(asked) == 2
            if pair and (is_table(asked[0]) or getattr(asked[0], "ndim", 0) == 2):
                raise ValueError(
                    f"{part} is a pair (x, y), which goes with from_table(x, y): here it must be one table, "
                    f"with the target as a column"
                )
            if not isinstance(asked, Sequence | Mapping | os.PathLike) and np.ndim(asked) == 0:
                raise ValueError(
                    f"{part} must be a share of the rows, a list of row numbers, a table or, with "
                    f"from_table(x, y), a pair (x, y), got {type(asked).__name__}"
                )
            parts[part] = as_frame(part, asked, texts, frame.__contains__, blank_end=False)
    return parts


def numbered(given: Mapping[str, Any], N: int, seed: int) -> dict[str, Rows]:
    """The numbers of the rows of each part that has any, ascending: `train`, and those that are `given`.

    Args:
        given: A share of all rows or a list of row numbers, by part; shares draw from the rows that no list
            names, the first of them first. Parts with rows of their own are left out.
        N: The number of rows.
        seed: Of the draw of shares.

    Raises:
        ValueError: A share or a list is none, two have a row in common, or no row is left for training.
    """
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed)).numpy()
    held = np.zeros(N, dtype=bool)
    parts: dict[str, Rows] = {}
    for part, asked in sorted(given.items(), key=lambda each: is_share(each[1])):  # shares draw from the rest
        if not of_the_rows(asked):
            continue
        if is_share(asked):
            rows = order[~held[order]][: round(checks.share(part, asked, zero=True) * N)]
            if asked and not len(rows):
                raise ValueError(f"{part}={asked:g} of {N} rows is less than one row; take a larger share")
        else:
            rows = _row_numbers(part, asked, N)
        if held[rows].any():
            raise ValueError(f"row {rows[held[rows].argmax()]} is in both test and validation")
        held[rows] = True
        if len(rows):
            parts[part] = np.sort(rows)
    if held.all():
        raise ValueError(f"validation and test take all {N} rows and leave none for training")
    return {"train": np.flatnonzero(~held), **parts}


def of_the_rows(given: Any) -> bool:
    """Whether a part is asked for as a share of the rows, or by row numbers in whatever holds them."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        return not any(np.ndim(each) for each in given)
    return is_share(given) or getattr(given, "ndim", 0) == 1


def is_share(given: Any) -> bool:
    """Whether a part is asked for as a share of the rows."""
    return isinstance(given, Real) and not isinstance(given, bool)


def _row_numbers(part: str, given: Any, N: int) -> Rows:
    rows = np.asarray(given)
    if rows.dtype == bool and rows.shape == (N,):
        rows = np.flatnonzero(rows)
    if rows.size == 0:
        return np.zeros(0, dtype=np.int64)
    if rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= N:
        raise ValueError(
            f"{part} must hold whole numbers from 0 to {N - 1}, the rows of the table, or {N} booleans"
        )
    if len(np.unique(rows)) < len(rows):
        mask = rows.shape == (N,) and rows.max() == 1
        why = "is a mask of numbers: make them booleans, .astype(bool)" if mask else "names a row twice"
        raise ValueError(f"{part} {why}")
    return rows.astype(np.int64)
