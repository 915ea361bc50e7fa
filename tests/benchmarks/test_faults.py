"""A few of the faults of `benchmarks/faults.py`, and those that a test can make by itself."""

import errno
import re
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from commands import command
from engine_fakes import classes
from paths import ROOT
from pyrobbb import BayesianNetwork, likelihoods, priors
from pyrobbb._support import checkpoint, files
from pyrobbb.evaluation import arviz_io
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.training import history
from pyrobbb.training.progress import Printed, Silent
from pyrobbb.training.trainer import Training
from terminals import Terminal


def test_killed_runs_end_the_same() -> None:
    done = command(ROOT, "benchmarks.faults", "--times", "2", "kills")
    assert done.returncode == 0, done.stderr
    (kills,) = done.stdout.splitlines()[2:]
    runs = re.search(r"\| (\d+) of (\d+) runs resumed to the same end", kills)
    assert runs is not None, kills
    assert runs[1] == runs[2]


# A file system that takes no more


@contextmanager
def no_larger_than(size: int) -> Iterator[None]:
    """The kernel refuses to let any file grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


LIMIT = 1_000_000


def large(**options: Any) -> Training:
    """A training whose checkpoint is larger than the limit."""
    data = classes(12, validation=4)
    model = BayesianNetwork(
        nn.Sequential(nn.Linear(3, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 3)),
        priors.Normal(),
        likelihoods.Categorical(),
        12,
    )
    optim = partial(torch.optim.SGD, lr=1e-3)
    return Training(
        model,
        MeanFieldNormal(model),
        data,
        epochs=2,
        batch_size=12,
        device="cpu",
        fast="off",
        optim=optim,
        **options,
    )


def test_a_checkpoint_that_does_not_fit_on_the_disk(tmp_path: Path) -> None:
    class Fills(Silent):
        def epoch(self, row: Any) -> None:
            if row.epoch == 2:
                full.__enter__()

    run, full = large(folder=tmp_path, checkpoint_seconds=0.0, progress=Fills()), no_larger_than(LIMIT)
    try:
        with pytest.raises(OSError, match=r"cannot write .*chain-0\.pt: File too large") as caught:
            run.run()
    finally:
        full.__exit__(None, None, None)
    assert caught.value.errno == errno.EFBIG
    assert checkpoint.load(tmp_path / "chain-0.pt")["epoch"] == 1
    assert not list(tmp_path.glob(".*.part"))


def write_posterior(path: Path) -> None:
    draws = torch.randn(1, 500_000, generator=torch.Generator().manual_seed(0)).numpy()
    arviz_io.save(arviz_io.to_arviz({"posterior": {"w": draws}}, dims={}), path)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: files.write_text(path, "a" * 2 * LIMIT),
        lambda path: checkpoint.save(path, {"small": [torch.zeros(100)] * 3, "large": torch.zeros(LIMIT)}),
        write_posterior,
    ],
    ids=["text", "checkpoint", "posterior"],
)
def test_what_does_not_fit_leaves_what_was_there(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with no_larger_than(LIMIT), pytest.raises(OSError, match=f"cannot write {path}: File too large"):
        write(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "before"


def test_a_line_of_history_that_does_not_fit(tmp_path: Path) -> None:
    rows = large().run().rows
    path = tmp_path / "history.csv"
    history.write(path, rows)
    with (
        no_larger_than(path.stat().st_size + 20),
        pytest.raises(OSError, match=f"cannot write {path}: File too"),
    ):
        history.append(path, rows[0])
    assert history.read(path) == rows  # half a line is not a row


def test_a_damaged_history_is_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = large(folder=tmp_path).run().rows
    path = tmp_path / "history.csv"
    path.write_text(path.read_text().replace("epoch", "ehcop"))
    with pytest.raises(ValueError, match=r"history\.csv is not a training history"):
        history.read(path)
    again = large(folder=tmp_path)
    assert again.resume()
    again.run()
    assert "it will be rewritten from the checkpoints" in caplog.text
    assert history.read(path) == rows


@pytest.mark.parametrize("place", ["a file", "/proc/nowhere"])
def test_a_folder_that_cannot_be(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "file" / "run" if place == "a file" else Path(place)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=f"cannot make the folder {folder}: "):
        large(folder=folder).run()


def test_what_a_killed_writer_left_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / ".chain-0.pt.123-abcd.part").write_text("half")
    (tmp_path / "mine.part").write_text("mine")
    files.remove_partial_files(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.part"]


# A clock that jumps


def test_the_progress_bar_survives_a_clock_that_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = iter(range(10_000))
    monkeypatch.setattr(time, "time", lambda: 1e9 + (-1) ** next(jumps) * 3e7)
    terminal = Terminal()
    large(progress=Printed(terminal)).run()
    assert "epoch 2/2" in terminal.getvalue()


def test_durations_are_taken_from_a_clock_that_does_not_jump() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for room in ("pyrobbb", "models", "guides", "experiments")
        for path in sorted((ROOT / room).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\btime\.time\(|from time import .*\btime\b|datetime\.now", line)
    ]
    assert wrong == []
