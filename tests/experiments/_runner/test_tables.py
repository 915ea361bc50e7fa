"""Printed tables."""

from experiments._runner.tables import table


def test_table_aligns():
    assert table(("a", "bb"), [("xyz", 1)]) == "a    bb\nxyz   1"
