"""The UCI tables: found, fetched, checked, and split as published; a small table stands in for them."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from data_fakes import Mirror, isolate, ok, serve
from pyrobbb.data import BadFileError, DataUnavailableError
from pyrobbb.data import uci as module
from pyrobbb.data.uci import (
    KNOWN,
    UCI,
    Known,
    digest,
    gap_test,
    listed_gaps,
    obtain,
    standard_test,
)

VALUES = np.random.default_rng(0).normal(size=(20, 3))
PATH = "yacht/data/data.txt"
TEXT = "\n".join("\t".join(map(repr, [*row, 9.0])) for row in VALUES.tolist()).encode()  # a column more


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of this test's own, with a table of 20 rows in the place of yacht's."""
    monkeypatch.setitem(KNOWN, "yacht", Known(20, 3, digest(VALUES)))
    return isolate(monkeypatch, tmp_path).parent / "uci"


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with serve() as mirror:
        mirror.answers[PATH] = ok(TEXT)
        yield mirror


def test_it_is_downloaded_once_and_kept(cache: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(UCI, "url", mirror.url)
    data = UCI(name="yacht", split=1).load()
    assert (data.spec.N, data.spec.features, data.spec.outputs) == (18, (2,), 1)
    test = np.sort(standard_test(20, 1))
    np.testing.assert_allclose(data.test.y[:, 0], VALUES[test, 2], rtol=1e-6)
    assert (cache / "yacht.csv.gz").exists()
    np.testing.assert_array_equal(obtain("yacht", None, mirror.url), VALUES)
    assert list(mirror.asked) == [PATH]


@pytest.mark.parametrize("damage", [lambda whole: whole[:-20], lambda whole: whole[:12] + b"\xff" * 40])
def test_a_damaged_cache_is_fetched_again(
    damage: Callable[[bytes], bytes], cache: Path, mirror: Mirror, caplog: pytest.LogCaptureFixture
):
    cache.mkdir(parents=True)
    (cache / "yacht.csv.gz").write_bytes(damage(gzip.compress(TEXT)))
    np.testing.assert_array_equal(obtain("yacht", None, mirror.url), VALUES)
    assert "fetching it again" in caplog.text


def test_without_download_a_damaged_cache_is_named(cache: Path, caplog: pytest.LogCaptureFixture):
    cache.mkdir(parents=True)
    (cache / "yacht.csv").write_bytes(b"<html>")
    with pytest.raises(DataUnavailableError, match=r"the cache: .*yacht\.csv: found not a table") as refused:
        obtain("yacht")
    assert "has no yacht" not in str(refused.value)
    assert "fetching" not in caplog.text


@pytest.mark.parametrize("name", ["uci/yacht.csv.gz", "yacht.csv", "uci/yacht.csv"])
def test_a_given_folder_comes_first(cache: Path, mirror: Mirror, name: str, tmp_path: Path):
    path = tmp_path / "given" / name
    path.parent.mkdir(parents=True)
    text = TEXT.replace(b"\t", b",")
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    np.testing.assert_array_equal(obtain("yacht", tmp_path / "given", mirror.url), VALUES)
    assert not mirror.asked


@pytest.mark.parametrize("content", [TEXT.replace(b"0.1", b"0.2"), TEXT[: len(TEXT) // 2], b"<html>"])
def test_other_values_are_refused(cache: Path, mirror: Mirror, content: bytes, tmp_path: Path):
    (tmp_path / "yacht.csv").write_bytes(content)
    with pytest.raises(BadFileError, match="yacht"):
        obtain("yacht", tmp_path, None)
    mirror.answers[PATH] = ok(content)
    with pytest.raises(DataUnavailableError, match="not available"):
        obtain("yacht", None, mirror.url)
    assert not (cache / "yacht.csv.gz").exists()


def test_nowhere(cache: Path, mirror: Mirror):
    del mirror.answers[PATH]
    with pytest.raises(DataUnavailableError, match=r"404.*Put yacht.csv.gz"):
        obtain("yacht", None, mirror.url)
    with pytest.raises(DataUnavailableError, match="cache"):
        UCI(name="yacht", download=False).load()


def test_bad_fields_are_refused():
    with pytest.raises(ValueError, match="name must be one of concrete, energy"):
        UCI(name="boston")
    with pytest.raises(ValueError, match="split"):
        UCI(name="yacht", split=-1)


def test_the_published_splits():
    """The first of yacht's and of concrete's test sets begin so (their authors' index files)."""
    assert standard_test(1030, 0)[:5].tolist() == [87, 751, 655, 942, 778]
    for split in range(3):
        test = standard_test(308, split)
        assert len(set(test.tolist())) == len(test) == 31


def at_hand(name: str) -> np.ndarray:
    """The real table, or the test is skipped."""
    try:
        return obtain(name)
    except DataUnavailableError:
        pytest.skip(f"{name} is neither in PYROBBB_DATA nor in the cache")


@pytest.mark.parametrize("name", list(module.KNOWN))
def test_the_real_tables_where_they_are_at_hand(name: str):
    values = at_hand(name)
    assert values.shape == (KNOWN[name].rows, KNOWN[name].columns)


def test_a_gap_split_tests_the_middle_third_by_a_feature(cache: Path, mirror: Mirror, tmp_path: Path):
    (tmp_path / "yacht.csv").write_bytes(TEXT)
    data = UCI(name="yacht", root=tmp_path, gap=True, split=1).load()
    order = np.argsort(VALUES[:, 1])
    np.testing.assert_allclose(np.sort(data.test.y[:, 0]), np.sort(VALUES[order[7:13], 2]), rtol=1e-6)
    (tmp_path / "yacht.splits.json.gz").write_bytes(
        gzip.compress(json.dumps({"gap_test": [[3], [5, 6]]}).encode())
    )
    listed = UCI(name="yacht", root=tmp_path, gap=True, split=1).load()
    np.testing.assert_allclose(listed.test.y[:, 0], VALUES[[5, 6], 2], rtol=1e-6)
    for content, expected in ((b"[]", "a gzip file"), (gzip.compress(b"[]"), "lists .* as gap_test")):
        (tmp_path / "yacht.splits.json.gz").write_bytes(content)
        with pytest.raises(BadFileError, match=f"expected {expected}"):
            UCI(name="yacht", root=tmp_path, gap=True).load()
    with pytest.raises(ValueError, match="split must be less than 2, the number of features, got 2"):
        UCI(name="yacht", gap=True, split=2)


@pytest.mark.parametrize("name", list(module.KNOWN))
def test_which_features_give_the_same_gap_where_the_tables_are_at_hand(name: str):
    values = at_hand(name)
    tests = listed_gaps(name) or [gap_test(column) for column in values.T[:-1]]
    rows = [frozenset(test.tolist()) for test in tests]
    assert [KNOWN[name].first_gap(split) for split in range(len(rows))] == [rows.index(test) for test in rows]


@pytest.mark.parametrize("name", ["concrete", "energy", "kin8nm", "naval", "power", "protein", "yacht"])
def test_the_published_gaps_hold_the_middle_third_where_they_are_at_hand(name: str):
    values, listed = at_hand(name), listed_gaps(name)
    if listed is None:
        pytest.skip(f"the gap splits of {name} are not in PYROBBB_DATA")
    assert len(listed) == KNOWN[name].columns - 1
    for feature, test in enumerate(listed):
        column = values[:, feature]
        np.testing.assert_array_equal(np.sort(column[test]), np.sort(column[gap_test(column)]))
