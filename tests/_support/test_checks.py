"""Domain checks: what passes comes back, what does not is named with its value."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import law
from pyrobbb._support import checks, text
from pyrobbb.data.dataset import Dataset


@law
@given(st.floats() | st.integers(-(10**300), 10**300))
def test_number_passes_exactly_the_finite(value: float) -> None:
    if math.isfinite(value):
        assert checks.number("here", value) == float(value)
        assert isinstance(checks.number("here", value), float)
    else:
        with pytest.raises(ValueError, match=r"here must be a finite number, got (-?inf|nan)"):
            checks.number("here", value)


def test_text_where_a_number_belongs_is_named_by_its_option() -> None:
    def make(a: str, b: float | str, c: "list[float]", d: float | torch.Tensor, e: int = 1,
             f: int | tuple[int, int] = 1) -> None:  # fmt: skip
        pass

    assert checks.not_a_number(make, {"a": "x", "b": "x", "c": "x", "d": 1.0}) == ""
    assert checks.not_a_number(make, {"a": "x", "d": "fast"}) == "d must be a number, got 'fast'"
    assert checks.not_a_number(make, {"c": [0.1], "f": [1, 2]}) == ""
    assert checks.not_a_number(make, {"c": [0.1], "e": [2], "f": [1, 2]}) == "e must be a number, got [2]"
    assert checks.not_a_number(lambda a="x", e=1: a, {"a": "x", "e": "y"}) == "e must be a number, got 'y'"


@law
@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(-3, 0), st.floats(0, 3))
def test_ranges(value: float, low: float, high: float) -> None:
    for passes, check in (
        (value > 0, lambda: checks.positive("here", value)),
        (low <= value <= high, lambda: checks.between("here", value, low, high)),
    ):
        if passes:
            assert check() == value
        else:
            with pytest.raises(ValueError, match=r"here must .*got"):
                check()


@law
@given(st.integers(-5, 5), st.integers(-2, 2))
def test_counts(value: int, minimum: int) -> None:
    if value >= minimum:
        assert checks.count("here", value, minimum=minimum) == value
    else:
        words = f"here must be a whole number of at least {minimum}, got {value}"
        with pytest.raises(ValueError, match=words):
            checks.count("here", value, minimum=minimum)


@pytest.mark.parametrize("value", ["1", None, True, [1], 1j, "nan"])
def test_other_types_are_no_numbers(value: Any) -> None:
    for check in (checks.number, checks.positive, checks.count):
        with pytest.raises(ValueError, match="here must be"):
            check("here", value)
    with pytest.raises(ValueError, match="here must be"):
        checks.between("here", value, 0, 1)


def test_a_fraction_is_no_count() -> None:
    with pytest.raises(ValueError, match="whole number"):
        checks.count("here", 2.0)


def test_numpy_numbers_are_numbers() -> None:
    assert checks.positive("here", np.float32(0.5)) == 0.5
    assert checks.count("here", np.int64(3)) == 3


def test_a_frozen_dataclass_keeps_what_its_checks_made() -> None:
    @dataclass(frozen=True)
    class Draw:
        seed: int

        def __post_init__(self) -> None:
            checks.keep(self, seed=checks.seed("seed", self.seed))

    assert type(Draw(np.int64(3)).seed) is int  # type: ignore[arg-type]


def test_lists_of_counts() -> None:
    assert checks.counts("here", [3, 4]) == checks.counts("here", (3, 4)) == (3, 4)
    assert checks.counts("here", []) == ()
    for value in (3, "34", None, {3: 4}):
        with pytest.raises(ValueError, match="here must be a list of whole numbers, got"):
            checks.counts("here", value)
    with pytest.raises(ValueError, match=r"here\[1\] must be a whole number of at least 1, got 0"):
        checks.counts("here", [3, 0])


def test_choices() -> None:
    assert checks.one_of("here", "relu", ("relu", "tanh")) == "relu"
    with pytest.raises(ValueError, match="here must be one of relu, tanh, got 'gelu'"):
        checks.one_of("here", "gelu", ("relu", "tanh"))
    with pytest.raises(ValueError, match="got 3"):
        checks.one_of("here", 3, ("relu", "tanh"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NotImplementedError(), "NotImplementedError"),
        (ValueError(" \n"), "ValueError"),
        (RuntimeError("one\ntwo"), "one"),
    ],
)
def test_the_reason_is_the_first_line_or_the_kind(error: Exception, said: str) -> None:
    assert text.reason(error) == said


def test_a_kind_of_the_same_name_is_told_apart() -> None:
    """As torch's data sets are from ours."""
    rows = torch.utils.data.TensorDataset(torch.zeros(1))
    with pytest.raises(ValueError, match=r"data must be a pyrobbb\.data\.dataset\.Dataset, got <torch"):
        checks.check_kinds(data=(rows, Dataset))
    with pytest.raises(ValueError, match="data must be a Dataset or nothing, got 3"):
        checks.check_kinds(data=(3, (Dataset, type(None))))
