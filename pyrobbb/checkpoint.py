"""Checkpoints: tensors and plain values only, so that opening one never runs code."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from pyrobbb.files import replacing

FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: damaged, or of another network or guide."""


def save(path: Path | str, content: dict[str, Any]) -> None:
    """Write `content` (tensors, numbers, strings, lists and dicts) to `path`, whole or not at all."""
    with replacing(path) as temporary:
        torch.save(_plain({"format": FORMAT, **content}), temporary)


def _plain(value: Any) -> Any:
    """`value` with numpy's numbers as Python's: a learning rate of `np.exp(-7)` must be readable again."""
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


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
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is no readable checkpoint (it is damaged, or holds code, which is never run)"
        ) from error
    except Exception as error:  # on damaged bytes torch raises almost anything
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
    """Put `state` into `module`, or leave it as it is.

    Raises:
        CheckpointError: If names or shapes differ; it lists the first few that do.
    """
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise CheckpointError(f"{path} holds no {what}")
    own = module.state_dict()
    check_shapes({k: v.shape for k, v in own.items()}, {k: v.shape for k, v in state.items()}, what, path)
    module.load_state_dict(state)


def check_shapes(
    own: Mapping[str, Sequence[int]], stored: Mapping[str, Sequence[int]], what: str, path: Path | str
) -> None:
    """Raise CheckpointError, with the first few differences, unless both name the same shapes."""
    wrong = [f"no {name}" for name in sorted(own.keys() - stored.keys())]
    wrong += [f"unknown {name}" for name in sorted(stored.keys() - own.keys())]
    wrong += [
        f"{name} is {tuple(stored[name])}, the {what}'s is {tuple(own[name])}"
        for name in sorted(own.keys() & stored.keys())
        if tuple(own[name]) != tuple(stored[name])
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise CheckpointError(f"{path} is a checkpoint of another {what}: {'; '.join(wrong[:3])}{more}")
