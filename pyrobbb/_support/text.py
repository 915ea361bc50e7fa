"""Values and errors as the words of a message; no torch, as the ArviZ reader works without it."""

from typing import Any


def short(value: Any) -> str:
    """The `repr` of `value` on one line, truncated."""
    return one_line(repr(value), 80)


def reason(error: BaseException, length: int = 200) -> str:
    """The first line of an error's message, or its kind if it has none."""
    lines = str(error).strip().splitlines()
    return lines[0][:length] if lines else type(error).__name__


def kind_and_reason(error: BaseException) -> str:
    """`RuntimeError: shapes differ`, the kind of an error and the first line of its message, if any."""
    return f"{type(error).__name__}: {reason(error)}" if str(error).strip() else type(error).__name__


def one_line(text: object, length: int | None = None) -> str:
    """`str(text)` on one line, at most so long."""
    return " ".join(str(text).split())[:length]
