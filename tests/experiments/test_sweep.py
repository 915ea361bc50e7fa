"""`-m`: every job in its own folder, as if alone; failures recorded, the finished skipped, all counted."""

import json
import math
import os
import pickle
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
import yaml
from omegaconf import OmegaConf

import seeds
from commands import command
from experiments._runner import sweep
from experiments._runner.build import build
from experiments._runner.compose import declared
from experiments._runner.sweep import UNRANKED, Tally, objective
from pyrobbb._support import checkpoint

TINY = ["data=noisy_sine", "data.N=40", "likelihood=normal", "model.hidden=[4]", "epochs=2", "batch_size=20"]
TINY += ["draws=5", "validation_draws=1", "observations=20", "figures=false", "report=false"]
PLUGINS = {
    "joblib": ("hydra_joblib_launcher", ["hydra.launcher.n_jobs=2"]),
    "submitit_local": ("hydra_submitit_launcher", []),
    "ray": (
        "hydra_ray_launcher",
        ["+hydra.launcher.ray.init.num_cpus=2", "+hydra.launcher.ray.remote.num_cpus=1"],
    ),
}


def launched(cwd, *arguments):
    """A sweep in `cwd` in a fresh interpreter with one thread: the finished process and its own number."""
    quiet = {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.run", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **quiet},
    )
    out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err), process.pid


def folder_of(root, **values):
    """The one run folder beneath `root` whose name has all these values."""
    words = [f"{key.replace('_', '.')}={value}" for key, value in values.items()]
    found = [p for p in root.glob("runs/run/*") if set(words) <= set(p.name.split(","))]
    assert len(found) == 1, found
    return found[0]


def records(root):
    """What the jobs of the latest sweep left, by number."""
    latest = max((root / "runs" / ".sweeps").iterdir())
    return [json.loads(path.read_text()) for path in sorted(latest.glob("job-*.json"))]


def guide_of(folder):
    return checkpoint.load(folder / "chain-0.pt", torch.device("cpu"))["guide"]


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


GRID = ["-m", *TINY, "prior.pi=0.5,2", "optim.lr=0.01,1e30", "seed=1,2"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Eight jobs: two that work, two whose free energy is not finite, four with a pi that is none."""
    root = tmp_path_factory.mktemp("sweep")
    done = command(root, "experiments.run", *GRID)
    return root, done


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One of the jobs that work, run by itself, from its own seed as on the command line."""
    folder = tmp_path_factory.mktemp("alone")
    config = declared("run", [*TINY, "prior.pi=0.5", "optim.lr=0.01", "seed=2"])
    with seeds.unshifted():
        build(config).execute(folder)
    return folder


def test_a_failed_job_is_recorded_and_the_others_go_on(swept):
    root, done = swept
    assert "8 jobs, 6 failed" in done.stdout.splitlines()
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    for seed in (1, 2):
        good = folder_of(root, prior_pi=0.5, optim_lr=0.01, seed=seed)
        assert (good / "metrics.json").exists()
        assert not (good / "error.json").exists()
        bad = folder_of(root, prior_pi=2, optim_lr=0.01, seed=seed)
        left = json.loads((bad / "error.json").read_text())
        assert left["error"] == "prior: pi must lie in [0, 1], got 2"
        assert left["config"]["seed"] == seed
        assert [p.name for p in bad.iterdir()] == ["error.json"]  # a run that was never begun
        infinite = folder_of(root, prior_pi=0.5, optim_lr="1e+30", seed=seed)
        left = json.loads((infinite / "error.json").read_text())
        assert left["kind"] == "NonFiniteLossError"
        assert "not finite in epoch 1" in left["error"]
        assert f"{infinite.relative_to(root)}: {left['error'][:60]}" in done.stdout


def test_nothing_leaks_from_job_to_job(swept, alone):
    assert same(guide_of(folder_of(swept[0], prior_pi=0.5, optim_lr=0.01, seed=2)), guide_of(alone))


def test_a_sweep_started_again_skips_what_is_finished(swept):
    root, _ = swept
    one, two = (folder_of(root, prior_pi=0.5, optim_lr=0.01, seed=seed) for seed in (1, 2))
    (one / "error.json").write_text('{"error": "of an earlier attempt"}')
    (two / "metrics.json").unlink()  # stopped when it was trained, but not yet evaluated
    (two / "check.json").write_text("{}")  # a verdict on that state
    (two / "pruning").mkdir()
    (two / "pruning" / "record.json").write_text("{}")
    (two / "pruning" / "error.png").touch()
    damaged = folder_of(root, prior_pi=0.5, optim_lr="1e+30", seed=1)
    whole = (damaged / "config.yaml").read_text()
    (damaged / "config.yaml").write_text("a: [1")
    before = {
        path: path.stat().st_mtime_ns for path in one.rglob("*") if path.suffix in (".pt", ".json", ".nc")
    }
    trained = guide_of(two)
    done = command(root, "experiments.run", *GRID)
    (damaged / "config.yaml").write_text(whole)
    assert "config.yaml is not a configuration" in done.stdout
    assert "8 jobs, 6 failed" in done.stdout.splitlines()
    assert not (two / "check.json").exists()
    assert not any((two / "pruning").iterdir())
    del before[one / "error.json"]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not (one / "error.json").exists()
    assert (two / "metrics.json").exists()
    assert same(guide_of(two), trained)


def test_an_error_never_goes_into_the_folder_of_another_run(swept):
    root, _ = swept
    other = folder_of(root, prior_pi=0.5, optim_lr=0.01, seed=1)
    place = "folder='" + str(other.relative_to(root)) + "'"
    done = command(root, "experiments.run", "-m", *TINY, "prior.pi=0.5", "optim.lr=0.02", "seed=1", place)
    assert done.returncode == 1
    assert "holds a run with another configuration" in done.stdout
    assert not (other / "error.json").exists()


@pytest.mark.parametrize("launcher", PLUGINS)
def test_launchers_find_the_same_posterior(launcher, alone, tmp_path):
    plugin, options = PLUGINS[launcher]
    for module in (f"hydra_plugins.{plugin}", launcher.partition("_")[0]):
        if find_spec("hydra_plugins") is None or find_spec(module) is None:
            pytest.skip(f"{module} is not installed; docs/howto/sweep.md says how to install it")
    same_again = [*TINY, "optim.lr=0.01", "seed=2"]
    done, pid = launched(
        tmp_path, "-m", *same_again, "prior.pi=0.5,2", f"hydra/launcher={launcher}", *options
    )
    assert "2 jobs, 1 failed" in done.stdout.splitlines(), done.stderr
    assert done.returncode == 1
    assert same(guide_of(folder_of(tmp_path, prior_pi=0.5)), guide_of(alone))
    assert (folder_of(tmp_path, prior_pi=2) / "error.json").exists()
    assert all(job["process"] != pid for job in records(tmp_path))


def test_optuna_minimises_the_objective_and_survives_a_failed_job(tmp_path):
    if find_spec("hydra_plugins") is None or find_spec("hydra_plugins.hydra_optuna_sweeper") is None:
        pytest.skip("hydra-optuna-sweeper is not installed; docs/howto/sweep.md says how to install it")
    search = ["hydra/sweeper=optuna", "hydra/sweeper/sampler=grid", "hydra.sweeper.n_trials=4"]
    done = command(tmp_path, "experiments.run", "-m", *TINY, "prior.pi=0.5,2", "optim.lr=0.01,0.1", *search)
    assert "4 jobs, 2 failed" in done.stdout.splitlines(), done.stderr
    (results,) = tmp_path.glob("runs/.sweeps/*/optimization_results.yaml")
    found = yaml.safe_load(results.read_text())
    metrics = [json.loads(p.read_text()) for p in tmp_path.glob("runs/run/*/metrics.json")]
    assert found["best_value"] == min(objective(m)[1] for m in metrics)
    assert float(found["best_params"]["prior.pi"]) == 0.5


def test_torchrun_does_not_start_a_sweep_in_each_process(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit) as stopped:
        Tally().on_multirun_start(OmegaConf.create({}))
    assert stopped.value.code == 2
    assert "error: -m under torchrun" in capsys.readouterr().err


def test_jobs_of_an_earlier_sweep_in_the_same_folder_are_not_counted(tmp_path, capsys):
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
    (tmp_path / "job-0.json").write_text('{"folder": "a", "error": "of an earlier sweep"}')
    Tally().on_multirun_start(config)
    (tmp_path / "job-1.json").write_text('{"folder": "b"}')
    Tally().on_multirun_end(config)
    assert capsys.readouterr().out == "1 jobs, 0 failed\n"


def test_a_second_sweep_in_the_same_folder_is_refused(tmp_path, capsys):
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
    first = Tally()
    first.on_multirun_start(config)
    pickle.dumps(first)  # as launchers do
    (tmp_path / "job-0.json").write_text('{"folder": "a", "error": "of the first"}')
    with pytest.raises(SystemExit, match="2"):
        Tally().on_multirun_start(config)
    assert "another sweep is running in " in capsys.readouterr().err
    with pytest.raises(SystemExit, match="1"):
        first.on_multirun_end(config)
    assert capsys.readouterr().out.startswith("1 jobs, 1 failed")
    Tally().on_multirun_start(config)
    Tally().on_multirun_end(config)


def test_a_sweep_whose_folder_cannot_be_made_is_refused(tmp_path, capsys):
    (tmp_path / "file").touch()
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path / "file" / "sweep")}}})
    with pytest.raises(SystemExit, match="2"):
        Tally().on_multirun_start(config)
    said = capsys.readouterr().err
    assert f"cannot make the folder {tmp_path}/file/sweep: Not a directory; give this one another " in said


def test_a_job_that_cannot_be_counted_ends_the_sweep(tmp_path, monkeypatch, capsys):
    of_job = {"sweep": {"dir": str(tmp_path / "full")}, "job": {"num": 0}, "overrides": {"task": ["seed=1"]}}
    (tmp_path / "full").touch()  # as on a full disk, nothing can be written there
    monkeypatch.setattr(sweep.HydraConfig, "get", lambda: OmegaConf.create(of_job))
    with pytest.raises(OSError, match="full"):
        sweep.attempt(OmegaConf.create({"folder": "runs/a"}), lambda: {"test": {"rmse": 0.4}})
    assert capsys.readouterr().out.startswith("runs/a: no measure, ")


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (
            {"validation": {"error": 2.5}, "test": {"error": 1.0}, "free_energy": 9.0},
            ("validation error (%)", 2.5),
        ),
        ({"validation": {"rmse": 0.3}, "free_energy": 9.0}, ("validation rmse", 0.3)),
        ({"test": {"rmse": 0.4}, "free_energy": 9.0}, ("free energy (nats per datum)", 9.0)),
        ({"free_energy": 9.0}, ("free energy (nats per datum)", 9.0)),
        ({"test": {"error": 1.0}, "train_loss": 0.5}, ("training loss (nats per datum)", 0.5)),
    ],
)
def test_objective(metrics, expected):
    assert objective(metrics) == expected
    assert math.isfinite(objective(metrics)[1])


def test_the_test_set_never_judges():
    name, value = objective({"test": {"error": 1.0}})
    assert name == UNRANKED
    assert math.isnan(value)
