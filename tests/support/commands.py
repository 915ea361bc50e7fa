"""A command in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from paths import ROOT


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m` with these arguments in `folder`, to its end."""
    call = [sys.executable, "-m", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(call, capture_output=True, text=True, cwd=folder, env=environment, check=False)
