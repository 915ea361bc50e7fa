"""A small table, and one of codes, as `from_table` reads them."""

from typing import Any

import numpy as np

from pyrobbb.data import from_table

SIZE = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
TABLE = {
    "size": SIZE,
    "rooms": [1, None, 3, 3, 5, 9],
    "town": ["Ulm", "Bonn", None, "Ulm", "Ulm", "Hof"],
    "price": [1.5, 2.5, 3.5, 4.5, 5.5, 6.5],
}
TEST_ROWS = [4, 5]


def load(table: Any = TABLE, **options: Any) -> Any:
    return from_table(table, **{"target": "price", "test": TEST_ROWS, **options})


CODES = ["007", "7", "012", "AB1"]


def codes(target: Any = None, **options: Any) -> Any:
    table = {"code": CODES * 3, "y": np.arange(12.0) ** 2}
    return from_table(table if target is None else target, target="y", task="regression", **options)
