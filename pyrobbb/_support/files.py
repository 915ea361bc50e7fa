"""Files that are whole or absent: written under a temporary name, then renamed."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from filelock import FileLock, Timeout


@contextmanager
def replacing(path: Path | str, *, before: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path next to `path`; if the body succeeds, it replaces `path` in one step.

    No reader sees, and no killed run leaves, a half-written `path`. The old `path` stays as `before`,
    if that is given; between the two renamings only `before` may exist.

    Raises:
        OSError: It cannot be written (a full disk, a folder without permission); the old file stays.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}.part")
    try:
        with named_errors(path):
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            if before is not None and path.exists():
                path.replace(before)
            temporary.replace(path)
    finally:
        with suppress(OSError):  # a read-only file system says so of what is not there, too
            temporary.unlink(missing_ok=True)


@contextmanager
def named_errors(path: Path | str) -> Iterator[None]:
    """Make an operating system's error name the file that could not be written, however deep it arose.

    HDF5 and torch's writer wrap it in errors of their own.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not (isinstance(cause, OSError) and cause.errno):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise type(cause)(cause.errno, f"cannot write {path}: {os.strerror(cause.errno or 0)}") from error


def write_text(path: Path | str, text: str) -> None:
    """Write `text` to `path`, whole or not at all; bytes of a file's name that are not text as escapes."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path | str, content: Any, *, indent: int | None = 1) -> None:
    """Write plain values to a `.json` file, whole or not at all."""
    write_text(path, json.dumps(content, indent=indent) + "\n")


def read_json(path: Path | str) -> dict[str, Any]:
    """The values by name in a `.json` file; nothing if it is not there.

    Raises:
        ValueError: If it cannot be read, or is damaged.
    """
    path = Path(path)
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged (no values by name)")
    return content


@contextmanager
def expected_structure(path: Path | str, kind: type[ValueError] = ValueError) -> Iterator[None]:
    """An error of this kind where the content of `path` does not have the structure that the body expects."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise kind(
            f"{path} does not hold what this version of pyrobbb reads ({type(error).__name__}: {error})"
        ) from error


@contextmanager
def locked(folder: Path | str, name: str = ".lock", wait: float = 0.0) -> Iterator[None]:
    """Hold the lock `name` in `folder` for this process; it is released however the process ends.

    Raises:
        BlockingIOError: If another process holds it, for longer than `wait` seconds.
    """
    lock = FileLock(Path(folder) / name, timeout=wait)
    try:
        with named_errors(Path(folder) / name):
            lock.acquire()
    except Timeout:
        raise BlockingIOError(
            f"another run is working in {folder}; wait for it, or give this one another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def make_folder(folder: Path | str) -> None:
    """Make `folder` and its missing parents.

    Raises:
        OSError: It cannot be made; the message names the folder.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(error.errno, f"{folder} is a file or a broken link, not a folder") from error
    except OSError as error:
        raise type(error)(error.errno, f"cannot make the folder {folder}: {error.strerror}") from error


def remove_partial_files(folder: Path | str, of: str = "") -> None:
    """Remove half-written files of a killed writer from `folder`, all or those of one; hold its lock."""
    for part in Path(folder).glob(f".{of}*.part"):
        part.unlink(missing_ok=True)
