"""Training data from a torch `Dataset` or `DataLoader`, read at each batch with its transforms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
    get_worker_info,
)
from torch.utils.data import Dataset as TorchDataset

from pyrobbb._support import text
from pyrobbb._support.random_state import mixed_seed, other_states_kept, seed_every_generator
from pyrobbb.data.arrays import SEVERAL
from pyrobbb.data.dataset import Split, evenly_spaced

OF_WORKERS = ("num_workers", "multiprocessing_context", "worker_init_fn", "timeout", "prefetch_factor")


class TorchRows:
    """The rows of a map-style dataset `i -> (x, y)`, with the interface of a `Split`.

    The training's own shuffle says which rows make a minibatch. What a transform draws from the global
    generator of torch, Python or NumPy depends on seed, epoch and row alone, so that a resumed training sees
    the same images, however many worker processes there are.

    Args:
        source: The dataset, or a `DataLoader` of it; of the loader, dataset, `collate_fn`, `batch_size` and
            `OF_WORKERS`. Each row is visited once an epoch, with `drop_last=True` as well.
        device: Where the rows go as they are read.

    Raises:
        ValueError: A stream, which has no number of rows; a loader with a sampling rule of its own.
    """

    def __init__(
        self, source: TorchDataset[Any] | DataLoader[Any], device: torch.device | str = "cpu"
    ) -> None:
        dataset: Any = source.dataset if isinstance(source, DataLoader) else source
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise ValueError(
                f"{type(dataset).__name__} is a stream without a length: the posterior needs the number of "
                f"rows, N; give a map-style dataset with __len__ and __getitem__"
            )
        if not len(dataset):
            raise ValueError(f"{type(dataset).__name__} has no rows")
        self.source, self.dataset, self.device = source, dataset, torch.device(device)
        self.collate: Callable[[list[Any]], Any] = default_collate
        self.options: dict[str, Any] = {}
        self.batch_size = None
        if isinstance(source, DataLoader):
            _check_plain(source)
            self.options = {name: getattr(source, name) for name in OF_WORKERS}
            self.options["worker_init_fn"] = partial(_start_worker, source.worker_init_fn)
            self.batch_size = getattr(source.batch_sampler, "batch_size", None)
            if source.collate_fn is not default_convert:  # which batch_size=None makes, of rows one by one
                self.collate = source.collate_fn

    def __len__(self) -> int:
        return len(self.dataset)

    def to(self, device: torch.device | str) -> TorchRows:
        """The same rows, put on another device as they are read."""
        return TorchRows(self.source, device)

    def head(self, count: int) -> Split:
        """The first `count` rows."""
        return self.take(torch.arange(min(count, len(self))))

    def take(self, rows: Tensor) -> Split:
        """The rows with these numbers."""
        return next(self.batches([rows], 0))

    def whole(self) -> Split:
        """All rows, in memory."""
        return self.take(torch.arange(len(self)))

    def batches(self, each: Sequence[Tensor], seed: int) -> Iterator[Split]:
        """One minibatch after another; `seed` decides what the transforms draw."""
        keys = [[(int(i), seed) for i in rows] for rows in each if len(rows)]
        loader: DataLoader[Any] = DataLoader(
            _Seeded(self.dataset), batch_sampler=keys, collate_fn=self.collate, **self.options,
            generator=torch.Generator(),  # else it would draw from the training's noise
        )  # fmt: skip
        read = iter(loader)
        for rows in each:
            if not len(rows):  # as some of several processes have of a short minibatch
                row = self.head(1)
                yield Split(row.x[:0], row.y[:0])
                continue
            with other_states_kept():
                batch = _next(read, rows if self.collate is default_collate else None)
            parts = batch if isinstance(batch, list | tuple) else [batch]
            if len(parts) != 2 or not all(isinstance(part, Tensor) for part in parts):
                found = " and ".join(type(part).__name__ for part in (parts if len(parts) == 2 else [batch]))
                if len(parts) == 2 and isinstance(parts[0], list | tuple | Mapping):
                    advice = SEVERAL
                elif len(parts) == 1 and isinstance(parts[0], Tensor):
                    advice = "inputs without targets are given to predict() as a tensor"
                else:
                    advice = (
                        "make them in a collate_fn, several inputs side by side in x; weights of rows go to "
                        "from_arrays(weights=)"
                    )
                raise ValueError(f"the dataset must give pairs (x, y) of tensors, got {found}; {advice}")
            x, y = (part.detach().to(self.device) for part in parts)
            if len(x) != len(rows):
                instead = (
                    "draw one view of a row at a time, in the dataset's __getitem__"
                    if len(x) > len(rows)
                    else "exclude unreadable rows, for example with torch.utils.data.Subset"
                )
                raise ValueError(
                    f"collate_fn made {len(x)} rows of the dataset's {len(rows)}, but each counts once, N "
                    f"times in all: {instead}"
                )
            yield Split(x, y)

    def digest(self) -> str:
        """A digest of up to 64 rows: they tell other data from these."""
        return self.take(evenly_spaced(len(self), 64)).digest()


def _next(batches: Iterator[Any], rows: Tensor | None) -> Any:
    """The next batch; ValueError if torch cannot make one of the dataset's rows, `rows` if they are known."""
    try:
        return next(batches)
    except (TypeError, RuntimeError) as error:
        last = (str(error).splitlines() or [""])[-1]  # a worker process puts its traceback before it
        if "default_collate" in last:
            wrong = (
                "the dataset must give pairs (x, y) of tensors, arrays or numbers, as images are after "
                "torchvision's ToTensor()"
            )
        elif "equal size" in last:
            wrong = "the dataset's rows differ in shape: make them alike, there or in a collate_fn that pads"
            if rows is not None:
                last = re.sub(r"\bentry (\d+)", lambda place: f"row {rows[int(place[1])]}", last)
        else:
            raise
        raise ValueError(f"{wrong}: {text.one_line(last, 200)}") from error


def _check_plain(loader: DataLoader[Any]) -> None:
    """ValueError unless the loader visits each row once, in order or shuffled."""
    batches: Any = loader.batch_sampler  # None where the loader makes no batches
    sampler: Any = loader.sampler if batches is None else getattr(batches, "sampler", None)
    rows: Any = loader.dataset
    own = None
    if type(batches) not in (BatchSampler, type(None)):
        own = type(batches).__name__
    elif type(sampler) not in (RandomSampler, SequentialSampler):
        own = type(sampler).__name__
    elif getattr(sampler, "replacement", False):
        own = "replacement=True"
    elif len(sampler) != len(rows):
        own = f"{type(sampler).__name__}, which gives {len(sampler)} of {len(rows)} rows"
    elif (others := len(sampler.data_source)) != len(rows):
        own = f"{type(sampler).__name__}, which chooses among {others} rows, though there are {len(rows)}"
    if own is not None:
        raise ValueError(
            f"the DataLoader samples its rows with {own}; training visits each row once per epoch, in its "
            f"own order: to count rows more or less often, give arrays with weights= (from_arrays)"
        )


class _Seeded(TorchDataset[Any]):
    """Row `i` of a dataset, with the global generators at a state that seed and row decide."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, key: tuple[int, int]) -> Any:
        i, seed = key
        with torch.random.fork_rng([]):
            seed_every_generator(mixed_seed(seed, i))
            try:
                row = self.dataset[i]
            except Exception as error:
                raise ValueError(
                    f"row {i} of the dataset cannot be read ({type(error).__name__}: "
                    f"{text.one_line(error, 200)}): mend or exclude it, for example with "
                    f"torch.utils.data.Subset"
                ) from error
        if row is None:
            raise ValueError(
                f"the dataset returned None for row {i}: exclude unreadable rows, for example with "
                f"torch.utils.data.Subset"
            )
        return row


def _start_worker(own: Callable[[int], object] | None, number: int) -> None:
    """Show the user's code their own dataset in `get_worker_info()`, then call their `worker_init_fn`."""
    info: Any = get_worker_info()
    object.__setattr__(info, "dataset", info.dataset.dataset)  # torch forbids a plain assignment
    if own is not None:
        own(number)
