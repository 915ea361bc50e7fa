"""Files that are whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from filelock import FileLock, Timeout


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; if the body succeeds, it becomes `path` in one step.

    A reader, or a run that is killed, never meets a half-written file.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}.part")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path | str, text: str) -> None:
    """Write `text` to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def locked(folder: Path | str) -> Iterator[None]:
    """Hold `folder` for this process; the lock goes with the process, however it ends.

    Raises:
        BlockingIOError: If another process holds it.
    """
    lock = FileLock(Path(folder) / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(
            f"another run is working in {folder}; wait for it, or give this one another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()
