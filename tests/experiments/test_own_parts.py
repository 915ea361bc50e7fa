"""Parts of a user's own in YAML: modules of the working folder, beside ours of the same names."""

import json
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from commands import command
from experiments import check, report
from experiments import run as run_module
from experiments._runner.build import ConfigError, build, changes, component, with_place
from experiments._runner.compose import compose, fitted
from experiments._runner.folder import MOVED, claim, differences
from experiments._runner.reopen import reopen
from experiments.summarise import summarise
from paths import ROOT
from pyrobbb._support import checkpoint
from pyrobbb._support.checkpoint import CheckpointError
from seeds import FIXED

TINY = ["data=blobs", "data.N=90", "model.hidden=[8]", "epochs=2", "batch_size=30", "draws=5"]
QUICK = ["figures=false", "report=false"]
TINY += ["observations=5", "export_weights=5", *QUICK]

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


class MyNet(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 3))

    def forward(self, x):
        return self.layers(x)


class Needs(MyNet):
    def __init__(self, width):
        super().__init__(width)


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


def test_a_working_folder_with_models_guides_and_parts_of_its_own(tmp_path):
    (tmp_path / "my_parts.py").write_text(PARTS)
    (tmp_path / "models.py").write_text("raise RuntimeError('the wrong models')\n")
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "mine.py").write_text("from my_parts import MyGuide\n")
    (tmp_path / "own.yaml").write_text(OWN)
    done = command(tmp_path, "experiments.run", "own.yaml", *QUICK)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["parameters"] == (2 * 4 + 4) + (4 * 3 + 3)
    ours = command(tmp_path, "experiments.run", *TINY, "folder=ours")
    assert ours.returncode == 0, ours.stderr


NAMED_AS_OURS = """
from torch import nn
from pyrobbb.bnn import BayesianNetwork


def usernet(spec, prior, likelihood):
    return BayesianNetwork(nn.Linear(2, 3), prior, likelihood, spec.N)


def mlp(spec, prior, likelihood, hidden, activation):
    return usernet(spec, prior, likelihood)
"""


@pytest.fixture
def own_models(tmp_path):
    """A folder with a package `models` of the user's own, one module of which is named as ours."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("MINE = 1\n")
    (tmp_path / "models" / "mlp.py").write_text(NAMED_AS_OURS)
    return tmp_path


def test_a_models_folder_of_ones_own_is_ones_own_also_where_a_file_is_named_as_ours(own_models):
    words = [word for word in TINY if not word.startswith("model.")]
    for named, parameters in (("usernet", 9), (None, 2 * 8 + 8 + 8 * 3 + 3)):
        model = [f"model._target_=models.mlp.{named}"] if named else ["model.hidden=[8]"]
        done = command(own_models, "experiments.run", *words, *model, f"folder={named}")
        assert done.returncode == 0, done.stderr
        assert json.loads((own_models / f"{named}/metrics.json").read_text())["parameters"] == parameters
    programs = {
        "ours_first": "import experiments; from models import MINE; from models.mlp import usernet; "
        "experiments.reopen('usernet', trust=True)",
        "theirs_first": "from models.mlp import usernet; from experiments import reopen; "
        "assert reopen('None').posterior.model.num_weights == 51",
    }
    for name, program in programs.items():
        (own_models / f"{name}.py").write_text(program)
        done = command(own_models, name)
        assert done.returncode == 0, done.stderr


def test_a_name_that_was_ours_and_is_a_user_s_as_well_is_refused_with_both_files(own_models, monkeypatch):
    monkeypatch.syspath_prepend(own_models)
    theirs, ours = own_models / "models" / "mlp.py", ROOT / "pyrobbb" / "models" / "mlp.py"
    both = f"model: models.mlp.mlp may be that of {theirs} or that of {ours}: rename yours, or write pyrobbb."
    with pytest.raises(ConfigError, match=re.escape(both)):
        compose("mnist", ["model._target_=models.mlp.mlp"], folder=own_models)
    theirs.unlink()
    start = "guide.init_loc={_target_: guides.initial.kaiming, _partial_: true}"
    config = compose("mnist", ["model._target_=models.mlp.mlp", start], folder=own_models)
    assert config.model._target_ == "pyrobbb.models.mlp.mlp"
    assert config.guide.init_loc._target_ == "pyrobbb.initializers.kaiming"


def test_a_part_of_ones_own_does_not_take_the_keys_of_the_one_it_replaces(tmp_path, monkeypatch):
    (tmp_path / "own_data.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    run = build(compose("mnist", ["data._target_=own_data.MyData", "+data.rows=45"], folder=tmp_path))
    assert run.data.rows == 45
    with pytest.raises(ConfigError, match="unexpected keyword argument 'limit'"):  # asked for, not inherited
        build(compose("mnist", ["data._target_=own_data.MyData", "data.limit=3"], folder=tmp_path))
    run = build(compose("mnist", ["guide._target_=own_data.MyGuide"], folder=tmp_path))
    assert run.guide.keywords == {}


def test_a_file_with_dots_in_its_name_is_read_as_any_other(tmp_path):
    (tmp_path / "my_parts.py").write_text(PARTS)
    (tmp_path / "own.v2.yaml").write_text(OWN.replace("guide: {_target_: guides.mine.MyGuide}\n", ""))
    (tmp_path / "own.yaml").write_text("defaults: [run]\n")
    done = command(tmp_path, "experiments.run", "own.v2.yaml", *QUICK)
    assert done.returncode == 0, done.stderr
    written = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert set(written["data"]) == {"_target_", "rows"}
    assert set(written["prior"]) == {"_target_", "sigma"}


def test_a_plain_network_of_ones_own_is_a_model(tmp_path, monkeypatch):
    """Each chain makes its own; what is neither that nor a function of three is told what it must be."""
    (tmp_path / "own_net.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    own = ["data=blobs", "data.N=60", "model._target_=own_net.MyNet", "+model.width=5", "chains=2"]
    config = compose("mnist", [*TINY, *own], folder=tmp_path / "out")
    config.model = {"_target_": "own_net.MyNet", "width": 5}
    assert fitted(config).metrics["parameters"] == 2 * 5 + 5 + 5 * 3 + 3
    posterior = reopen(tmp_path / "out", trust=True).posterior
    first, second = (model.initial()["layers.0.weight"] for model, _ in posterior.chains)
    assert not torch.equal(first, second)
    config.model = {"_target_": "own_net.MyNet", "width": "five"}
    with pytest.raises(ValueError, match=r"^model: "):  # torch's words, of its version
        build(config).training(build(config).data.load())
    config.model = {"_target_": "own_net.Needs"}
    with pytest.raises(ConfigError, match=r"model: Needs needs all of its options: missing a required"):
        build(config)
    config.model = {"_target_": "own_net.MyData", "_partial_": True}
    with pytest.raises(ConfigError, match=r"model: .*it must be the class of a network, or a function of"):
        build(config)


CENTRED = """
import torch
from torch import nn

MEAN = 0.5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.register_buffer("mean", torch.full((2,), MEAN))

    def forward(self, x):
        return self.linear(x - self.mean)
"""


def fitted_net(module, source, tmp_path, monkeypatch):
    """A short run, in `out`, of the class `Net` of a module with this source."""
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    config = compose("mnist", ["fast=off", *TINY], folder=tmp_path / "out")
    config.model = {"_target_": f"{module}.Net"}
    return fitted(config)


def test_a_buffer_of_ones_own_network_that_changed_is_refused(tmp_path, monkeypatch):
    fitted_net("own_centred", CENTRED, tmp_path, monkeypatch)
    assert reopen(tmp_path / "out", trust=True).epoch == 2
    monkeypatch.setattr("own_centred.MEAN", 0.0)
    with pytest.raises(CheckpointError, match=r"changed: .* other values of the tensor network\.mean"):
        reopen(tmp_path / "out", trust=True)


RUNNING = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.register_buffer("mean", torch.zeros(2), persistent=False)

    def forward(self, x):
        if self.training:
            self.mean += x.detach().mean(0)
        return self.linear(x - self.mean)
"""


def test_what_training_changed_of_ones_own_network_is_opened_again(tmp_path, monkeypatch):
    trained = fitted_net("own_running", RUNNING, tmp_path, monkeypatch).posterior.model.network
    opened = reopen(tmp_path / "out", trust=True).posterior.model.network
    assert torch.equal(opened.mean, trained.mean)
    assert opened.mean.any()


@FIXED  # the commands run in processes of their own
def test_a_finished_run_of_other_data_or_code_is_not_taken_for_this_one(tmp_path, monkeypatch):
    """Data in a file, data and a network of one's own; the same again is finished."""

    def said(*words):
        done = command(tmp_path, "experiments.run", *words)
        return done.returncode, done.stdout + done.stderr

    rows = ["a,b,y", *(f"{i / 7},{i % 5},{'no' if i % 3 else 'yes'}" for i in range(60))]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    table = [*TINY, "data=table", "data.source=rows.csv", "data.target=y", "~data.N", "folder=out"]
    table = [word for word in table if word not in ("data=blobs", "data.N=90", "~data.N")]
    assert said(*table)[0] == 0
    assert "out is finished" in said(*table)[1]
    with monkeypatch.context() as there:
        there.chdir(tmp_path)
        by_name = reopen("out").posterior.predict({"a": [0.5, 7.0], "b": [1.0, None]}, draws=3)
    assert by_name.probs.shape == (2, 2)
    assert by_name.classes == ("no", "yes")
    (tmp_path / "rows.csv").write_text("\n".join(rows[:-10]))
    code, words = said(*table)
    assert code == 2
    assert "or its data changed" in words
    assert "to have it run again from its start, remove out" in words
    (tmp_path / "rows.csv").unlink()
    code, words = said(*table)
    assert code == 0, "what was found there is printed all the same"
    assert "note: out was not compared with its data and code: " in words

    (tmp_path / "my_parts.py").write_text(PARTS)
    own = (
        OWN.replace("my_parts.my_network, width: 4", "my_parts.MyNet, width: 4")
        .replace("guide: {_target_: guides.mine.MyGuide}\n", "")
        .replace("folder: out", "folder: own")
    )
    (tmp_path / "own.yaml").write_text(own)
    code, words = said("own.yaml")
    assert code == 0, words
    (tmp_path / "my_parts.py").write_text(PARTS.replace("nn.Tanh()", "nn.ReLU()"))
    code, words = said("own.yaml")
    assert code == 2
    assert "another network: (1): Tanh() there, (1): ReLU() here" in words


def test_a_run_is_opened_again_in_python(finished):
    """Its posterior takes rows as those of the run."""
    from experiments import reopen as opened

    found = opened(finished.folder)
    assert found.posterior.predict(found.data.test.x, draws=3).probs.shape == (len(found.data.test), 3)


def test_real_targets_without_a_task_say_what_to_do(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((8, 2), np.float32))
    np.save(tmp_path / "y.npy", np.linspace(0, 1, 8))
    files = ["data=on_disk", f"data.x={tmp_path / 'x.npy'}", f"data.y={tmp_path / 'y.npy'}"]
    done = command(tmp_path, "experiments.run", *files, "likelihood=normal", "folder=out")
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
    assert claim(again) == (tmp_path / "old", False)


def test_a_checkpoint_of_an_earlier_version_is_one_clear_error(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "old")
    path = tmp_path / "old" / "chain-0.pt"
    content = checkpoint.load(path)
    del content["attributes"]
    checkpoint.save(path, content)
    with pytest.raises(ConfigError, match=r"chain-0\.pt has no 'attributes', .* run the command .* again"):
        reopen(tmp_path / "old")


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
        COMP_LINE='{sys.executable} -m experiments.run mine.yaml prior=la'
        COMP_WORDS=({sys.executable} -m experiments.run mine.yaml prior=la); COMP_CWORD=4
        _experiments_run; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.split() == ["prior=laplace"], done.stderr


NAMESAKES = """
from pyrobbb.data import Blobs
from my_parts import my_network


class Data:
    def __init__(self, root="here", validation=20, scale=1.0):
        self.kept = (root, validation, scale)

    def load(self):
        return Blobs(N=60, validation=self.kept[1]).load()


def network(spec, prior, likelihood, hidden=(5,)):
    return my_network(spec, prior, likelihood, hidden[0])
"""


@pytest.fixture
def namesakes(tmp_path):
    (tmp_path / "my_parts.py").write_text(PARTS)
    (tmp_path / "namesakes.py").write_text(NAMESAKES)
    return tmp_path


def test_a_part_of_ones_own_keeps_its_own_defaults_for_keys_of_the_same_name(namesakes, monkeypatch):
    """It had MNIST's 10,000 validation rows and its scale, and the default network's hidden layers."""
    monkeypatch.syspath_prepend(namesakes)
    words = ["data._target_=namesakes.Data", "data.root=there", "model._target_=namesakes.network"]
    made = build(compose("mnist", words, folder=namesakes))
    assert made.data.kept == ("there", 20, 1.0)
    assert made.model.keywords == {}
    own = (
        "defaults: [run, base, _self_]\nname: own\nfolder: out\nepochs: 1\ndata: {_target_: namesakes.Data}\n"
    )
    (namesakes / "own.yaml").write_text(own)
    (namesakes / "base.yaml").write_text(
        "model: {_target_: namesakes.network}\nschedule:\n"
        "  {_target_: torch.optim.lr_scheduler.StepLR, step_size: 1}\n"
    )
    done = command(namesakes, "experiments.run", "own.yaml", "data.scale=2.0", *QUICK)
    assert done.returncode == 0, done.stderr
    kept = yaml.safe_load((namesakes / "out" / "config.yaml").read_text())
    assert kept["data"] == {"_target_": "namesakes.Data", "scale": 2.0}
    assert kept["schedule"] == {
        "_target_": "torch.optim.lr_scheduler.StepLR", "_partial_": True, "step_size": 1
    }  # fmt: skip
    pytest.importorskip("altair")
    monkeypatch.chdir(namesakes)
    for costly in ("check", "notes"):
        monkeypatch.setattr(check, costly, lambda *given, **options: [])
    for module, there in ((report, True), (check, False)):
        monkeypatch.setattr("sys.argv", [module.__name__, "out", "--trust"])
        module.main()
        page = Path("out", "report.html").read_text()
        assert ("experiments.check out --trust" in page) == there  # until it was run


ANOTHER_S = [["model=linear", "+model.hidden=[400,400]"], ["prior=laplace", "+prior.sigma=1.0"]]


@pytest.mark.parametrize("words", ANOTHER_S)
def test_what_was_asked_for_is_refused_also_where_it_is_another_s_default(words, tmp_path):
    with pytest.raises(ConfigError, match=r"unexpected keyword argument '(hidden|sigma)'"):
        build(compose("mnist", [*TINY[:2], *words], folder=tmp_path))


def test_what_an_experiment_says_of_its_own_prior_is_not_another_s(tmp_path):
    made = build(compose("rahmanto", ["prior=laplace"], folder=tmp_path))
    assert made.prior.scale == 1.0


def test_a_file_without_run_first_is_refused(namesakes):
    (namesakes / "own.yaml").write_text("defaults: [_self_, run]\nname: order\nepochs: 1\n")
    done = command(namesakes, "experiments.run", "own.yaml", "data=blobs")
    assert (done.returncode, done.stderr) == (
        2, "error: own.yaml needs a list `defaults:` with `- run` as its first entry\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["callbacks=[tensorboard]", "device=cpu"], ""),
        (["callbacks.tensorboard.folder=x", "data.root=/elsewhere"], ""),
        (["callbacks.patience.patience=3"], "callbacks.patience.patience=3"),
        (["callbacks=[mine]", "seed=2"], "callbacks=[mine],seed=2"),
    ],
)
def test_only_what_changes_no_result_is_left_out_of_a_folder_s_name(words, name):
    assert changes(words) == name


def test_other_test_rows_are_not_those_of_a_finished_run(tmp_path, monkeypatch):
    (tmp_path / "own_rows.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["data._target_=own_rows.MyData", "+data.rows=45", "model.hidden=[4]", "epochs=1", "draws=2"]
    config = compose("mnist", [*words, "figures=false", "report=false"], folder=tmp_path / "run")
    run_module.execute(config, quiet=True)
    run_module.execute(config, quiet=True)
    from own_rows import MyData

    load = MyData.load

    def other(self):
        data = load(self)
        data.test.y.copy_(2 - data.test.y)
        return data

    monkeypatch.setattr(MyData, "load", other)
    with pytest.raises(
        ConfigError, match=r"metrics\.json was made with other test data; to have it run again"
    ):
        run_module.execute(config, quiet=True)


def test_where_own_data_lie_is_what_they_are():
    assert changes(["data.root=a"], "mine.Folder") == "data.root=a"
    long, other = (changes([f"x{i}={value}" for i in range(80)]) for value in (1, 2))
    assert long.startswith("x0=1,x10=1,x11=1,")
    assert len(long) == len(other) == 200
    assert long[-12:] != other[-12:]
    assert changes([f"x{i}=1" for i in reversed(range(80))]) == long
    assert len(changes([f"x{i}=\u00e4" for i in range(80)]).encode()) <= 200


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            "data: {_target_: wrong.NoData}",
            "data: load() must return a Dataset, such as from_arrays makes, got 3",
        ),
        (
            "model: {_target_: wrong.plain}",
            "model must return BayesianNetwork(network, prior, likelihood), not",
        ),
        ("prior: {_target_: pyrobbb.priors.Normal, sgma: 1}", "'sgma'; it takes sigma"),
        ("rates: {rho: 10}\nrate: 3", "rate"),
        ("prior: {_target_: wrong.Prio}", "prior: wrong has no 'Prio'; did you mean 'Prior'?"),
        ("prior: {_target_: imports.it}", "prior: imports imports 'nothing_there', which is not there"),
        (
            "prior: {_target_: mine.P}",
            "prior: there is no module 'mine'; a part of your own is a file mine.py",
        ),
    ],
)
def test_own_parts_of_a_wrong_kind_are_told_in_a_line(part, message, tmp_path):
    (tmp_path / "wrong.py").write_text(
        "from torch import nn\n\n\nclass NoData:\n    def load(self):\n        return 3\n\n\n"
        "def plain(spec, prior, likelihood):\n    return nn.Linear(2, 3)\n\n\nclass Prior:\n    pass\n"
    )
    (tmp_path / "imports.py").write_text("import nothing_there\n")
    data = "" if part.startswith("data") else "  - override data: blobs\n"
    (tmp_path / "own.yaml").write_text(
        f"defaults:\n  - run\n{data}  - _self_\nname: own\nepochs: 1\n{part}\n"
    )
    done = command(tmp_path, "experiments.run", "own.yaml")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 3
    assert not (tmp_path / "runs").exists()


def test_a_part_on_the_command_line_that_the_file_would_hide_is_refused(tmp_path):
    """Hydra merges the file last: the run would be the file's, in a folder with the other's name."""
    part = "prior: {_target_: pyrobbb.priors.Laplace, scale: 0.3}"
    (tmp_path / "mine.yaml").write_text(f"defaults: [run, _self_]\nname: mine\n{part}\n")
    done = command(tmp_path, "experiments.run", "mine.yaml", "prior=normal")
    assert done.returncode == 2
    assert done.stderr.startswith("error: prior=normal: your file names its prior by _target_")
    assert not (tmp_path / "runs").exists()


def test_a_swapped_optimiser_or_schedule_brings_its_own_numbers(tmp_path):
    def part(group, *words):
        return dict(compose("table1_mixture_sgd", words, folder=tmp_path)[group])

    assert part("schedule", "schedule=exponential")["gamma"] == pytest.approx(
        1 / 1.1
    )  # not the .1 of its steps
    assert part("schedule", "schedule=exponential", "schedule.gamma=0.5")["gamma"] == 0.5
    assert part("schedule", "schedule=steps")["gamma"] == 0.1  # what it had anyway
    assert part("optim", "optim=adam")["lr"] == part("optim", "optim=adam", "schedule=constant")["lr"] == 1e-3
    sgd = compose("table1_sgd", [], folder=tmp_path).optim.lr
    assert compose("table1_sgd", ["optim=adam"], folder=tmp_path).optim.lr == 1e-3 != sgd
    assert compose("table1_sgd", ["optim=sgd"], folder=tmp_path).optim.lr == sgd


def test_a_swap_on_the_command_line_is_that_of_a_composed_run(tmp_path):
    words = ["experiment=table1_sgd", "optim=adam", "model=plain_mlp", *TINY]
    done = command(tmp_path, "experiments.run", *words, "folder=out")
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["optim"]["lr"] == 1e-3


@pytest.mark.parametrize(
    ("optim", "words", "lr"),
    [("", [], 1e-3), ("{lr: 0.5}", [], 0.5), ("", ["optim.lr=0.25"], 0.25), ("", ["optim=sgd"], None)],
)
def test_a_swap_in_a_file_of_ones_own_is_that_of_the_command_line(optim, words, lr, tmp_path, monkeypatch):
    (tmp_path / "base.yaml").write_text("defaults: [{override /optim: adam}, {override data: kmnist}]\n")
    own = "defaults: [run, base, override experiment: table1_sgd, override elbo: null, _self_]\nname: mine\n"
    (tmp_path / "mine.yaml").write_text(own + f"optim: {optim or '{}'}\n")
    seen = []
    monkeypatch.setattr(run_module, "execute", lambda config, *_, **__: seen.append(config))
    monkeypatch.setattr("sys.argv", ["run.py", str(tmp_path / "mine.yaml"), *words])
    run_module.main()
    (config,) = seen
    assert config.optim.lr == (lr or compose("table1_sgd", [], folder=tmp_path).optim.lr)
    assert not config.published  # they are of the experiment's data


def test_a_file_that_does_not_say_where_its_content_stands_has_no_warning(tmp_path, monkeypatch):
    (tmp_path / "base.yaml").write_text("seed: 3\n")
    (tmp_path / "mine.yaml").write_text("defaults: [run, base]\nname: mine\nepochs: 3\n")
    seen = []
    monkeypatch.setattr(run_module, "execute", lambda config, *_, **__: seen.append(config))
    monkeypatch.setattr("sys.argv", ["run.py", str(tmp_path / "mine.yaml")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_module.main()
    assert (seen[0].epochs, seen[0].seed) == (3, 3)


def test_what_a_method_does_not_use_is_told(tmp_path):
    done = command(
        tmp_path, "experiments.run", *TINY, "inference=laplace", "prior=normal", "guide=auto_normal", "seed=2"
    )
    assert done.returncode == 0, done.stderr
    assert "note: Laplace does not use guide\n" in done.stderr
    assert "note" not in command(tmp_path, "experiments.run", *TINY, "guide=auto_normal").stderr


def test_published_numbers_of_ones_own_stay_beside_other_data(tmp_path):
    (tmp_path / "base.yaml").write_text("defaults: [_self_]\npublished: a text\n")
    own = "defaults: [run, base, {override /data: blobs}, _self_]\n"
    own += "published: {score: test.error, of: blobs, rows: [[mine, 9.5, nine of ten]]}\n"
    (tmp_path / "own.yaml").write_text(own)
    words = [word for word in TINY if not word.startswith("data=")]
    done = command(tmp_path, "experiments.run", "own.yaml", *words, "folder=out")
    assert done.returncode == 0, done.stderr
    assert "published: test error %, blobs: mine 9.5 (nine of ten)\n" in done.stdout


def test_an_error_in_a_file_of_ones_own_names_its_line_and_one_of_ours_none(tmp_path, monkeypatch):
    path = tmp_path / "slips.py"
    path.write_text("def slip(sigma):\n    return sigma / 0\n\n\ndef ours():\n    return slip(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    for part, place in [
        ({"_target_": "slips.slip", "sigma": 1}, f" ({path}, line 2)"),
        ({"_target_": "slips.ours"}, f" ({path}, line 2)"),
        ({"_target_": "pyrobbb.priors.Normal", "sigma": -1}, ""),
    ]:
        with pytest.raises(ConfigError) as caught:
            component("prior", part)
        error = caught.value.with_traceback(caught.tb.tb_next)  # without this file's own line
        assert with_place(error) == f"{error}{place}"


def test_text_for_a_number_of_a_part_of_ones_own_is_named(tmp_path, monkeypatch):
    (tmp_path / "wide.py").write_text("def scaled(kind='x', scale=1.0):\n    return scale / 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^prior\.scale must be a number, got 'wide'$"):
        component("prior", {"_target_": "wide.scaled", "kind": "y", "scale": "wide"})


def test_text_is_an_option_of_a_part_that_is_called_later(tmp_path, monkeypatch):
    (tmp_path / "later.py").write_text("def network(spec, prior, likelihood, kind):\n    return kind\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = component("model", {"_target_": "later.network", "_partial_": True, "kind": "wide"})
    assert made(None, None, None) == "wide"
