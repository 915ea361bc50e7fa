"""Some rows that stand for all."""

from multiprocessing.context import ForkContext, ForkProcess
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset, get_worker_info

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


class Moved(TensorDataset):
    by = 0.0

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return x + self.by, y


def move(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.by = 10.0


def test_worker_processes_start_as_the_loader_says() -> None:
    started = []

    class Context(ForkContext):
        def Process(self, **options: Any) -> ForkProcess:  # noqa: N802
            started.append(options)
            return ForkProcess(**options)

    x, y = torch.arange(10.0).reshape(5, 2), torch.arange(5)
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": Context()}
    loader = DataLoader(Moved(x, y), batch_size=2, worker_init_fn=move, **options)
    assert torch.equal(TorchRows(loader).whole().x, x + 10)
    assert len(started) == 1
