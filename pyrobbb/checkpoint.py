"""Checkpoints: tensors and plain values only, so that opening one never runs code."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pyrobbb.files import replacing

FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: damaged, or of another network or guide."""


def save(path: Path | str, content: dict[str, Any]) -> None:
    """Write `content` (tensors, numbers, strings, lists and dicts) to `path`, whole or not at all."""
    with replacing(path) as temporary:
        torch.save({"format": FORMAT, **content}, temporary)


def load(path: Path | str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint.

    Raises:
        CheckpointError: If the file is cut, is no checkpoint, holds code, or is of a newer format.
    """
    path = Path(path)
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (RuntimeError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} is no readable checkpoint ({reason})") from error
    if not isinstance(content, dict) or "format" not in content:
        raise CheckpointError(f"{path} is not a checkpoint of pyrobbb")
    if content["format"] != FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {content['format']}, this version of pyrobbb reads {FORMAT}"
        )
    return content


def load_module(module: nn.Module, state: dict[str, Any], what: str, path: Path | str) -> None:
    """Put `state` into `module`.

    Raises:
        CheckpointError: If names or shapes differ; it lists the first few that do.
    """
    own = module.state_dict()
    missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    shapes = [
        f"{k} is {tuple(state[k].shape)}, the {what}'s is {tuple(own[k].shape)}"
        for k in own.keys() & state.keys()
        if own[k].shape != state[k].shape
    ]
    wrong = [f"no {k}" for k in missing] + [f"unknown {k}" for k in unknown] + sorted(shapes)
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CheckpointError(f"{path} is a checkpoint of another {what}: {'; '.join(wrong[:3])}{more}")
    module.load_state_dict(state)
