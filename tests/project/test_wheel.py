"""The wheel alone: built, unpacked into an empty folder, and used far from the checkout."""

import re
import sysconfig
import textwrap
import zipfile

import pytest

from commands import interpreter
from paths import ROOT

pytestmark = pytest.mark.slow

EXAMPLE = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[1]

# The example has saved its posterior; another process builds the same model and guide, and needs no data.
SAVE = """
torch.save(prediction.mean, "predicted.pt")
"""
LOAD = """
import torch
from torch import nn
from pyrobbb import BayesianNetwork, MeanFieldNormal, Posterior, likelihoods, priors

network = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 1))
model = BayesianNetwork(network, likelihood=likelihoods.Normal(scale=0.3, learn_scale=True))
posterior = Posterior.load("runs/sine", model, MeanFieldNormal(model))
found = posterior.predict(torch.tensor([[0.5], [9.0]]), draws=200).mean
torch.testing.assert_close(found, torch.load("predicted.pt"))
"""
CONTRACT = """
from pyrobbb import testing

class Mine(testing.PriorContract):
    def make(self):
        return priors.Laplace()

Mine().test_a_distribution_is_one_event_of_the_parameter_s_shape()
"""
NOTHING_ELSE = """
import sys

for name in ("hydra", "omegaconf", "pytest"):
    assert not any(module.split(".")[0] == name for module in sys.modules), f"{name} was imported"
for name in ("experiments", "models", "guides"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(f"{name} can be imported")
import pyrobbb
assert pyrobbb.__file__.startswith(sys.path[0]), pyrobbb.__file__
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The wheel's files, in a folder with nothing else."""
    built = tmp_path_factory.mktemp("built")
    wheel_only = ["--quiet", "--no-deps", "--no-build-isolation"]
    interpreter("-m", "pip", "wheel", *wheel_only, "-w", str(built), str(ROOT))
    (wheel,) = built.glob("pyrobbb-*.whl")
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def alone(code, unpacked, folder):
    """Run `code` in `folder` with the wheel and the dependencies, and without the checkout.

    -S leaves out site, and so the .pth file by which an editable install names the checkout.
    """
    paths = [str(unpacked), sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]]
    program = f"import sys\nsys.path[:0] = {paths!r}\n" + textwrap.dedent(code)
    return interpreter("-I", "-S", "-c", program, folder=folder).stdout


def test_the_wheel_owns_one_name(unpacked):
    names = {path.name for path in unpacked.iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"pyrobbb"}
    assert (unpacked / "pyrobbb" / "py.typed").exists()


def test_the_readme_s_example_runs_is_kept_and_predicts_in_another_process(unpacked, tmp_path):
    assert "epochs=200" in EXAMPLE
    few = EXAMPLE.replace("epochs=200", "epochs=3")  # what 200 reach is in test_readme.py
    said = alone(few + SAVE + NOTHING_ELSE, unpacked, tmp_path)
    assert "tensor" in said
    alone(LOAD + CONTRACT + NOTHING_ELSE, unpacked, tmp_path)  # a contract needs no pytest
