"""Whether to compile or record a step's program: what that costs once, and saves at every step."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from pyrobbb.accelerated.compile import CannotCompileError, compiled_program
from pyrobbb.accelerated.record import CannotRecordError, Program, replay

Savings = Mapping[str, tuple[float, float, float]]
Prepare = Callable[[Program, Sequence[Tensor]], Program]  # a program, for inputs of these shapes
Made = TypeVar("Made")

FAST = ("auto", "compiled", "eager", "off")

# What compilation saves per step, in seconds on two CPU cores: a constant and a part per weight and draw;
# and what it costs at most, the first time.
# The constant is Python's part, which a replayed recording saves as well.
# On CUDA they are reckoned: operations in place of 15 launches, at 1.5 us each, and the bytes per weight that
# they read and write beyond those of the one program, at 4.3 TB/s. Of a point: on an H200 its 600 epochs of
# 2x400, not compiled, took twice as long as those of a mean-field normal, compiled (table1_full-14.json).
MEAN_FIELD = {"cpu": (0.5e-3, 40e-9, 20.0), "cuda": (0.13e-3, 75e-12, 15.0)}
LOCAL = MEAN_FIELD | {"cpu": (1e-3, 40e-9, 20.0)}  # its layers are Python at every call
POINT = {"cpu": (0.5e-3, 10e-9, 20.0), "cuda": (0.08e-3, 20e-12, 15.0)}  # without noise and widths
GRADIENT = dict.fromkeys(("cpu", "cuda"), (0.8e-3, 0.0, 20.0))  # a sampler's, of a small network
PYRO = {"cpu": (3e-3, 40e-9, 60.0), "cuda": (0.8e-3, 120e-12, 60.0)}
_OF_RECORDING = 1 / 100  # of what compiling costs


def ways(
    fast: str,
    size: int,
    steps: int,
    savings: Savings = MEAN_FIELD,
    *,
    calls: int = 1,
    device: torch.device | None = None,
) -> list[Prepare | None]:
    """What to do with the program of `steps` steps over `size` weights times draws, best first.

    The last is None: to leave it as it is. There are `calls` trainings in each step. Without a `device` it is
    the CPU; on CUDA a graph saves what replaying would.
    """
    cuda = device is not None and device.type == "cuda"
    constant, each, cost = savings["cuda" if cuda else "cpu"]
    compiles = (constant * calls + each * size) * steps > cost
    replays = constant * calls * steps > cost * _OF_RECORDING and not cuda
    found: list[Prepare | None] = []
    if fast == "compiled" or (fast == "auto" and compiles):
        found.append(compiled_program)
    if fast in ("auto", "compiled") and replays:
        found.append(replay)
    return [*found, None]


def fastest(
    make: Callable[[Prepare | None], Made],
    prepares: Sequence[Prepare | None],
    log: Callable[[str], None],
    what: str = "the training step",
) -> Made:
    """The step that `make` makes with the first of `prepares` that its program allows.

    Raises:
        CannotRecordError, CannotCompileError: If it allows none of them; the reason is that of the first.
    """
    failed: CannotRecordError | CannotCompileError | None = None
    for prepare in prepares:
        if prepare is compiled_program:
            log(f"compiling {what}; the first time on a machine takes up to a minute")
        try:
            step = make(prepare)
        except (CannotCompileError, CannotRecordError) as reason:
            failed = failed or reason
            continue
        if failed and prepares[0] is compiled_program:
            log(f"training without compiled code, several times slower: {failed}")
        return step
    assert failed is not None
    raise failed
