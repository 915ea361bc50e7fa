"""Where to compute."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from pyrobbb._support import text


def best_device(device: str | None = None) -> torch.device:
    """The device requested, or CUDA if there is one, else the CPU.

    Raises:
        ValueError: If torch does not know the device, or CUDA is requested and absent.
    """
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:NUMBER, got {device!r}") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        there = f"only {found} CUDA devices" if found else "no CUDA device"
        raise ValueError(f"device {device!r} was requested, but torch finds {there}; use device=cpu")
    try:
        if chosen.type not in ("cpu", "cuda"):
            torch.zeros(1, device=chosen).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch's, for lack of a backend
        raise ValueError(
            f"device {device!r} cannot be used ({text.reason(error)}); use device=cpu"
        ) from error
    return chosen


@contextmanager
def tf32_products(asked: bool) -> Iterator[None]:
    """If `asked`, products of float32 matrices may round their factors to TF32 (10 bits) inside the body."""
    if not asked or uses_tf32(torch.device("cuda")):
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def uses_tf32(device: torch.device) -> bool:
    """Whether products of float32 matrices on the device are in TF32, asked for here or by the user."""
    if device.type != "cuda":
        return False
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # it was set by torch's newer names, which the older one refuses to read
        return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


@cache
def cpu_info(*keys: str) -> str | None:
    """What the system says of the first processor under one of these keys, if it says it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    told = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in told if key.strip() in keys), None)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads in the body."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_full(like: Tensor) -> torch.autocast:
    """In the precision of a tensor, whatever the caller's autocast."""
    return torch.autocast(like.device.type, enabled=False)
