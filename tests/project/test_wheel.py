"""The wheel alone: built, unpacked into an empty folder, and used far from the checkout."""

import re
import sysconfig
import textwrap
import zipfile

import pytest

from commands import interpreter
from paths import ROOT

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLE, EXAMPLE = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[:2]

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
# `alone` shares this environment's packages: what was imported must be declared, or declared by what is.
DECLARED = """
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

declared, to_read = set(), [("pyrobbb", "")]
while to_read:
    name, extra = to_read.pop()
    declared.add((name, extra))
    try:
        needed = [Requirement(line) for line in requires(name) or ()]
    except PackageNotFoundError:  # for another platform
        continue
    needed = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": extra})]
    to_read += {(canonicalize_name(each.name), e) for each in needed for e in ("", *each.extras)} - declared
names, homes = {name for name, _ in declared}, packages_distributions()
tops = {module.partition(".")[0] for module in list(sys.modules)} & homes.keys()
undeclared = {top: homes[top] for top in tops if not names & set(map(canonicalize_name, homes[top]))}
assert not undeclared, f"not among the dependencies in pyproject.toml, nor among theirs: {undeclared}"
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
    said = alone(few + SAVE + NOTHING_ELSE + DECLARED, unpacked, tmp_path)
    assert "tensor" in said
    alone(LOAD + CONTRACT + NOTHING_ELSE, unpacked, tmp_path)  # a contract needs no pytest


def test_the_readme_s_example_of_a_table_runs_on_the_declared_dependencies_alone(unpacked, tmp_path):
    few = TABLE.replace("fit_table(data)", "fit_table(data, epochs=2)")
    assert few != TABLE
    assert "between" in alone(few + NOTHING_ELSE + DECLARED, unpacked, tmp_path)
