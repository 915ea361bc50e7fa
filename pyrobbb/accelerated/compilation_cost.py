"""Whether a step is worth compiling: what that costs once against what it saves at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TypeVar

import torch

from pyrobbb.accelerated.compile import CannotCompileError
from pyrobbb.accelerated.record import CannotRecordError

Savings = Mapping[str, tuple[float, float, float]]
Made = TypeVar("Made")

FAST = ("auto", "compiled", "eager", "off")

# What compilation saves per step, in seconds on two CPU cores: a constant and a part per weight and draw;
# and what it costs at most, the first time.
# On CUDA they are reckoned: operations in place of 15 launches, at 1.5 us each, and the bytes per weight that
# they read and write beyond those of the one program, at 4.3 TB/s.
MEAN_FIELD = {"cpu": (0.5e-3, 40e-9, 20.0), "cuda": (0.13e-3, 75e-12, 30.0)}
LOCAL = MEAN_FIELD | {"cpu": (1e-3, 40e-9, 20.0)}  # its layers are Python at every call
POINT = {"cpu": (0.5e-3, 10e-9, 20.0), "cuda": (0.05e-3, 20e-12, 30.0)}  # without noise and widths
GRADIENT = dict.fromkeys(("cpu", "cuda"), (0.8e-3, 0.0, 20.0))  # a sampler's, of a small network
PYRO = {"cpu": (3e-3, 40e-9, 60.0), "cuda": (0.8e-3, 120e-12, 60.0)}


def compilation_pays(
    fast: str,
    size: int,
    steps: int,
    savings: Savings = MEAN_FIELD,
    *,
    calls: int = 1,
    device: torch.device | None = None,
) -> bool:
    """Whether to compile for `steps` steps over `size` weights times draws, `calls` trainings in each.

    Without a `device` it is the CPU.
    """
    constant, each, cost = savings["cuda" if device is not None and device.type == "cuda" else "cpu"]
    return fast == "compiled" or (fast == "auto" and (constant * calls + each * size) * steps > cost)


def compiled_or_not(make: Callable[[bool], Made], compiled: bool, log: Callable[[str], None]) -> Made:
    """The compiled step if it is asked for and can be made, else the other."""
    if compiled:
        began = perf_counter()
        try:
            step = make(True)
        except (CannotCompileError, CannotRecordError) as reason:
            log(f"training without compiled code, several times slower: {reason}")
        else:
            log(f"compiled the training step in {perf_counter() - began:.1f} s")
            return step
    return make(False)
