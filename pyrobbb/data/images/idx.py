"""The IDX file format of MNIST: a magic number, the sizes of each dimension, then the values.

    byte 0, 1   zero
    byte 2      the type of a value (0x08: unsigned byte, ...)
    byte 3      the number of dimensions D
    4 D bytes   the size of each dimension, big-endian uint32
    the rest    the values, row-major, big-endian

Files may be gzipped; this is detected from the first two bytes, not from the name.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GZIP_MAGIC = b"\x1f\x8b"


class BadFileError(ValueError):
    """A file that is cut, wrong or unreadable: which one, what was found, what was expected."""

    def __init__(self, where: str, found: str, expected: str, belongs_to: str | None = None) -> None:
        super().__init__(where, found, expected, belongs_to)
        self.where = where
        self.found = found
        self.expected = expected
        self.belongs_to = belongs_to  # the other data set whose file this is, where that is known

    def __str__(self) -> str:
        return f"{self.where}: found {self.found}; expected {self.expected}"


@contextmanager
def reading(kind: str, path: Path | str) -> Iterator[None]:
    """Turn the system's refusal to read a file, or to search a folder, into a `BadFileError`."""
    try:
        yield
    except OSError as error:
        found = f"a {kind} that cannot be read ({error.strerror or error})"
        raise BadFileError(str(path), found, f"a readable {kind}") from error


def unpack(data: bytes, where: str, *, gzipped: bool | None = None) -> bytes:
    """Undo the gzip, where there is one; `gzipped=True` insists on it.

    Raises:
        BadFileError: no gzip where one was promised, or one that is cut or damaged.
    """
    if data[:2] != GZIP_MAGIC:
        if gzipped:
            raise BadFileError(where, _begins(data), "a gzip file, which begins with 1f 8b")
        return data
    try:
        return gzip.decompress(data)
    except EOFError:
        found = f"a gzip file that is cut: it ends after {len(data):,} bytes, in the middle of its data"
        raise BadFileError(where, found, "a complete gzip file") from None
    except (gzip.BadGzipFile, zlib.error, struct.error) as error:
        raise BadFileError(where, f"a damaged gzip file ({error})", "an undamaged gzip file") from None


def parse(raw: bytes, where: str) -> npt.NDArray[np.generic]:
    """The array that the bytes of an (unzipped) IDX file hold, in the machine's own byte order.

    Raises:
        BadFileError: no IDX magic number, or more or fewer bytes than the header promises.
    """
    dtype, shape, header = _header(raw, len(raw), where)
    values = np.frombuffer(raw, dtype, offset=header).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def mapped(path: Path | str) -> npt.NDArray[np.generic]:
    """The array in a raw IDX file, mapped into memory and not read; big-endian, as it is there.

    Raises:
        BadFileError: a file that cannot be read, is not a raw IDX file, or is cut or too long.
    """
    with reading("file", path), Path(path).open("rb") as file:
        beginning, size = file.read(4 + 4 * 255), Path(path).stat().st_size
    dtype, shape, header = _header(beginning, size, str(path))
    return np.memmap(path, dtype, mode="r", offset=header, shape=shape)


def _header(raw: bytes, length: int, where: str) -> tuple[np.dtype[np.generic], tuple[int, ...], int]:
    """Type, shape and where the values begin in a file of `length` bytes that begins with `raw`."""
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in TYPES or raw[3] == 0:
        raise BadFileError(where, _begins(raw), "an IDX file, which begins 00 00 <type> <dimensions>")
    header = 4 + 4 * raw[3]
    if len(raw) < header:
        raise BadFileError(
            where, f"{len(raw):,} bytes", f"an IDX header of {header} bytes: the file is cut off"
        )
    shape = struct.unpack(f">{raw[3]}I", raw[4:header])
    dtype = np.dtype(TYPES[raw[2]])
    size = header + dtype.itemsize * math.prod(shape)
    if length != size:
        state = "cut" if length < size else "too long"
        expected = f"{size:,} bytes for the shape {shape} in its header: the file is {state}"
        raise BadFileError(where, f"{length:,} bytes", expected)
    return dtype, shape, header


def pack(array: npt.NDArray[np.generic]) -> bytes:
    """The bytes of the IDX file that holds `array`: the inverse of `parse`."""
    codes = {np.dtype(dtype).newbyteorder("="): code for code, dtype in TYPES.items()}
    code = codes[array.dtype.newbyteorder("=")]
    header = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(TYPES[code]).tobytes()


def read_raw(path: Path) -> bytes:
    """The (unzipped) bytes of a file, raw or gzipped."""
    with reading("file", path):
        data = path.read_bytes()
    return unpack(data, str(path), gzipped=path.suffix == ".gz")


def _begins(data: bytes) -> str:
    if not data:
        return "an empty file"
    page = b"<html" in data[:500].lower() or b"<!doctype" in data[:500].lower()
    return f"{len(data):,} bytes that begin {data[:24]!r}" + (" (a web page)" if page else "")
