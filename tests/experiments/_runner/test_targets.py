"""What a target's line says."""

import math

import pytest

from experiments._runner.targets import verdict


@pytest.mark.parametrize(
    ("value", "bounds", "line"),
    [
        (0.015, {"high": 0.04}, "x: 0.015, at most 0.04: holds"),
        (0.05, {"high": 0.04}, "x: 0.05, at most 0.04: missed"),
        (2.5, {"low": 2.5}, "x: 2.5, at least 2.5: holds"),
        (2.7, {"low": 1.9, "high": 2.6}, "x: 2.7, 1.9 to 2.6: missed"),
        (math.nan, {"high": 1.0}, "x: nan, at most 1: missed"),
    ],
)
def test_a_verdict_says_what_was_asked(value, bounds, line):
    assert verdict("x", value, **bounds) == line
