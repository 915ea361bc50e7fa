"""The files in a folder: one that the user gave, or the user's cache."""

import os
from pathlib import Path

from pyrobbb._support.files import replacing
from pyrobbb.data.images import idx
from pyrobbb.data.images.catalog import NAMES, Files, Images

ENVIRONMENT = "PYROBBB_DATA"


def given_folders(root: str | os.PathLike[str] | None) -> list[tuple[str, Path]]:
    """The folders that the user named, as (name of the setting, folder), in the order to look.

    Raises:
        ValueError: One of them does not exist.
    """
    given = [("root", root), (ENVIRONMENT, os.environ.get(ENVIRONMENT))]
    folders = [(setting, Path(folder).expanduser()) for setting, folder in given if folder]
    for setting, folder in folders:
        if not folder.is_dir():
            state = "is not a folder" if folder.exists() else "does not exist"
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
        BadFileError: They are there and one is cut, wrong or unreadable.
    """
    lacks = f"has no files of {files.title}"
    for place in files.folders:
        try:
            found = read_four(folder / place, files)
        except idx.BadFileError as error:
            if error.belongs_to is None:
                raise
            # MNIST and its relatives use the same names: a folder that holds another lacks this one.
            lacks = f"holds {error.belongs_to} in {folder / place}, and no files of {files.title}"
            continue
        if isinstance(found, dict):
            return found
        if len(found) < len(NAMES):
            lacks = f"lacks {', '.join(found)} (raw or .gz) in {folder / place}"
    return lacks


def read_four(folder: Path, files: Files) -> dict[str, Images] | list[str]:
    """The four files in this very folder, raw or gzipped; or the names of those that are not there.

    Raises:
        BadFileError: They are there and one is cut, wrong or unreadable.
    """
    paths = {name: _find(folder, name) for name in NAMES}
    missing = [name for name, path in paths.items() if path is None]
    return missing or {name: files.read(path, name) for name, path in paths.items() if path}


def save(folder: Path, arrays: dict[str, Images]) -> None:
    """Write the files, raw, each whole: two processes at once leave the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        with replacing(folder / name) as part:
            part.write_bytes(idx.pack(array))


def _find(folder: Path, name: str) -> Path | None:
    with idx.reading("folder", folder):
        return next((path for end in ("", ".gz") if (path := folder / f"{name}{end}").is_file()), None)
