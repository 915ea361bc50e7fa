"""Tables, and numbers over seeds."""

import pytest

from experiments._runner.tables import estimate, interval, markdown, mean_sd, seeds, table, verdict


def test_table_aligns():
    assert table(("a", "bb"), [("xyz", 1)]) == "a    bb\nxyz   1"


def test_a_bar_within_a_cell_is_no_border():
    assert markdown(["a"], [["P(D|w)"]]) == "| a |\n| --- |\n| P(D\\|w) |"


def test_a_spread_is_of_several_values():
    assert [mean_sd(values, 1) for values in ([], [1.0], [1.0, 3.0])] == ["-", "1.0", "2.0 ± 1.4"]


def test_intervals_are_students():
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))
    assert estimate([1.0, 2.0, 3.0], 1) == "2.0 (-0.5 to 4.5)"
    assert estimate([0.1, 0.2, 0.3], 0) == "0 (0 to 0)"  # not -0
    assert estimate([1.25], 2, sign=True) == "+1.25"
    assert verdict([1.0, 1.1, 0.9]) == "holds"
    assert verdict([-1.0, -1.1, -0.9]) == "does not hold"
    assert verdict([1.0, -1.0, 0.5]) == "undecided"
    assert verdict([1.0]) == seeds(1) == "one seed"
