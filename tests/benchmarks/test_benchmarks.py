"""The benchmarks' arithmetic, and that each contender takes steps; no timing decides anything here."""

import json
import signal
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import estimators, gpu, growth, guides, parts, peers, prediction, report, steps
from benchmarks.timing import Spread, figures, in_turn, ratio, spread
from commands import command, interpreter
from paths import ROOT
from pyrobbb._support.random_state import isolated
from pyrobbb.data.dataset import Split
from pyrobbb.inference import NaturalGradient


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


@pytest.mark.parametrize("name", estimators.NETWORKS)
def test_noise_on_the_outputs_has_the_same_mean_gradient_and_less_variance(name: str) -> None:
    z, variance = estimators.gradients(name, draws=100, fast="eager")
    assert 0 < z < 6
    assert 0 < variance < 0.2  # a twelfth with ten thousand draws


def test_moments_of_gradients_are_those_of_all_draws_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    gradients = estimators.agreement.gradients

    def kept(*given: Any) -> Any:
        seen.append(gradients(*given))
        return seen[-1]

    monkeypatch.setattr(estimators.agreement, "gradients", kept)
    net, rows = torch.nn.Linear(2, 2), Split(torch.randn(5, 2), torch.tensor([0, 1, 1, 0, 1]))
    directions = torch.eye(12, dtype=torch.float64)[:3]
    moments = estimators._moments(net, rows, "weights", 7, directions, "eager")
    every = torch.stack([torch.cat(each[2:]) for each in seen]).double()
    every = torch.cat([every[:, :3], every], dim=1)
    torch.testing.assert_close(moments.mean, every.mean(0))
    torch.testing.assert_close(moments.variance, every.var(0))


def test_each_contender_changes_its_parameters() -> None:
    with isolated(0):
        made, x, y = steps.training(20, "eager", batch=8)
        before = made.guide.loc.detach().clone()
        made.step(x, y, 0.1, 0.1)
        assert not torch.equal(made.guide.loc, before)
        for work in (
            steps.plain(20, 8),
            steps.ours(20, "off", batch=8),
            steps.ours(20, "eager", batch=8, inference=NaturalGradient()),
            steps.usual(20, 8),
        ):
            work()


@pytest.mark.parametrize("samples", [1, 2])
def test_each_part_of_a_step_runs_alone(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrobbb.accelerated.dispatch._SMALL", 0)
    with isolated(0):
        for work in parts.works(20, samples, "eager").values():
            work()


def test_richer_guides_and_a_last_layer_take_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guides, "WIDTHS", {"small": (4, 3, 3)})
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, guides.CLASSES))
    monkeypatch.setattr(guides, "TRAINED", {"small": (lambda: net, "2.*", (8, 4))})
    said: list[str] = []
    found = report.of_guides(1, said.append)
    assert list(found["small"]) == list(guides.GUIDES)
    assert list(found["last layer of small"]) == ["forward", "step"]
    assert found["small"]["mean field"]["ratio"] == found["last layer of small"]["forward"]["ratio"] == 1.0
    assert len(said) == 1 + len(guides.GUIDES) + 2


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


def test_the_plot_has_a_curve_for_each_network() -> None:
    value = Spread(2.0, 1.5, 3.0)
    rows = [{"weights": n, "ours": value, "plain": value, "ratio": value} for n in (10, 100)]
    figure = growth.plot([("weights", "weights", rows)])
    assert figure.axes[0].get_legend_handles_labels()[1] == ["pyrobbb", "plain network"]


def test_the_gpu_section_says_that_there_is_no_gpu() -> None:
    done = command(ROOT, "benchmarks.gpu", "never", "--first")
    assert done.returncode == 2
    assert "CUDA" in done.stderr
    assert not (ROOT / "never").exists()


def test_the_gpu_sections_are_kept_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was measured is not measured again; what fails or takes too long is named, and the rest runs."""
    calls: list[str] = []

    def section(name: str, result: Any = None, holds: bool = True) -> gpu.Section:
        def measure(folder: Path, rounds: int) -> dict[str, Any]:
            calls.append(name)
            if isinstance(result, BaseException):
                raise result
            if result == "long":
                time.sleep(30)
            return {"n": rounds}

        return gpu.Section(measure, True, lambda found: (holds, f"n is {found['n']}"))

    made = {
        "good": section("good"),
        "bad": section("bad", holds=False),
        "broken": section("broken", RuntimeError("no such kernel")),
        "long": section("long", "long"),
        "last": section("last"),
    }
    monkeypatch.setattr(gpu, "SECTIONS", made)
    monkeypatch.setattr(gpu, "MINUTES", 0.04)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    for _ in range(2):
        found = json.loads((tmp_path / "gpu.json").read_text()) if (tmp_path / "gpu.json").exists() else {}
        assert not gpu.run(list(made), tmp_path, 3, found)
    assert calls == ["good", "bad", "broken", "long", "last", "broken", "long"]
    said = [line for line in capsys.readouterr().out.splitlines() if line[:1].isupper()][:5]
    assert said[:3] == ["GOOD good: n is 3", "BAD bad: n is 3", "FAILED broken: RuntimeError: no such kernel"]
    assert said[3].startswith("UNFINISHED long")
    assert said[4] == "GOOD last: n is 3"


def test_what_is_reckoned_for_a_gpu_follows_the_counted_kernels() -> None:
    """182 MB besides the products' at 4.3 TB/s are 42 us, 17 launches 26, the products 87."""
    assert gpu.reckoned() == pytest.approx(0.155, abs=0.01)
    assert gpu.reckoned("Adam, TF32") == pytest.approx(0.12, abs=0.01)


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    found = json.loads(interpreter("-m", "benchmarks.memory", "plain", "20", "0").stdout)
    assert found["peak"] > 50
