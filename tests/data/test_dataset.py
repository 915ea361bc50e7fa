"""Some rows that stand for all."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from pyrobbb.data.dataset import scattered


@given(st.integers(1, 10**6), st.integers(1, 200))
def test_each_block_of_neighbours_gives_one_row(length: int, most: int) -> None:
    rows, step = scattered(length, most), -(-length // most)
    assert len(rows) == -(-length // step) <= most
    assert torch.equal(rows // step, torch.arange(len(rows)))
    assert 0 <= int(rows[0]) <= int(rows[-1]) < length
    assert torch.equal(rows, scattered(length, most))


def test_rows_that_come_in_turns_are_all_seen() -> None:
    """Of 1000 fair coins fewer than 400 or more than 600 are beyond six standard deviations."""
    assert 400 < int((scattered(2000, 1000) % 2).sum()) < 600
