"""A small stand-in for MNIST's four files, a web server for it, and a place of its own for each test."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from pyrobbb.data.images import idx
from pyrobbb.data.images.catalog import NAMES, Files, four_files

TRAIN, TEST = 30, 10


def _arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = []
    for rows in (TRAIN, TEST):
        made += [rng.integers(0, 256, (rows, 28, 28)), np.arange(rows) % 10]
    made[0][0, 0, 0] = 255
    return {name: array.astype(np.uint8) for name, array in zip(NAMES, made, strict=True)}


ARRAYS = _arrays()
RAW = {name: idx.pack(array) for name, array in ARRAYS.items()}
TINY = Files(
    title="Tiny",
    cache="tiny",
    folders=("tiny", "Tiny/raw", "", "raw"),
    idx_files=four_files(*(hashlib.md5(RAW[name]).hexdigest() for name in NAMES)),
    train_rows=TRAIN,
    mirrors=(),
)
IMAGES = NAMES[0]


def put(folder: Path, *, zipped: bool = False, **instead: bytes | None) -> Path:
    """The four files in `folder`; `images=` puts other bytes (or nothing) for the training images."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in RAW.items():
        data = instead["images"] if name == IMAGES and "images" in instead else raw
        if data is not None:
            path = folder / (name + ".gz" if zipped else name)
            path.write_bytes(gzip.compress(data) if zipped and data is raw else data)
    return folder


def isolate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of this test's own, and no folder given; the answer is where TINY is cached."""
    monkeypatch.delenv("PYROBBB_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "cache" / "pyrobbb" / "tiny"


Answer = Callable[[BaseHTTPRequestHandler], None]


def ok(body: bytes, *, claimed: int | None = None, kind: str = "application/gzip") -> Answer:
    """Status 200 and a body, which may be shorter than its Content-Length claims."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body) if claimed is None else claimed))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


class Mirror:
    """A web server on 127.0.0.1 that gives TINY's files; `answers[name]` may be changed."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {name: ok(gzip.compress(raw)) for name, raw in RAW.items()}
        self.asked: list[str] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.lstrip("/").removesuffix(".gz")
                mirror.asked.append(name)
                if name in mirror.answers:
                    mirror.answers[name](self)
                else:
                    self.send_error(404)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    @property
    def files(self) -> Files:
        return replace(TINY, mirrors=(self.url,))


@contextlib.contextmanager
def serve() -> Iterator[Mirror]:
    """A running `Mirror`."""
    mirror = Mirror()
    thread = threading.Thread(target=mirror.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield mirror
    finally:
        mirror.server.shutdown()
        mirror.server.server_close()
        thread.join()
