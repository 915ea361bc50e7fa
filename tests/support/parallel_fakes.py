"""Two real processes for tests, and components that make one of them fail."""

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import seeds
from commands import forks
from pyrobbb._support.process_group import ProcessGroup
from pyrobbb.kl_weights import KLWeight
from pyrobbb.training import joined

Work = Callable[[ProcessGroup, Path], Any]


def on_processes(size: int, work: Work, folder: Path) -> list[Any]:
    """What `work(ranks, folder)` returns, or the exception it raises, in each of `size` processes."""
    processes = [
        forks().Process(target=_run, args=(environment, seeds.SHIFT, work, folder), daemon=True)
        for environment in environments(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    files = [folder / f"returned-{rank}" for rank in range(size)]
    returned = [torch.load(f, weights_only=False) if f.exists() else None for f in files]
    for file in files:
        file.unlink(missing_ok=True)
    return returned


def environments(size: int) -> list[dict[str, str]]:
    """What `torchrun` tells each of `size` processes of one machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    whole = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **whole} for rank in range(size)]


def _run(environment: dict[str, str], shift: int, work: Work, folder: Path) -> None:
    torch.set_num_threads(1)
    seeds.SHIFT = shift
    seeds.shift()
    os.environ |= environment
    returned: Any
    try:
        with joined(torch.device("cpu")) as ranks:
            returned = work(ranks, folder)
    except (Exception, KeyboardInterrupt) as error:
        returned = f"{type(error).__name__}: {error}"
    torch.save(returned, folder / f"returned-{environment['RANK']}")
    os._exit(0)


class Kills(KLWeight):
    """pi_i = 1/M; process number 1 is sent SIGKILL before minibatch `i` of `epoch`.

    It says that it is `Uniform`, which it is: its checkpoints may be gone on with under that.
    """

    def __init__(self, *, epoch: int, i: int) -> None:
        self._at = (epoch, i)

    def weight(self, i: int, M: int, epoch: int, batch_fraction: float) -> float:
        if os.environ.get("RANK") == "1" and (epoch, i) == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch_fraction

    def __repr__(self) -> str:
        return "Uniform()"


Kills.__qualname__ = Kills.__name__ = "Uniform"
