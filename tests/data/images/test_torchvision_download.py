"""torchvision's own download, against a web server on this machine."""

import gc
import gzip
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from packaging.version import Version

from commands import interpreter
from data_fakes import ARRAYS, GZIPPED, IMAGES, RAW, TINY, Answer, isolate, ok, put, register, serve
from paths import PYTHONPATH
from pyrobbb.data import DataUnavailableError
from pyrobbb.data.images import sources
from pyrobbb.data.images.catalog import NAMES
from pyrobbb.data.images.sources import obtain

# torchvision leaves the answers of a mirror that failed unclosed
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    yield isolate(monkeypatch, tmp_path)
    gc.collect()


def test_a_download_is_checked_shown_and_kept(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve() as mirror:
        found = obtain(TINY)
        assert mirror.asked == set(NAMES)
        assert all(np.array_equal(found[name], ARRAYS[name]) for name in NAMES)
        assert {path.name: path.read_bytes() for path in cache.iterdir()} == RAW
        shown = capsys.readouterr()
        assert "100%" in shown.err
        assert shown.out == ""
        mirror.asked.clear()
        obtain(TINY)
        assert not mirror.asked  # the second run asks nobody
    assert socket.getdefaulttimeout() is None


def error(status: int) -> Answer:
    return lambda handler: handler.send_error(status)


GZ = GZIPPED[IMAGES]
NO_ANSWER = r"Error .*{url}.*"
# torchvision before 0.27 asks the next mirror only after one that gave no answer
CORRUPTED = (NO_ANSWER if Version(version("torchvision")) >= Version("0.27") else "") + "corrupted"
FAULTS = {
    "cut": (ok(GZ[: len(GZ) // 2]), CORRUPTED),
    "page": (ok(b"<!DOCTYPE html><html>Sign in</html>", kind="text/html"), CORRUPTED),
    "wrong": (ok(gzip.compress(RAW[IMAGES][:-1] + b"?")), CORRUPTED),
    "404": (error(404), NO_ANSWER + "HTTP Error 404"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_download_is_named_and_not_kept(fault: str, cache: Path) -> None:
    answer, reason = FAULTS[fault]
    with serve() as mirror:
        mirror.answers[IMAGES] = answer
        with pytest.raises(DataUnavailableError, match="torchvision: .*" + reason.format(url=mirror.url)):
            obtain(TINY)
    assert not cache.exists()


@pytest.mark.parametrize("fault", [name for name, (_, reason) in FAULTS.items() if NO_ANSWER in reason])
def test_the_next_mirror_is_asked(fault: str, cache: Path) -> None:
    with serve() as first, serve() as second:
        first.answers[IMAGES] = FAULTS[fault][0]
        register(first.url, second.url)
        obtain(TINY)
        assert second.asked == {IMAGES}
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == RAW


def silent(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def test_a_server_that_hangs_up_is_a_reason() -> None:
    with serve() as mirror:
        mirror.answers[IMAGES] = silent
        with pytest.raises(DataUnavailableError, match=r"torchvision: .*closed connection without response"):
            obtain(TINY)


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "TIMEOUT", 0.1)
    released = threading.Event()
    with serve() as mirror:
        mirror.answers[IMAGES] = lambda handler: released.wait(20) and None
        with pytest.raises(DataUnavailableError, match=r"torchvision: .*timed out"):
            obtain(TINY)
        released.set()
    assert socket.getdefaulttimeout() is None


def test_without_torchvision_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("No module named 'torchvision'")

    monkeypatch.setattr(sources, "import_torchvision", missing)
    with pytest.raises(DataUnavailableError, match="torchvision: No module named 'torchvision'"):
        obtain(TINY)


CHILD = """
import hashlib, sys
import seeds
seeds.shift()  # the images served here are the parent's
from data_fakes import TINY, register
from pyrobbb.data.images.sources import obtain
register(sys.argv[1])
arrays = obtain(TINY)
print(hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest())
"""


def test_two_processes_at_once(cache: Path) -> None:
    """Each request for the first file is held until there are two, so that the downloads overlap."""
    both = threading.Barrier(2, timeout=600)  # the children import torch first, however busy the machine

    def together(handler: BaseHTTPRequestHandler) -> None:
        both.wait()
        ok(GZ)(handler)

    with serve() as mirror, ThreadPoolExecutor(2) as threads:
        mirror.answers[IMAGES] = together
        ends = list(
            threads.map(lambda _: interpreter("-c", CHILD, mirror.url, PYTHONPATH=PYTHONPATH), range(2))
        )
    for done in ends:
        assert "cannot be cached" not in done.stderr
        assert done.stdout == ends[0].stdout
    assert mirror.asked == set(NAMES)
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == RAW


def test_a_half_written_file_of_a_dead_process_does_no_harm(cache: Path) -> None:
    put(cache)
    (cache / f"{IMAGES}.1234.abcd.part").write_bytes(RAW[IMAGES][:100])
    assert np.array_equal(obtain(TINY, download=False)[IMAGES], ARRAYS[IMAGES])
