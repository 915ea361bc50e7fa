"""`callbacks=[tensorboard]` on the command line: what is logged, what may change, what is refused."""

import sys

import pytest

from experiments._runner.build import ConfigError, loggers
from experiments._runner.compose import declared
from experiments._runner.folder import claim, differences
from experiments._runner.reopen import reopen
from experiments.run import execute
from pyrobbb.training import history

SMALL = [
    "data=blobs",
    "data.N=90",
    "model.hidden=[4]",
    "epochs=2",
    "batch_size=30",
    "draws=5",
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

        def __enter__(self):
            return self

        def __exit__(self, *error): ...

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
    with pytest.raises(ConfigError, match=rf"callbacks.{name}: .*pip install 'pyrobbb\[{name}\]'"):
        loggers(config(tmp_path, f"callbacks=[{name}]"))


def test_a_run_may_be_logged_from_its_second_start_on(tmp_path):
    claim(config(tmp_path))
    assert differences(config(tmp_path, "callbacks=[tensorboard]")) == []
    assert differences(config(tmp_path, "callbacks=[mlflow]", "callbacks.mlflow.uri=here")) == []
    assert differences(config(tmp_path, "optim.lr=1")) != []


def test_a_misspelt_name_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"callbacks: there is no 'tensorbord'.*did you mean 'tensorboard'"):
        config(tmp_path, "callbacks=[tensorbord]")
