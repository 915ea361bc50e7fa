"""The real download code against a web server on this machine."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest

from data_fakes import ARRAYS, IMAGES, RAW, TINY, Answer, isolate, ok, put, serve
from paths import ROOT
from pyrobbb.data import BadFileError, DataUnavailableError
from pyrobbb.data.images.catalog import NAMES
from pyrobbb.data.images.download import fetch
from pyrobbb.data.images.sources import obtain


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return isolate(monkeypatch, tmp_path)


def test_a_download_is_checked_shown_and_kept(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve() as mirror:
        found = obtain(mirror.files)
        assert sorted(mirror.asked) == sorted(NAMES)
        assert all(np.array_equal(found[name], ARRAYS[name]) for name in NAMES)
        assert {path.name: path.read_bytes() for path in cache.iterdir()} == RAW
        shown = capsys.readouterr()
        assert all(f"{name}.gz: 100%" in shown.err for name in NAMES)
        assert shown.out == ""
        obtain(mirror.files)
        assert len(mirror.asked) == 4  # the second run asks nobody


def error(status: int) -> Answer:
    return lambda handler: handler.send_error(status)


def silent(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


GZ = gzip.compress(RAW[IMAGES])
FAULTS = {
    "cut": (ok(GZ[: len(GZ) // 2], claimed=len(GZ)), f"found {len(GZ) // 2:,} bytes: the download was cut"),
    "cut gzip": (ok(GZ[: len(GZ) // 2]), "a gzip file that is cut"),
    "page": (
        ok(b"<!DOCTYPE html><html>Sign in</html>", kind="text/html"),
        r"\(a web page\); expected a gzip file",
    ),
    "wrong": (
        ok(gzip.compress(RAW[IMAGES][:-1] + b"?")),
        f"found MD5 .* expected MD5 {TINY.idx_files[0].md5}",
    ),
    "404": (error(404), "HTTP Error 404"),
    "hung up": (silent, "closed connection without response"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_download_is_named_and_not_kept(fault: str, cache: Path) -> None:
    answer, reason = FAULTS[fault]
    with serve() as mirror:
        mirror.answers[IMAGES] = answer
        with pytest.raises(DataUnavailableError, match=f"mirrors: {mirror.url}{IMAGES}.gz.*{reason}"):
            obtain(mirror.files)
    assert not cache.exists() or list(cache.iterdir()) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_the_next_mirror_is_asked(fault: str, cache: Path) -> None:
    with serve() as first, serve() as second:
        first.answers[IMAGES] = FAULTS[fault][0]
        obtain(replace(TINY, mirrors=(first.url, second.url)))
        assert second.asked == [IMAGES]
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == RAW


def test_what_came_before_a_failure_is_kept(cache: Path) -> None:
    with serve() as mirror:
        good = mirror.answers.pop(NAMES[3])
        with pytest.raises(DataUnavailableError):
            obtain(mirror.files)
        assert sorted(path.name for path in cache.iterdir()) == sorted(NAMES[:3])
        mirror.answers[NAMES[3]] = good
        obtain(mirror.files)
        assert mirror.asked == [*NAMES, NAMES[3]]


def test_a_length_that_is_not_promised_is_no_fault() -> None:
    def unsized(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(GZ)

    with serve() as mirror:
        mirror.answers[IMAGES] = unsized
        assert fetch(f"{mirror.url}{IMAGES}.gz") == GZ


def test_chunks_that_end_early_are_a_cut_download() -> None:
    def chunked(handler: BaseHTTPRequestHandler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"64\r\n" + GZ[:20])  # 100 bytes are promised, 20 come
        handler.close_connection = True

    with serve() as mirror:
        mirror.answers[IMAGES] = chunked
        with pytest.raises(BadFileError, match=r"found .* bytes: the download was cut"):
            fetch(f"{mirror.url}{IMAGES}.gz")


def test_a_server_that_says_nothing_is_given_up() -> None:
    released = threading.Event()
    with serve() as mirror:
        mirror.answers[IMAGES] = lambda handler: released.wait(20) and None
        with pytest.raises(TimeoutError):
            fetch(f"{mirror.url}{IMAGES}.gz", timeout=0.1)
        released.set()


CHILD = """
import dataclasses, hashlib, sys
from data_fakes import TINY
from pyrobbb.data.images.sources import obtain
arrays = obtain(dataclasses.replace(TINY, mirrors=(sys.argv[1],)))
print(hashlib.sha256(b"".join(arrays[name].tobytes() for name in sorted(arrays))).hexdigest())
"""


def test_two_processes_at_once(cache: Path) -> None:
    """Both are held until both have asked for the first file, so their downloads do overlap."""
    both = threading.Barrier(2, timeout=60)

    def together(handler: BaseHTTPRequestHandler) -> None:
        both.wait()
        ok(GZ)(handler)

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])}
    with serve() as mirror:
        mirror.answers[IMAGES] = together
        children = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD, mirror.url],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        ends = [child.communicate(timeout=120) for child in children]
    for child, (out, err) in zip(children, ends, strict=True):
        assert child.returncode == 0, err
        assert "cannot be kept" not in err
        assert out == ends[0][0]
    assert len(mirror.asked) == 8
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == RAW


def test_a_half_written_file_of_a_dead_process_does_no_harm(cache: Path) -> None:
    put(cache)
    (cache / f"{IMAGES}.1234.abcd.part").write_bytes(RAW[IMAGES][:100])
    assert np.array_equal(obtain(TINY, download=False)[IMAGES], ARRAYS[IMAGES])
