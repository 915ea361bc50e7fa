"""`callbacks=[tensorboard]` on the command line: what is logged, what may change, what is refused."""

import importlib
import json
import sys

import pytest

from experiments._runner.build import ConfigError, loggers
from experiments._runner.compose import declared
from experiments._runner.folder import claim, differences
from experiments._runner.reopen import reopen
from experiments.run import execute
from pyrobbb.training import history
from wandb_files import history_of

SMALL = [
    "data=blobs",
    "data.N=90",
    "model.hidden=[4]",
    "epochs=2",
    "batch_size=30",
    "draws=5",
    "figures=false",
    "report=false",
]
MODULES = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow", "wandb": "wandb"}


def config(folder, *overrides):
    return declared("run", [*SMALL, f"folder={folder}", *overrides])


@pytest.fixture
def written(monkeypatch):
    """A stand-in for TensorBoard's writer: the folder and the epoch of each free energy."""
    found = []

    class Writer:
        def __init__(self, folder):
            self.folder = folder

        def flush(self): ...

        def close(self): ...

        def add_scalar(self, name, value, epoch):
            if name == "free_energy":
                found.append((self.folder, epoch, value))

    module = type(sys)("tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, MODULES["tensorboard"], module)
    return found


def test_each_epoch_of_each_chain_is_logged_beneath_the_run(tmp_path, written):
    execute(config(tmp_path, "callbacks=[tensorboard]", "chains=2"), quiet=True)
    rows = history.read(tmp_path / "history.csv")
    expected = {(str(tmp_path / "tensorboard" / f"chain-{r.chain}"), r.epoch, r.free_energy) for r in rows}
    assert set(written) == expected
    assert reopen(tmp_path).run.chains == 2  # the library's own loggers are trusted


@pytest.mark.parametrize("name", MODULES)
def test_each_name_makes_its_callback_or_says_what_to_install(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    with pytest.raises(ConfigError, match=rf"callbacks.{name}: .*pip install '\.\[{name}\]' in your clone"):
        loggers(config(tmp_path, f"callbacks=[{name}]"))


def read_tensorboard(folder):
    module = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = module.EventAccumulator(str(folder / "tensorboard" / "chain-0")).Reload()
    return [(event.step, event.value) for event in events.Scalars("free_energy")]


def read_mlflow(folder):
    client = importlib.import_module("mlflow").MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    [run] = client.search_runs([client.get_experiment_by_name("run").experiment_id])
    assert run.data.params["seed"] == "1"
    entries = client.get_metric_history(run.info.run_id, "free_energy")
    return sorted((entry.step, entry.value) for entry in entries)


def read_wandb(folder):
    importlib.import_module("wandb").teardown()  # its writer has then put everything into the files
    [path] = folder.glob("wandb/offline-run-*/run-*.wandb")
    return history_of(path)["free_energy"]


READ = {"tensorboard": read_tensorboard, "mlflow": read_mlflow, "wandb": read_wandb}


@pytest.mark.filterwarnings("ignore")  # of the packages' own
@pytest.mark.parametrize("name", READ)
def test_a_line_of_yaml_reaches_the_package_itself(tmp_path, monkeypatch, name):
    pytest.importorskip(MODULES[name])
    monkeypatch.setenv("WANDB_SILENT", "true")
    more = [f"callbacks.mlflow.uri=sqlite:///{tmp_path}/mlflow.db"] if name == "mlflow" else []
    execute(config(tmp_path, f"callbacks=[{name}]", *more), quiet=True)
    expected = [(row.epoch, row.free_energy) for row in history.read(tmp_path / "history.csv")]
    assert len(expected) == 2
    assert READ[name](tmp_path) == [(epoch, pytest.approx(value, rel=1e-6)) for epoch, value in expected]


def test_a_run_may_be_logged_from_its_second_start_on(tmp_path):
    claim(config(tmp_path))
    assert differences(config(tmp_path, "callbacks=[tensorboard]")) == []
    assert differences(config(tmp_path, "callbacks=[mlflow]", "callbacks.mlflow.uri=here")) == []
    assert differences(config(tmp_path, "optim.lr=1")) != []


def test_a_run_that_a_callback_stops_says_how_long_it_was_and_opens_again(tmp_path):
    stopping = "{_target_: pyrobbb.training.callbacks.EarlyStopping, patience: 1, min_delta: 9}"
    execute(config(tmp_path, f"+callbacks.patience={stopping}", "epochs=9"), quiet=True)
    assert len(history.read(tmp_path / "history.csv")) == 2
    assert json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8"))["epochs"] == 2
    assert reopen(tmp_path).epoch == 2


def test_a_misspelt_name_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"callbacks: there is no 'tensorbord'.*did you mean 'tensorboard'"):
        config(tmp_path, "callbacks=[tensorbord]")
