"""The history file: it grows row by row, comes back as it was, and survives a crash in mid-line."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_fakes import law
from pyrobbb.training import history
from pyrobbb.training.history import Epoch, History

rows = st.lists(
    st.builds(
        Epoch,
        st.integers(0, 9),
        st.integers(1, 999),
        *[st.floats(allow_nan=False)] * 7,
    ),
    max_size=4,
)
ROW = Epoch(0, 1, 3.5, 2.0, 1.5, math.nan, math.nan, 1e-3, 0.25)


def same(ours: list[Epoch], theirs: list[Epoch]) -> bool:
    return repr(ours) == repr(theirs)  # NaN is not itself


@law
@given(rows, rows)
def test_written_and_appended_rows_come_back(
    tmp_path_factory: pytest.TempPathFactory, first: list[Epoch], then: list[Epoch]
) -> None:
    path = tmp_path_factory.mktemp("history") / "history.csv"
    history.write(path, first)
    assert history.read(path) == first
    for i, row in enumerate(then):
        history.append(path, row)
        assert history.read(path) == first + then[: i + 1]


def test_columns_and_values_as_a_spreadsheet_sees_them(tmp_path: Path) -> None:
    history.write(tmp_path / "history.csv", [ROW])
    assert (tmp_path / "history.csv").read_text().splitlines() == [
        "chain,epoch,free_energy,kl,nll,validation_error,validation_nll,lr,seconds",
        "0,1,3.5,2.0,1.5,nan,nan,0.001,0.25",
    ]
    assert same(history.read(tmp_path / "history.csv"), [ROW])


def test_a_file_cut_anywhere_gives_the_rows_that_were_whole(tmp_path: Path) -> None:
    """A row that lost its last digits must not come back with another number."""
    path = tmp_path / "history.csv"
    all_rows = [Epoch(0, e, 3.25, 2.125, 1.125, 12.5, 0.375, 0.0125, 10.0625) for e in (1, 2, 3)]
    history.write(path, all_rows[:1])
    for row in all_rows[1:]:
        history.append(path, row)
    whole = path.read_bytes()
    seen = set()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        read = history.read(path)
        assert read == all_rows[: len(read)], whole[:length]
        seen.add(len(read))
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epoch\nx\n", "it has no column 'chain'"),
        ("{head}\n0,one\n", "line 2: invalid literal for int() with base 10: 'one'"),
        ("{head}\n0,1,\udcff\n", r"line 2: could not convert string to float: '\\xff'"),
        ("{head}\n0,1\n", "line 2: could not convert string to float: ''"),
    ],
)
def test_what_is_wrong_in_a_history_is_said_in_words(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    history.write(path, [])
    path.write_text(text.replace("{head}", path.read_text().strip()), errors="surrogateescape")
    with pytest.raises(ValueError, match=f"is not a training history: {re.escape(said)}$"):
        history.read(path)


def test_no_file_is_an_empty_history(tmp_path: Path) -> None:
    assert history.read_if_there(tmp_path / "absent.csv") == []
    with pytest.raises(FileNotFoundError):
        history.read(tmp_path / "absent.csv")


def test_writing_replaces(tmp_path: Path) -> None:
    history.write(tmp_path / "history.csv", [ROW, ROW])
    history.write(tmp_path / "history.csv", [])
    assert history.read(tmp_path / "history.csv") == []


def test_a_finished_history_that_was_cut_is_remarked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.csv"
    ends = {(0, 1): 3.0, (0, 2): 0.5, (1, 1): 4.0, (1, 2): 0.25}
    history.write(path, [replace(ROW, chain=c, epoch=e, free_energy=f) for (c, e), f in ends.items()])
    assert len(history.read_finished(path, {"free_energy": 0.375})) == 4
    assert len(history.read_finished(path, {"train_loss": 0.375})) == 4
    weighted = {"free_energy": 0.4375, "chain_weights": [0.75, 0.25]}
    assert len(history.read_finished(path, weighted)) == 4
    assert history.read_finished(tmp_path / "absent.csv", {"free_energy": 0.375}) == []
    assert not caplog.messages
    path.write_text(path.read_text()[:-3])
    assert len(history.read_finished(path, {"free_energy": 0.375})) == 3
    said = "was cut off, or belongs to another run: its last loss is 2.25, the run's is 0.375"
    assert caplog.messages == [f"{path} {said}"]
    caplog.clear()
    path.write_text(path.read_text()[:20])
    assert history.read_finished(path, {"free_energy": 0.375}) == []
    said = "was cut off, or belongs to another run: its last loss is nan, the run's is 0.375"
    assert caplog.messages == [f"{path} {said}"]


def test_the_loss_at_the_end_is_the_mean_of_the_last_twentieth_of_the_epochs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One epoch of a small data set is one step: its loss is a single draw's."""
    rows = [replace(ROW, epoch=e, free_energy=float(e), kl=-float(e)) for e in range(1, 101)]
    assert history.final_mean(rows) == 98  # the mean of 96 to 100
    assert history.final_mean(rows, "kl") == -98
    assert history.final_mean(rows[:39]) == 39
    path = tmp_path / "history.csv"
    history.write(path, rows)
    for told in (98.0, 100.0):  # the second by earlier versions
        assert len(history.read_finished(path, {"free_energy": told})) == 100
    assert not caplog.messages
    history.read_finished(path, {"free_energy": 97.0})
    assert caplog.messages


def test_seconds_add_up() -> None:
    assert History().train_seconds == 0
    assert History([ROW, ROW]).train_seconds == 0.5
    assert History([ROW, ROW], finishing=2.0).train_seconds == 2.5


def test_what_is_printed_of_a_long_history_is_its_length_and_last_epoch() -> None:
    assert repr(History()) == "History of 0 epochs"
    last = replace(ROW, epoch=600)
    assert repr(History([ROW] * 599 + [last])) == f"History of 600 epochs, the last {last}"
