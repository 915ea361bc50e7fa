"""The commands of tutorials and how-tos run as they are written, with fewer and smaller fits."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from commands import command
from paths import ROOT

PAGES = [page for folder in ("tutorials", "howto") for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
SMALL = ["model.hidden=[8]", "epochs=1", "draws=4", "validation_draws=1", "figures=false", "report=false"]
DIGITS = ["data=blobs", *SMALL]


def commands(page: Path) -> list[str]:
    """The commands of a page's blocks, each on one line."""
    blocks = re.findall(r"^```\n((?:python|torchrun) .*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def given_rows(folder: Path) -> None:
    """What the page on large data takes as given."""
    random = np.random.default_rng(0)
    np.save(folder / "x.npy", random.integers(0, 255, (400, 6), dtype=np.uint8))
    np.save(folder / "y.npy", random.integers(0, 3, 400))


def given_table(folder: Path) -> None:
    """What the page on tables takes as given, and the file that it shows."""
    page = (ROOT / "docs" / "howto" / "table.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    (folder / "houses.yaml").write_text(shown, encoding="utf-8")
    rows = [f"{size},{'Ulm' if size % 2 else 'Bonn'},{100 + 4 * size}" for size in range(20, 80)]
    (folder / "houses.csv").write_text("\n".join(["size,town,price", *rows]), encoding="utf-8")


def nothing(folder: Path) -> None:
    """The command needs nothing."""


# by the words a command begins with: what makes it small, what it needs, what it must print, its exit status
Case = tuple[list[str], Callable[[Path], None], str, int]
CASES: dict[str, Case] = {
    "python -m experiments.run data=on_disk": (
        ["data.validation=50", "model.hidden=[8]", *SMALL[1:]], given_rows, "runs/run/", 0,
    ),
    "python -m experiments.run prior=deterministic": (DIGITS, nothing, "runs/point: metrics.json", 0),
    "python -m experiments.run model=trained": (
        ["data=blobs", *SMALL[1:]], nothing, "ignoring the inputs", 0,
    ),
    "torchrun --standalone": (DIGITS, nothing, "runs/mnist/", 0),
    "python -m experiments.run -m experiment=mnist prior=": (
        [*DIGITS, "seed=1"], nothing, "4 jobs, 0 failed", 0,
    ),
    "python -m experiments.summarise runs/mnist": ([], nothing, "runs/mnist: summary.csv", 0),
    "python -m experiments.run -m houses.yaml": (
        [*SMALL, "inference=svi,laplace", "seed=1"], given_table, "2 jobs, 0 failed", 0,
    ),
    "python -m experiments.summarise runs/houses": ([], nothing, "runs/houses: summary.csv", 0),
    "python -m experiments.run -m name=curve": (
        ["epochs=2", "draws=4", *SMALL[-2:]], nothing, "9 jobs, 3 failed", 1,
    ),
    "python -m experiments.run -m experiment=mnist 'optim.lr=tag": (
        [*DIGITS, "hydra.sweeper.n_trials=2"], nothing, "2 jobs, 0 failed", 0,
    ),
}  # fmt: skip
WRITTEN = [(page, line) for page in PAGES for line in commands(page)]


def case_of(line: str) -> str:
    (found,) = [begin for begin in CASES if line.startswith(begin)]
    return found


def test_every_case_is_of_a_command_that_is_written() -> None:
    assert {case_of(line) for _, line in WRITTEN} == set(CASES)


@pytest.mark.parametrize("page", sorted({page for page, _ in WRITTEN}), ids=lambda page: page.stem)
def test_the_page_s_commands_end_as_they_should(page: Path, tmp_path: Path) -> None:
    for line in commands(page):
        smaller, prepare, says, status = CASES[case_of(line)]
        prepare(tmp_path)
        words = shlex.split(line)
        if "hydra/launcher=ray" in words:  # tests/experiments/test_sweep.py has the launchers
            words = [word for word in words if "hydra" not in word]
        if words[:2] == ["python", "-m"]:
            done = command(tmp_path, *words[2:], *smaller)
        else:
            words[0] = str(Path(sys.executable).parent / words[0])
            done = subprocess.run(
                [*words, *smaller], cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
                capture_output=True, timeout=600, check=False,
            )  # fmt: skip
        assert done.returncode == status, done.stderr
        assert says in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
