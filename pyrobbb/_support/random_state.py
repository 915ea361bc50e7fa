"""Work without side effects: random states, Pyro's parameter store and its validation flag are restored."""

import operator
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import RLock
from typing import Any, SupportsIndex

import numpy as np
import pyro
import torch
from pyro.nn import PyroModule

_COUNTER = count(1)
_TURN = RLock()
if hasattr(os, "register_at_fork"):  # not on Windows; the lock's owner is not in the child
    os.register_at_fork(after_in_child=lambda: globals().update(_TURN=RLock()))


def _cuda_index(device: torch.device | str) -> int | None:
    device = torch.device(device)
    if device.type != "cuda":
        return None
    return torch.cuda.current_device() if device.index is None else device.index


@contextmanager
def isolated(seed: SupportsIndex | None = None, *, device: torch.device | str = "cpu") -> Iterator[None]:
    """Run the body with an empty parameter store, its own random state, and without Pyro's validation.

    Everything is restored at the end, even after an error: the user's global seeds and param store are
    as they were. Modules keep their trained parameters, which are their own.

    These states belong to the whole process, so threads take turns: a second one waits until the first is
    out of its body. To fit several at once, use processes.

    Args:
        seed: Seeds torch's generators inside, a whole number of any type; None continues from the present
            state.
        device: Whose random state is kept besides the CPU's.
    """
    index = _cuda_index(device)
    with (
        _TURN,
        torch.random.fork_rng([] if index is None else [index]),
        pyro.get_param_store().scope(),
        pyro.validation_enabled(False),
    ):
        if seed is not None:
            seed_generators(seed, device)
        yield


def seed_generators(seed: SupportsIndex, device: torch.device | str) -> None:
    """Seed torch's generators on the CPU and on `device`; call it inside `isolated`."""
    torch.default_generator.manual_seed(plain := operator.index(seed))
    if (index := _cuda_index(device)) is not None:
        torch.cuda.default_generators[index].manual_seed(plain)


@contextmanager
def other_states_kept() -> Iterator[None]:
    """Restore the global random states of Python and NumPy, which a data set's transforms may draw from."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def seed_every_generator(seed: int) -> None:
    """Seed torch's generator on the CPU and those of Python and NumPy; inside `other_states_kept`, too."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)  # noqa: NPY002


def mixed_seed(seed: int, *numbers: int) -> int:
    """A seed of its own for each sequence of `numbers`, such as a chain's and a draw's.

    Two of one length, of numbers from -1 to a million, never meet. Two of different lengths may, as (0, 1, 2)
    and (1, 2) do: noise that must be independent of other noise takes as many numbers, or a -1 (`sbc.py`).
    """
    for number in numbers:
        seed = int(seed) * 1_000_003 + int(number)  # numpy's would overflow
    return seed & 0x7FFF_FFFF_FFFF_FFFF


class Named(PyroModule):
    """A Pyro module with a name that is unique in this process, also as a deep copy or out of a pickle.

    Pyro's parameter store is global and keyed by name: two modules of one name would share parameters,
    the second starting from the first's trained values.
    """

    def __init__(self, name: str) -> None:
        super().__init__(_unique(name))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        kind = self._pyro_name.rpartition(".")[2]  # without that of a module it was a part of
        now = _unique(kind.rpartition("_")[0] or kind)
        for name, part in self.named_modules(prefix=now):
            if isinstance(part, PyroModule):
                part._pyro_name = name


def _unique(kind: str) -> str:
    return f"{kind}_{next(_COUNTER)}"


def random_state(device: torch.device | str) -> dict[str, torch.Tensor]:
    """The state of torch's generators on the CPU and on `device`, as tensors."""
    index = _cuda_index(device)
    state = {"cpu": torch.get_rng_state()}
    return state if index is None else {**state, "cuda": torch.cuda.get_rng_state(index)}


def set_random_state(state: dict[str, torch.Tensor], device: torch.device | str) -> None:
    """Put back what `random_state` returned; call it inside `isolated`."""
    torch.set_rng_state(state["cpu"].cpu())
    index = _cuda_index(device)
    if index is not None and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), index)
