"""The files in a folder: one that the user gave, or the user's cache."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from pyrobbb.data.images import idx
from pyrobbb.data.images.catalog import Files, IdxFile, Images, verified

ENVIRONMENT = "PYROBBB_DATA"


def given_folders(root: str | os.PathLike[str] | None) -> list[tuple[str, Path]]:
    """The folders that the user named, as (name of the setting, folder), in the order to look.

    Raises:
        ValueError: one of them does not exist.
    """
    given = [("root", root), (ENVIRONMENT, os.environ.get(ENVIRONMENT))]
    folders = [(setting, Path(folder).expanduser()) for setting, folder in given if folder]
    for setting, folder in folders:
        if not folder.is_dir():
            state = "is no folder" if folder.exists() else "does not exist"
            raise ValueError(
                f"{setting}: {folder} {state}; name a folder that holds the data, or leave it unset"
            )
    return folders


def cache_folder(name: str) -> Path:
    """`$XDG_CACHE_HOME/pyrobbb/NAME`, or the same under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "pyrobbb" / name


def read_given(folder: Path, files: Files) -> dict[str, Images] | str:
    """The four files in a folder of the user's, or one line that says what it lacks.

    The four must lie together: in the folder itself or in one of `files.folders`, raw or gzipped.

    Raises:
        BadFileError: they are there and one is cut, wrong or unreadable.
    """
    lacks = "has no files of " + files.title
    for place in files.folders:
        paths = {file: _find(folder / place, file) for file in files.idx_files}
        missing = [file.name for file, path in paths.items() if path is None]
        if len(missing) < len(paths) and missing:
            lacks = f"lacks {', '.join(missing)} (raw or .gz) in {folder / place}"
        if missing:
            continue
        try:
            return {file.name: _read(path, file) for file, path in paths.items() if path}
        except idx.BadFileError as error:
            if error.belongs_to is None:
                raise
            # MNIST and Fashion-MNIST use the same names: a folder that holds the other lacks this one.
            lacks = f"holds {error.belongs_to} in {folder / place}, and no files of {files.title}"
    return lacks


def read_cache(folder: Path, wanted: Iterable[IdxFile]) -> tuple[dict[str, Images], list[idx.BadFileError]]:
    """The good files in the cache, and what is wrong with the bad ones."""
    good: dict[str, Images] = {}
    bad: list[idx.BadFileError] = []
    for file in wanted:
        try:
            path = _find(folder, file)
            if path is not None:
                good[file.name] = _read(path, file)
        except idx.BadFileError as error:
            bad.append(error)
    return good, bad


def save(folder: Path, file: IdxFile, array: Images) -> None:
    """Write one file, raw, under a name of this process's own, then rename it in one step.

    A second process that does the same at the same time writes the same bytes under another name;
    a reader sees the whole file or none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}.part"
    try:
        part.write_bytes(idx.pack(array))
        os.replace(part, folder / file.name)
    finally:
        part.unlink(missing_ok=True)


def _find(folder: Path, file: IdxFile) -> Path | None:
    try:
        for name in (file.name, file.name + ".gz"):
            if (folder / name).is_file():
                return folder / name
    except OSError as error:  # a folder that may not be searched
        found = f"a folder that cannot be read ({error.strerror or error})"
        raise idx.BadFileError(str(folder), found, "a readable folder") from error
    return None


def _read(path: Path, file: IdxFile) -> Images:
    return verified(idx.read_raw(path), file, str(path))
