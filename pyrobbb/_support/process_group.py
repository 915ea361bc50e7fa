"""The processes that train one posterior together, which `torchrun` starts."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from time import sleep
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from pyrobbb._support.random_state import isolated, random_state

DONE = "the first process is done"  # a key of the store
LET_GO = 0.2  # seconds
TIMEOUT = timedelta(minutes=30)  # how long one process may validate, save or load while the others wait
T = TypeVar("T")
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class LostProcessError(RuntimeError):
    """Another of the processes ended, or did not respond in time."""


class ProcessGroup:
    """The processes that train one posterior; this one is number `rank` of `size`.

    Every method but `shard` and `speaks` must be called by all of them, in the same order. With one
    process there is nothing to agree on, and torch.distributed is not touched.
    """

    def __init__(self, rank: int = 0, size: int = 1, store: Any = None) -> None:
        self.rank, self.size, self.store = rank, size, store
        self.speaker: bool | None = None

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and logs."""
        return self.rank == 0

    def shard(self, rows: Tensor) -> Tensor:
        """This process's part of `rows`: every size-th, so that parts differ by one row at most."""
        return rows[self.rank :: self.size]

    def speaks(self) -> bool:
        """Whether to report an error: only the process that asks first does, each time it asks."""
        if self.speaker is None:
            try:
                self.speaker = self.store is None or self.store.add("spoken", 1) == 1
            except RuntimeError:  # the process that keeps the store is gone
                self.speaker = True
        return self.speaker

    def sum_(self, values: Tensor) -> None:
        """Replace `values` by their sum over the processes."""
        if self.size > 1:
            with _others():
                dist.all_reduce(values)

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is set in any process."""
        if self.size == 1:
            return list(flags)
        votes = torch.tensor(flags, dtype=torch.int32)
        with _others():
            dist.all_reduce(votes, op=dist.ReduceOp.MAX)
        return [bool(vote) for vote in votes]

    def broadcast_(self, values: Tensor) -> None:
        """Replace `values` by those of the first process."""
        if self.size > 1:
            with _others():
                dist.broadcast(values, 0)

    def from_main(self, value: Any) -> Any:
        """What the first process passes as `value`, tensors on the CPU included."""
        if self.size == 1:
            return value
        held = [value]
        with _others():
            dist.broadcast_object_list(held, 0)
        return held[0]

    def after_main(self, work: Callable[[], T]) -> T:
        """`work()`, in the first process before the others, so that what it downloads is there for them."""
        if self.is_main:
            done = work()
            self.from_main(None)
            return done
        self.from_main(None)
        return work()

    def gather(self, value: Any) -> list[Any]:
        """Every process's `value`, in the order of their numbers."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with _others():
            dist.all_gather_object(values, value)
        return values


SINGLE = ProcessGroup()


@contextmanager
def _others() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise LostProcessError(f"another process of this run ended or hangs ({lines[-1][:200]})") from error


@contextmanager
def joined(device: torch.device) -> Iterator[ProcessGroup]:
    """The processes that `torchrun` started, using gloo on CPUs, NCCL on GPUs; else this one alone.

    On GPUs, process r of a machine works on its GPU number r.

    Raises:
        ValueError: If there are fewer GPUs than processes, or a specific GPU is requested.
    """
    if not set(TORCHRUN) <= os.environ.keys() or int(os.environ["WORLD_SIZE"]) == 1:
        yield SINGLE
        return
    backend = "gloo"
    if device.type == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        local = int(os.environ["LOCAL_RANK"])
        if device.index is not None or local >= torch.cuda.device_count():
            raise ValueError(
                f"each process needs a GPU of its own: use device=cuda, not {device}, and start as many "
                f"processes as this machine has GPUs ({torch.cuda.device_count()}), or use device=cpu"
            )
        torch.cuda.set_device(local)
    store, rank, size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    if rank > 0:
        logging.getLogger("pyrobbb").setLevel(logging.ERROR)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    ranks = ProcessGroup(rank, size, store)
    try:
        yield ranks
    except BaseException as error:
        if not isinstance(error, LostProcessError):
            ranks.speaks()  # before the others notice that this one is gone: it knows the reason
        if ranks.is_main:
            store.set(DONE, "")
        if backend == "gloo":  # NCCL would wait for the others, who may be gone
            dist.destroy_process_group()
        raise
    _leave(ranks)


def _leave(ranks: ProcessGroup) -> None:
    """Leave the group when the first process has done what it alone does.

    gloo's threads need the interpreter to let go of the last tensors. One that still waits for another
    process or for the interpreter when this one ends would abort it, and torchrun then ends the others.
    """
    if ranks.is_main:
        ranks.store.set(DONE, "")
    else:
        with suppress(RuntimeError):  # it is gone, and has said why; or it still works, and needs nobody
            ranks.store.wait([DONE], TIMEOUT)
    sleep(LET_GO)
    dist.destroy_process_group()


def noise_of(ranks: ProcessGroup, device: torch.device, seed: int, steps: int) -> dict[str, Tensor]:
    """The random state of a stream for this process alone, beginning after `steps` steps."""
    key = np.random.SeedSequence((seed, ranks.size, ranks.rank, steps)).generate_state(1, np.uint64)
    with isolated(int(key[0] >> 1), device=device):
        return random_state(device)
