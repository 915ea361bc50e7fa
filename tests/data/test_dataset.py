"""Some rows that stand for all."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from pyrobbb.data.dataset import scattered
from pyrobbb.data.torch_data import TorchRows


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


def test_a_process_without_rows_of_a_short_minibatch_reads_none_of_a_torch_data_set() -> None:
    rows = TorchRows(TensorDataset(torch.arange(10.0).reshape(5, 2), torch.arange(5)))
    read = [*rows.batches([torch.tensor([3, 1]), torch.arange(0), torch.tensor([4])], 0)]
    assert [part.y.tolist() for part in read] == [[3, 1], [], [4]]
    assert [part.x.shape for part in read] == [(2, 2), (0, 2), (1, 2)]
