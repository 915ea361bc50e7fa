"""A small stand-in for MNIST's four files, a web server for it, and a place of its own for each test."""

import contextlib
import gzip
import hashlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from pyrobbb.data.images import idx
from pyrobbb.data.images.catalog import NAMES, Files
from pyrobbb.data.images.torchvision_compat import import_torchvision

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
GZIPPED = {name: gzip.compress(raw, mtime=0) for name, raw in RAW.items()}
TINY = Files(
    title="Tiny",
    torchvision="Tiny",
    md5=tuple(hashlib.md5(RAW[name]).hexdigest() for name in NAMES),
    train_rows=TRAIN,
    test_rows=TEST,
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


def ok(body: bytes, *, kind: str = "application/gzip") -> Answer:
    """Status 200 and a body."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


class Mirror:
    """A web server on 127.0.0.1 that gives TINY's files; `answers[name]` may be changed."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {name: ok(body) for name, body in GZIPPED.items()}
        self.asked: set[str] = set()
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.lstrip("/").removesuffix(".gz")
                mirror.asked.add(name)
                if name in mirror.answers:
                    mirror.answers[name](self)
                else:
                    self.send_error(404)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"


def register(*urls: str) -> None:
    """Make TINY a data set of torchvision's, with these mirrors."""
    datasets = import_torchvision().datasets
    digests = [(f"{name}.gz", hashlib.md5(GZIPPED[name]).hexdigest()) for name in NAMES]
    datasets.Tiny = type("Tiny", (datasets.MNIST,), {"mirrors": list(urls), "resources": digests})


@contextlib.contextmanager
def serve() -> Iterator[Mirror]:
    """A running `Mirror`, which is TINY's."""
    mirror = Mirror()
    register(mirror.url)
    thread = threading.Thread(target=mirror.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield mirror
    finally:
        mirror.server.shutdown()
        mirror.server.server_close()
        thread.join()
