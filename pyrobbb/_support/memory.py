"""Is an error that memory has run out?"""

from __future__ import annotations

import torch


def out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python raised `error` for want of memory, on the CPU or on a device.

    On the CPU torch has no class for it: the allocator's message is all there is.
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )
