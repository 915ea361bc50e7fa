"""The IDX reader against hand-made bytes, round trips, and files that are not what they should be."""

import gzip
import pickle
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrobbb.data import BadFileError
from pyrobbb.data.images import idx

# Two images of 2 x 3, as a hex editor shows them.
IMAGES = bytes.fromhex("00000803 00000002 00000002 00000003 000102030405 fffefdfcfbfa")
ZIPPED = gzip.compress(IMAGES, mtime=0)
LABELS = bytes.fromhex("00000801 00000003 070009")


def read(path: Path) -> np.ndarray:
    return idx.parse(idx.read_raw(path), str(path))


arrays = hnp.arrays(
    st.sampled_from(["u1", "i1", "i2", ">i2", "i4", ">i4", "f4", ">f4", "f8"]).map(np.dtype),
    hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4),
)


def test_hand_made_images() -> None:
    array = idx.parse(IMAGES, "here")
    assert array.dtype == np.uint8
    assert array.tolist() == [[[0, 1, 2], [3, 4, 5]], [[255, 254, 253], [252, 251, 250]]]


def test_hand_made_labels() -> None:
    assert idx.parse(LABELS, "here").tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    ("code", "values", "expected"),
    [
        ("09", "ff01", [-1, 1]),
        ("0b", "ffff 0102", [-1, 258]),
        ("0c", "ffffffff 00010000", [-1, 65536]),
        ("0d", "3f800000 c0000000", [1.0, -2.0]),
        ("0e", "3ff0000000000000 c000000000000000", [1.0, -2.0]),
    ],
)
def test_hand_made_values_of_other_types_are_big_endian(
    code: str, values: str, expected: list[float]
) -> None:
    array = idx.parse(bytes.fromhex(f"0000{code}01 00000002 {values}"), "here")
    assert array.tolist() == expected
    assert array.dtype.isnative


@settings(deadline=None)
@given(arrays)
def test_round_trip(array: np.ndarray) -> None:
    back = idx.parse(idx.pack(array), "here")
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(back, array)


@settings(deadline=None)
@given(array=arrays, data=st.data())
def test_every_cut_is_noticed(array: np.ndarray, data: st.DataObject) -> None:
    raw = idx.pack(array)
    length = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(BadFileError, match=r"here: found .*; expected "):
        idx.parse(raw[:length], "here")


@settings(deadline=None)
@given(st.integers(0, len(gzip.compress(LABELS, mtime=0)) - 1))
def test_every_cut_of_a_gzip_file_is_noticed(length: int) -> None:
    with pytest.raises(BadFileError, match=r"here: found .*; expected "):
        idx.unpack(gzip.compress(LABELS, mtime=0)[:length], "here", gzipped=True)


@pytest.mark.parametrize("name", ["a-ubyte", "a-ubyte.gz"])
def test_files_raw_and_gzipped(tmp_path: Path, name: str) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    raw = idx.pack(array)
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    np.testing.assert_array_equal(read(tmp_path / name), array)


def test_a_gzip_file_without_the_ending_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "a-ubyte").write_bytes(gzip.compress(LABELS, mtime=0))
    assert read(tmp_path / "a-ubyte").tolist() == [7, 0, 9]


def damaged(data: bytes) -> bytes:
    return data[:-6] + bytes([data[-6] ^ 1]) + data[-5:]  # one bit of the checksum


@pytest.mark.parametrize(
    ("name", "data", "found", "expected"),
    [
        ("cut", IMAGES[:-5], "23 bytes", r"28 bytes for the shape \(2, 2, 3\) .* cut"),
        ("long", IMAGES + b"!", "29 bytes", r"28 bytes for the shape .* too long"),
        ("header", IMAGES[:9], "9 bytes", "IDX header of 16 bytes: the file is cut off"),
        ("empty", b"", "an empty file", "an IDX file"),
        ("magic", b"\x01" + IMAGES[1:], r"28 bytes that begin b'\\x01", "begins 00 00"),
        ("type", b"\0\0\x07\x01" + LABELS[4:], r"that begin b'\\x00\\x00\\x07", "begins 00 00"),
        ("scalar", b"\0\0\x08\x00\x05", r"that begin b'\\x00\\x00\\x08\\x00", "begins 00 00"),
        ("page", b"<!DOCTYPE html><html>no</html>", r"a web page", "an IDX file"),
        ("page.gz", b"<!DOCTYPE html><html>no</html>", r"a web page", "a gzip file"),
        ("cut.gz", ZIPPED[:-12], "a gzip file that is cut", "a complete gzip file"),
        ("bits.gz", damaged(ZIPPED), r"a damaged gzip file \(CRC", "an undamaged gzip file"),
        (
            "deflate.gz",
            gzip.compress(b"", mtime=0)[:10] + b"\xff" * 20,
            "a damaged gzip file",
            "an undamaged gzip file",
        ),
    ],
)
def test_a_bad_file_is_named_with_found_and_expected(
    tmp_path: Path, name: str, data: bytes, found: str, expected: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(BadFileError, match=f"{name}: found .*{found}.*; expected .*{expected}") as caught:
        read(path)
    assert caught.value.where == str(path)


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(BadFileError, match=r"labels: found .*cannot be read \(Permission denied\)"):
        read(tmp_path / "labels")


def test_the_error_survives_a_trip_to_another_process() -> None:
    error = BadFileError("here", "this", "that", belongs_to="the other")
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.belongs_to) == ("here: found this; expected that", "the other")
