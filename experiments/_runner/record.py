"""What a recorded run says about itself: the command, the date, the machine and the versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import date
from typing import Any

import torch


def command_line(module: str, arguments: Sequence[str]) -> str:
    """`python -m MODULE key=value ...`, without the folder, which decides nothing."""
    said = [word for word in arguments if not word.startswith("folder=")]
    return " ".join([f"python -m {module}", *said])


def provenance(command: str) -> dict[str, Any]:
    """The head of a record under `docs/records/`."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "command": command,
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores ({device}), {torch.get_num_threads()} used",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
    }
