"""What a recorded run says about itself: the command, the date, the machine and the versions."""

import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig

from pyrobbb._support.device import cpu_info
from pyrobbb._support.files import make_folder, write_json

OWN = "command-line"  # what Hydra calls the place of a configuration file of the user's


def command_line(module: str, arguments: Sequence[str]) -> str:
    """`python -m MODULE key=value ...` for a shell, without the folder, which decides nothing."""
    said = [word for word in arguments if not word.startswith("folder=")]
    return " ".join([f"python -m {module}", *map(_quoted, said)])


def _quoted(word: str) -> str:
    """`word` for a shell, in double quotes where it has single ones, as around a name with a comma."""
    if not set(" '\"") & set(word):
        return word
    return f'"{word}"' if "'" in word and not set('"$`\\') & set(word) else shlex.quote(word)


def provenance(command: str) -> dict[str, Any]:
    """The head of a record under `docs/records/`, and `provenance.json` of a run."""
    processor = cpu_info("model name") or platform.processor() or platform.machine()
    gpu = f"; {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return {
        "command": command,
        "date": date.today().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores ({processor}), {torch.get_num_threads()} used{gpu}",
        "versions": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("pyrobbb", "pyro-ppl", "arviz", "numpy")},
        },
    }


def write_record(path: Path, command: str, content: Mapping[str, Any]) -> None:
    """A record: how it was made, then what was found; a copy in `docs/records/` makes tables and figures."""
    make_folder(path.parent)
    write_json(path, {**provenance(command), **content})


def run_command() -> str:
    """The command that repeats the run which Hydra has started; empty if it has started none."""
    if not HydraConfig.initialized():
        return ""
    hydra = HydraConfig.get()
    own = [source.path for source in hydra.runtime.config_sources if source.provider == OWN]
    files = [str(Path(own[0]) / f"{hydra.job.config_name}.yaml")] if own else []
    return shlex.join(["python", "-m", "experiments.run", *files, *hydra.overrides.task])
