"""The download that torchvision's data sets do, with a progress bar and checks of what arrives."""

from __future__ import annotations

import http.client
import sys
import urllib.request
from collections.abc import Iterator, Sequence

from tqdm import tqdm

from pyrobbb.data.images import idx
from pyrobbb.data.images.catalog import Files, IdxFile, Images, verified
from pyrobbb.data.images.torchvision_compat import import_torchvision

TIMEOUT = 15.0  # seconds without a single byte
CHUNK = 1 << 16


class SourceError(Exception):
    """Why a source could not give the files, in one line."""


def from_mirrors(files: Files, wanted: Sequence[IdxFile]) -> Iterator[tuple[IdxFile, Images]]:
    """Each wanted file from the first mirror that gives the right one.

    Raises:
        SourceError: no mirror gives a file; the message says for each mirror why.
    """
    mirrors = _mirrors(files)
    for file in wanted:
        reasons = []
        for mirror in mirrors:
            url = f"{mirror}{file.name}.gz"
            try:
                array = verified(idx.unpack(fetch(url), url, gzipped=True), file, url)
            except idx.BadFileError as error:
                reasons.append(str(error))
            except (OSError, http.client.HTTPException) as error:
                reasons.append(f"{url}: {error}")
            else:
                yield file, array
                break
        else:
            raise SourceError("; ".join(reasons) or "no mirror is known")


def fetch(url: str, *, timeout: float = TIMEOUT) -> bytes:
    """All bytes behind `url`, with a progress bar on standard error.

    Raises:
        BadFileError: the connection ended before the promised number of bytes had come.
        OSError, http.client.HTTPException: no connection, or an answer that is an error.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "pyrobbb"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        promised = int(answer.headers.get("Content-Length") or 0)
        received = bytearray()
        with _bar(url.rsplit("/", 1)[-1], promised) as bar:
            while chunk := _read(answer, url, len(received), promised):
                received += chunk
                bar.update(len(chunk))
    if promised and len(received) != promised:
        raise _cut(url, len(received), promised)
    return bytes(received)


def _read(answer: http.client.HTTPResponse, url: str, received: int, promised: int) -> bytes:
    try:
        return answer.read(CHUNK)
    except http.client.IncompleteRead as error:
        raise _cut(url, received + len(error.partial), promised) from error


def _cut(url: str, received: int, promised: int) -> idx.BadFileError:
    return idx.BadFileError(url, f"{received:,} bytes: the download was cut", f"{promised:,} bytes")


def _bar(name: str, promised: int) -> tqdm:
    # On a terminal the bar moves; in a log file it should not write a line ten times a second.
    pause = 0.1 if sys.stderr is not None and sys.stderr.isatty() else 10.0
    return tqdm(total=promised or None, desc=name, unit="B", unit_scale=True, mininterval=pause)


def _mirrors(files: Files) -> tuple[str, ...]:
    if files.mirrors is not None:
        return files.mirrors
    if files.torchvision is None:
        return ()
    try:
        datasets = import_torchvision().datasets
    except ImportError as error:
        raise SourceError(str(error)) from error
    return tuple(getattr(datasets, files.torchvision).mirrors)
