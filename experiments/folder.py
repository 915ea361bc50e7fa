"""One folder per run: its configuration, and whether what lies there may be gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from experiments.build import ConfigError
from pyrobbb.files import write_text

FREE_TO_CHANGE = ("folder", "device", "checkpoint_seconds", "data.root")


def claim(config: DictConfig) -> Path:
    """Make the run's folder and write `config.yaml`, or check that the one there is the same.

    Raises:
        ConfigError: If the folder holds a run with another configuration, or cannot be written.
    """
    folder = Path(config.folder)
    resolved = OmegaConf.to_container(config, resolve=True)
    path = folder / "config.yaml"
    if path.exists():
        before = _flat(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
        now = _flat(resolved)
        changed = [
            f"{key}: {before.get(key, 'absent')} -> {now.get(key, 'absent')}"
            for key in sorted(before.keys() | now.keys())
            if key not in FREE_TO_CHANGE and before.get(key) != now.get(key)
        ]
        if changed:
            raise ConfigError(
                f"folder: {folder} holds a run with another configuration ({'; '.join(changed[:4])}); "
                f"give this one another folder=..., or remove that one"
            )
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, yaml.safe_dump(resolved, sort_keys=False))
    except OSError as error:
        raise ConfigError(f"folder: {folder} cannot be written ({error.strerror})") from error
    return folder


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix.rstrip("."): tree}
    return {k: v for name, part in tree.items() for k, v in _flat(part, f"{prefix}{name}.").items()}
