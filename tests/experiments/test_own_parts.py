"""Parts of a user's own in YAML: modules of the working folder, beside ours of the same names."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml

from experiments._runner.build import ConfigError, build
from experiments._runner.compose import compose, fitted
from experiments._runner.folder import MOVED, claim, differences
from experiments._runner.reopen import reopen
from experiments.summarise import summarise
from paths import ROOT

TINY = ["data=blobs", "data.N=90", "model.hidden=[8]", "epochs=2", "batch_size=30", "draws=5"]
TINY += ["observations=5", "export_weights=5", "report=false"]

PARTS = """
import torch
from torch import nn
from pyrobbb.bnn import BayesianNetwork
from pyrobbb.data import Blobs
from pyrobbb.mean_field import MeanFieldNormal
from pyrobbb.priors import Normal


class MyData:
    def __init__(self, rows=90):
        self.rows = rows

    def load(self):
        return Blobs(N=self.rows).load()


class MyPrior(Normal):
    pass


class MyGuide(MeanFieldNormal):
    def __init__(self, model):
        super().__init__(model)


def my_network(spec, prior, likelihood, width):
    return BayesianNetwork(nn.Sequential(nn.Linear(2, width), nn.Linear(width, 3)), prior, likelihood, spec.N)
"""
OWN = """
defaults: [run, _self_]
name: own
data: {_target_: my_parts.MyData, rows: 60}
prior: {_target_: my_parts.MyPrior, sigma: 0.5}
guide: {_target_: guides.mine.MyGuide}
model: {_target_: my_parts.my_network, width: 4}
epochs: 1
batch_size: 30
draws: 2
observations: 5
export_weights: 5
folder: out
"""


def run(cwd, *arguments):
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )


def test_a_working_folder_with_models_guides_and_parts_of_its_own(tmp_path):
    (tmp_path / "my_parts.py").write_text(PARTS)
    (tmp_path / "models.py").write_text("raise RuntimeError('the wrong models')\n")
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "__init__.py").write_text("raise RuntimeError('the wrong guides')\n")
    (tmp_path / "guides" / "mine.py").write_text("from my_parts import MyGuide\n")
    (tmp_path / "own.yaml").write_text(OWN)
    done = run(tmp_path, "experiments.run", "own.yaml")
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["parameters"] == (2 * 4 + 4) + (4 * 3 + 3)
    ours = run(tmp_path, "experiments.run", *TINY, "folder=ours")
    assert ours.returncode == 0, ours.stderr


def test_a_part_of_ones_own_does_not_take_the_keys_of_the_one_it_replaces(tmp_path, monkeypatch):
    (tmp_path / "own_data.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    run = build(compose("mnist", ["data._target_=own_data.MyData", "+data.rows=45"], folder=tmp_path))
    assert run.data.rows == 45
    with pytest.raises(ConfigError, match="unexpected keyword argument 'limit'"):  # asked for, not inherited
        build(compose("mnist", ["data._target_=own_data.MyData", "data.limit=3"], folder=tmp_path))
    run = build(compose("mnist", ["guide._target_=own_data.MyGuide"], folder=tmp_path))
    assert run.guide.keywords == {}


def test_real_targets_without_a_task_say_what_to_do(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((8, 2), np.float32))
    np.save(tmp_path / "y.npy", np.linspace(0, 1, 8))
    files = ["data=on_disk", f"data.x={tmp_path / 'x.npy'}", f"data.y={tmp_path / 'y.npy'}"]
    done = run(tmp_path, "experiments.run", *files, "likelihood=normal", "folder=out")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "for real targets use task=regression (data.task=regression on the command line)" in done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = compose("mnist", TINY, folder=tmp_path_factory.mktemp("runs") / "default")
    fitted(config)
    return config


def test_a_configuration_in_the_names_of_version_0_1_opens_and_resumes(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "old")
    path = tmp_path / "old" / "config.yaml"
    text = path.read_text()
    for before, now in MOVED.items():
        text = text.replace(f"_target_: {now}.", f"_target_: {before}.")
    assert text.count("guides.") == 2
    assert "pyrobbb.kl.Uniform" in text
    content = yaml.safe_load(text)
    del content["vectorize"]  # a key younger than the folder, with the default that `Run` has
    path.write_text(yaml.safe_dump(content))
    old, new = reopen(tmp_path / "old"), reopen(finished.folder)
    x = new.data.test.x
    assert torch.equal(old.posterior.predict(x, draws=2).probs, new.posterior.predict(x, draws=2).probs)
    again = finished.copy()
    again.folder = str(tmp_path / "old")
    assert differences(again) == []
    assert claim(again) == tmp_path / "old"


def test_the_default_run_and_the_same_as_a_job_count_once(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "default")
    shutil.copytree(finished.folder, tmp_path / "seed=1")
    words = summarise(tmp_path)
    assert "folders that repeat the run of another and are not counted again: 1" in words
    row = next(line.split() for line in words.splitlines() if line.startswith("default"))
    assert row[2:4] == ["-", "1"]
    assert len((tmp_path / "summary.csv").read_text().splitlines()) == 3  # each folder has its line


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_tab_completes_keys_and_names():
    script = f"""
        source {ROOT}/experiments/completion.bash
        COMP_LINE='{sys.executable} -m experiments.run prior=la'
        COMP_WORDS=({sys.executable} -m experiments.run prior=la); COMP_CWORD=3
        _experiments_run; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.split() == ["prior=laplace"], done.stderr
