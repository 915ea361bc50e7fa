"""The download that torchvision's own data sets do: each file from the first mirror whose MD5 is right."""

from __future__ import annotations

import http.client
import socket
import tempfile
from pathlib import Path

from pyrobbb._support.checks import one_line
from pyrobbb.data.images.catalog import NAMES, Files, Images, SourceError
from pyrobbb.data.images.idx import BadFileError
from pyrobbb.data.images.torchvision_compat import import_torchvision

TIMEOUT = 15.0  # seconds without a single byte


def from_torchvision(files: Files) -> dict[str, Images]:
    """The four files by name.

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
