"""Where to compute."""

from __future__ import annotations

import torch


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
            f"device {device!r} cannot be used ({str(error).splitlines()[0]}); use device=cpu"
        ) from error
    return chosen
