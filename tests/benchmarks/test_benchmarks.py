"""The benchmarks' arithmetic, and that each contender takes steps; no timing decides anything here."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from benchmarks import growth, peers, prediction, report, steps
from benchmarks.timing import Spread, figures, in_turn, ratio, spread
from pyrobbb._support.random_state import isolated


def test_ratios_are_taken_round_by_round() -> None:
    slow_machine = [1.0, 10.0, 1.0]  # ten times slower in the second round
    assert ratio([2 * t for t in slow_machine], slow_machine) == Spread(2.0, 2.0, 2.0)
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3.0, 2.0, 4.0)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)
    assert figures("x", Spread(1.23456, 1.0, 2.0)) == {"x": 1.2346, "x_quartiles": [1.0, 2.0]}


def test_works_run_in_turn() -> None:
    calls: list[str] = []
    times = in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2, burst=2)
    assert "".join(calls) == 3 * "aaabbb"
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}


def test_the_number_of_weights_is_the_networks() -> None:
    assert growth.weights(20) == steps.network(20).num_weights


def test_each_contender_changes_its_parameters() -> None:
    with isolated(0):
        made, x, y = steps.training(20, "eager", batch=8)
        before = made.guide.loc.detach().clone()
        made.step(x, y, 0.1, 0.1)
        assert not torch.equal(made.guide.loc, before)
        for work in (steps.plain(20, 8), steps.ours(20, "off", batch=8), steps.usual(20, 8)):
            work()


@pytest.mark.parametrize("name", peers.PEERS)
def test_peers_take_steps_where_they_are_installed(name: str) -> None:
    works, notes = peers.make_peers(20)
    if name not in works:
        pytest.skip(f"{name}: {notes[name]}")
    with isolated(0):
        works[name]()


def test_an_absent_peer_is_named_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(peers, "version", absent)
    works, notes = peers.make_peers(20)
    assert not works
    assert notes["BLiTZ"] == "not installed (pip install --no-deps blitz-bayesian-pytorch)"


def test_products_are_those_of_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "IMAGES", 1000)
    monkeypatch.setattr(prediction, "images", lambda: torch.rand(1000, steps.INPUTS))
    for work in prediction.works(20, draws=2).values():
        work()


def test_targets_are_compared_with_what_was_found() -> None:
    said: list[str] = []
    found = {"step": {"2x1200": {"ratio_to_plain": 2.5, "ratio_to_pyro": 0.4}}}
    results = report.targets(found, said.append)
    assert {r["figure"]: r["holds"] for r in results} == {
        "step.2x1200.ratio_to_plain": True,
        "step.2x1200.ratio_to_pyro": False,
    }
    assert "missed" in said[-1]


def test_the_plot_is_written(tmp_path: Path) -> None:
    value = Spread(2.0, 1.5, 3.0)
    rows = [{"weights": n, "ours": value, "plain": value, "ratio": value} for n in (10, 100)]
    growth.draw([("weights", "weights", rows)], tmp_path / "there" / "growth.png")
    assert (tmp_path / "there" / "growth.png").stat().st_size > 1000


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_gpu_section_says_that_there_is_no_gpu() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--json", "never.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "CUDA" in done.stderr
    assert not Path("never.json").exists()


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "benchmarks.memory", "plain", "20", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["peak"] > 50
