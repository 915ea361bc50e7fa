"""The suite asks for no device and compares with tensors of the CPU: it sees none, outside `test_cuda.py`."""

import os
from collections.abc import Callable

import torch

OF_DEVICES = "test_cuda.py"


class Devices:
    """CUDA's devices, hidden from torch and from the processes that a test starts, or shown again.

    Where there is none, nothing is changed.
    """

    def __init__(self) -> None:
        self.there = torch.cuda.is_available()  # asked for once with the devices in sight, CUDA keeps them
        self.seen: tuple[Callable[[], bool], Callable[[], int]] = (
            torch.cuda.is_available,
            torch.cuda.device_count,
        )
        self.named = os.environ.get("CUDA_VISIBLE_DEVICES")

    def hide(self, hidden: bool) -> None:
        """Hide them, or show them."""
        if not self.there:
            return
        none: tuple[Callable[[], bool], Callable[[], int]] = (lambda: False, lambda: 0)
        torch.cuda.is_available, torch.cuda.device_count = none if hidden else self.seen
        if hidden:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        elif self.named is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.named
