"""Checkpoints: tensors and plain values only, so that opening one never runs code."""

import logging
import pickle
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.serialization import config

from pyrobbb._support import files
from pyrobbb._support.files import replacing
from pyrobbb._support.text import reason, short

FORMAT = 1
PLAIN = (torch.Tensor, bool, int, float, str, bytes, type(None))
DOS_FOLDER = 0x10  # an attribute of a member of a zip archive

logger = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: damaged, or of another network or guide."""


class DamagedError(CheckpointError):
    """A checkpoint whose bytes are not those that were written."""


def before(path: Path | str) -> Path:
    """Where `save` keeps the checkpoint before the one at `path`."""
    path = Path(path)
    return path.with_name(f"{path.stem}.before{path.suffix}")


def save(path: Path | str, content: dict[str, Any]) -> None:
    """Write `content` (tensors, numbers, strings, lists and dicts) to `path`, whole or not at all.

    The previous checkpoint is kept next to it, as `before(path)`.

    Raises:
        ValueError: It holds something else, which `load` would not read; existing checkpoints stay.
        OSError: It cannot be written; they stay, too.
    """
    content = _each({"format": FORMAT, **content}, _plain)
    # A Python file, not a path: torch's own writer does not report why it fails. `load` needs its checksums.
    checksums = config.patch("save.compute_crc32", True)  # type: ignore[attr-defined]
    with replacing(path, before=before(path)) as temporary, temporary.open("wb") as file, checksums:
        torch.save(content, file)


def remove(path: Path | str) -> None:
    """Remove the checkpoint at `path` and the one before it."""
    for each in (before(path), Path(path)):
        if each.exists():  # a read-only file system refuses to remove what is not there, too
            each.unlink(missing_ok=True)  # another process may have removed it just now


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with what its dictionaries and lists hold changed."""
    if isinstance(value, dict):
        return {change(key): _each(item, change) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_each(item, change) for item in value)
    return change(value)


def _plain(value: Any) -> Any:
    """What `load` reads: a numpy number as Python's, such as a rate of `np.exp(-7)`."""
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, PLAIN):
        with BytesIO() as file:
            torch.save(value, file)
            file.seek(0)
            try:
                torch.load(file, weights_only=True)
            except pickle.UnpicklingError as error:
                raise ValueError(
                    f"a checkpoint that holds {short(value)}, of {type(value).__name__}, could not be read "
                    f"again: keep tensors, numbers, strings, lists and dictionaries"
                ) from error
    return value


def load(path: Path | str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint.

    Raises:
        CheckpointError: If the file is truncated, is not a checkpoint, holds code, or has a newer format.
    """
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            # torch notices neither a changed byte in a tensor, nor that it reads nothing of a "folder"
            folders = any(member.external_attr & DOS_FOLDER for member in archive.infolist())
            if folders or archive.testzip() is not None:
                raise zipfile.BadZipFile("its content is not what was written")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of damaged bytes before it refuses them
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise CheckpointError(f"{path} is not a readable checkpoint ({error.strerror})") from error
    except pickle.UnpicklingError as error:
        raise DamagedError(
            f"{path} is not a readable checkpoint (it is damaged, or holds code, which is never run)"
        ) from error
    except Exception as error:  # torch may raise almost anything on damaged bytes
        raise DamagedError(f"{path} is not a readable checkpoint ({reason(error, 120)})") from error
    if not isinstance(content, dict) or "format" not in content:
        raise CheckpointError(f"{path} is not a pyrobbb checkpoint")
    if content["format"] != FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {content['format']}, this version of pyrobbb reads {FORMAT}"
        )
    on = torch.device(device)
    return _each(content, lambda one: one.to(on) if isinstance(one, torch.Tensor) else one)


expected_structure = partial(files.expected_structure, kind=CheckpointError)


def load_newest(
    path: Path | str, device: torch.device | str = "cpu", *, repair: bool = False
) -> tuple[dict[str, Any], Path] | None:
    """The checkpoint at `path`, or the previous one if it is damaged, and its file; None if absent.

    It warns on the logger `pyrobbb._support.checkpoint`. With `repair` the damaged one is renamed, so that
    it does not take the place of the one before when the next is saved; otherwise the folder stays as it is.

    Raises:
        CheckpointError: From `load`, if no whole one is there or the newest belongs to something else.
    """
    try:
        return _newest(path, device, repair)
    except DamagedError as error:
        if not repair:
            raise
        raise DamagedError(f"{error}; remove it to begin again") from error


def _newest(path: Path | str, device: torch.device | str, repair: bool) -> tuple[dict[str, Any], Path] | None:
    path, older = Path(path), before(path)
    if not path.exists():  # a run was killed before its first checkpoint, or between two renamings
        return (load(older, device), older) if older.exists() else None
    try:
        return load(path, device), path
    except DamagedError as damage:
        if not older.exists():
            raise
        found = load(older, device), older
        logger.warning("%s; using the previous one, %s", damage, older)
    if repair:
        path.replace(path.with_name(f"{path.stem}.damaged{path.suffix}"))
    return found


def load_module(module: nn.Module, state: dict[str, Any], what: str, path: Path | str) -> None:
    """Load `state` into `module`, or leave it unchanged.

    Raises:
        CheckpointError: If names or shapes differ; the message lists the first few. Or the precision does.
    """
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise CheckpointError(f"{path} holds no {what}")
    own = module.state_dict()
    check_shapes({k: v.shape for k, v in own.items()}, {k: v.shape for k, v in state.items()}, what, path)
    for name, value in own.items():
        # units of y stay in double precision, where they once were cast with the network
        units = name.startswith("likelihood.") and value.dtype == torch.double
        if value.is_floating_point() and value.dtype != state[name].dtype and not units:
            raise CheckpointError(
                f"{path} has {name} in {state[name].dtype}, the {what} here has {value.dtype}: make it with "
                f"network.to({state[name].dtype})"
            )
    module.load_state_dict(state)


def check_shapes(
    own: Mapping[str, Sequence[int]], stored: Mapping[str, Sequence[int]], what: str, path: Path | str
) -> None:
    """Raise CheckpointError, listing the first few differences, unless names and shapes agree."""
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
