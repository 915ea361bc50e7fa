"""Recognise errors that mean out of memory."""

from __future__ import annotations

import torch


def out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python raised `error` because memory ran out, on the CPU or on a device.

    On the CPU torch has no class for it, only the allocator's message.
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )
