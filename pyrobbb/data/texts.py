"""Numbers as the texts they print as, and columns of text that look like numbers."""

import logging
import re

import numpy as np

from pyrobbb.data.frames import CODE, Column, as_number, printed

MOST = 10  # distinct texts that a column may have whatever the number of rows
MOST_DRESSED = 20  # distinct numbers and dates as text, `1,034 EUR`, that are categories without a word
NUMBER_AND_MORE = re.compile(
    r"[$€£¥]?\s*[-+]?(\d+|\d{1,3}([,.']\d{3})+)([.,]\d+)?\s*([%°$€£¥]|\s[A-Za-z]{1,5})?"
)
DATE = re.compile(r"\d{4}-\d\d?-\d\d?([ T].*)?|\d\d?[./]\d\d?[./]\d{2,4}([ T].*)?")

logger = logging.getLogger(__name__)


def as_text(name: str, column: Column) -> Column:
    """The same column as text: whole numbers without a point.

    Raises:
        ValueError: A number so large that float64 may have rounded it to its neighbour.
    """
    if column.dtype.kind != "f":
        return column
    large = np.abs(column) >= 2**53
    if large.any():
        raise ValueError(
            f"column {name!r} holds {column[large][0]:.17g}, too large for a number to be kept "
            f"exactly as a category: pass the column as text, such as str(value)"
        )
    return np.array([None if np.isnan(v) else printed(v) for v in column.tolist()], dtype=object)


def print_of(text: str) -> str | None:
    """How the number that a text is prints, if it is one."""
    value = as_number(text)
    return None if value is None or not np.isfinite(value) else printed(value)


def holds_number(text: str) -> bool:
    """Whether a text is a number, plain or dressed as `1,034 EUR` is."""
    return as_number(text) is not None or NUMBER_AND_MORE.fullmatch(text.strip()) is not None


def check_slips(name: str, column: Column, *, target: bool) -> None:
    """Say so if a column of text holds numbers, mostly or all: each becomes a category.

    Raises:
        ValueError: They are too many for categories.
    """
    present = [] if column.dtype.kind == "f" else [value for value in column if value is not None]
    distinct = {*present}
    others = [value for value in present if as_number(value) is None]
    dates = {value for value in others if DATE.fullmatch(value.strip())}
    dressed = {*filter(holds_number, others)}
    numbers = dressed | (distinct - {*others})  # also 950 beside 1,050
    alike = all(map(str.isdigit, present)) and len({*map(len, present)}) == 1  # as postal codes are
    plain = not others and not alike and not any(map(CODE.fullmatch, present))
    most = max(MOST_DRESSED, 0.9 * len(distinct))
    why, kept = "its values are text", f", otherwise pass categorical=[{name!r}]"
    if len(dates) > most and not target:
        advice = (
            "dates say more as numbers, such as days since the first: convert them, or leave the column out"
        )
    elif (dressed or plain) and len(numbers) > most and not target:
        how = "write them plainly, 1034.5" if dressed else "make them numbers, as pandas.to_numeric does"
        advice = f"if they are numbers, {how}{kept}"
    elif 0 < 2 * len(others) < len(present):
        why = f"{len(others)} of its {len(present)} values cannot be read as numbers"
        if len(distinct) > max(MOST, len(column) // 2):
            what = f"{why}, such as {first_text(column)}"
            raise ValueError(f"column {name!r} is numeric, but {what}: correct them or leave them empty")
        advice = f"if they are slips, correct them or leave them empty{kept}"
    else:
        return
    if not target:
        such = first_text(column)
        logger.warning(
            "column %r is treated as categorical because %s, such as %s; %s", name, why, such, advice
        )


def first_text(column: Column) -> str:
    """The first value of a column of text that is not a number, if there is one, and its row."""
    texts = [(row, value) for row, value in enumerate(column) if value is not None]
    row, value = next(((row, value) for row, value in texts if as_number(value) is None), texts[0])
    return f"{value!r} in row {row}, counted from 0"
