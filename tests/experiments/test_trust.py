"""A run folder of somebody else's is opened without running a line of theirs."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from commands import command
from experiments import analyse
from experiments._runner.build import ConfigError, build
from experiments._runner.compose import compose, declared
from experiments._runner.folder import claim
from experiments._runner.reopen import fixed, reopen
from experiments._runner.trust import strangers
from experiments.paper import pruning
from paths import ROOT
from pyrobbb._support.checkpoint import CheckpointError
from pyrobbb.evaluation import arviz_io

FOLDER = ROOT / "experiments"
TINY = ["data=blobs", "model.hidden=[4]", "epochs=1", "batch_size=300", "draws=2", "validation_draws=1"]


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theirs") / "run"
    config = declared("run", [*TINY, f"folder={folder}"])
    build(config).execute(claim(config)[0])
    return folder


@pytest.fixture
def theirs(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_an_honest_folder_opens(theirs: Path) -> None:
    assert reopen(theirs).epoch == 1
    assert analyse.figures(theirs)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], True),
        (["data=blobs"], False),
        (["model._target_=models.mine.network"], False),
        (["guide._target_=guides.mine.MyGuide"], False),
    ],
)
def test_what_cannot_change_between_two_runs_is_the_librarys_alone(
    words: list[str], expected: bool, tmp_path: Path
) -> None:
    """`models` and `guides` are also where one's own parts may lie."""
    assert fixed(compose("mnist", words, folder=tmp_path)) == expected


def change(folder: Path, edit: Callable[[Any], None]) -> None:
    path = folder / "config.yaml"
    content = yaml.safe_load(path.read_text())
    edit(content)
    path.write_text(yaml.safe_dump(content))


def hostile(harm: Path) -> dict[str, Any]:
    """What a part of config.yaml may be replaced by, each of which would make the folder `harm`."""
    mkdir = {"_target_": "os.mkdir", "path": str(harm)}
    priors = {"_target_": "pyrobbb.priors.PerParameter", "default": {"_target_": "pyrobbb.priors.Normal"}}
    return {
        "call": mkdir,
        "shell": {"_target_": "os.system", "command": f"mkdir {harm}"},
        "within": priors | {"where": {"*": mkdir}},
        "in a list": {"_target_": "pyrobbb.priors.Normal", "_args_": [mkdir]},
        "through a module": {
            "_target_": "pyrobbb.data.images.folders.os.mkdir",
            "path": str(harm),
        },
        "a module's import": {"_target_": "pyrobbb.priors.dataclass", "cls": mkdir},
        "hydra's own": {"_target_": "hydra.utils.call", "config": mkdir},
        "a writer of ours": {"_target_": "pyrobbb._support.files.make_folder", "folder": str(harm)},
        "interpolated": priors | {"where": "${oc.decode:'{_target_: os.mkdir, path: " + str(harm) + "}'}"},
        "a private name": {"_target_": "pyrobbb.priors._scalar", "value": 1},
        "no name at all": {"_target_": 3},
    }


@pytest.mark.parametrize("name", sorted(hostile(Path("x"))))
@pytest.mark.parametrize(
    "read", [reopen, analyse.figures, pruning.analyse], ids=["reopen", "analyse", "pruning"]
)
def test_a_hostile_configuration_is_not_called(
    theirs: Path, tmp_path: Path, name: str, read: Callable[[Path], Any]
) -> None:
    harm = tmp_path / "harm"
    change(theirs, lambda config: config.update(prior=hostile(harm)[name]))
    with pytest.raises(ConfigError, match=r"config\.yaml names .* so it is not called; .*--trust"):
        read(theirs)
    assert not harm.exists()


def test_it_is_called_if_the_user_says_so(theirs: Path, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    change(theirs, lambda config: config.update(prior=hostile(harm)["call"]))
    with pytest.raises(ConfigError, match="prior must be a Prior, got None"):
        reopen(theirs, trust=True)
    assert harm.exists()  # what the tests above would have seen


def test_the_command_line(theirs: Path, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    change(theirs, lambda config: config.update(prior=hostile(harm)["shell"]))
    done = command(ROOT, "experiments.analyse", str(theirs))
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"error: {theirs / 'config.yaml'} names 'os.system', which is not a part of this library"
    )
    assert "Traceback" not in done.stderr
    assert not harm.exists()


@pytest.mark.parametrize("read", [reopen, analyse.figures], ids=["reopen", "analyse"])
@pytest.mark.parametrize("text", ["!!python/object/apply:os.mkdir [{harm}]", "a: [", "- 3", "\x00"])
def test_yaml_that_makes_objects_or_is_none(
    theirs: Path, tmp_path: Path, text: str, read: Callable[[Path], Any]
) -> None:
    harm = tmp_path / "harm"
    (theirs / "config.yaml").write_text(text.replace("{harm}", str(harm)))
    with pytest.raises(ConfigError, match=r"config\.yaml is not a configuration"):
        read(theirs)
    assert not harm.exists()


def test_a_checkpoint_that_holds_code(theirs: Path, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    for content in (pickle.dumps(Bomb(harm)), None):
        (theirs / "chain-0.before.pt").unlink(missing_ok=True)
        if content is None:
            torch.save({"format": 1, "model": Bomb(harm)}, theirs / "chain-0.pt")
        else:
            (theirs / "chain-0.pt").write_bytes(content)
        reason = "holds code, which is never run" if content is None else "not a readable checkpoint"
        with pytest.raises(CheckpointError, match=reason):
            reopen(theirs)
    assert not harm.exists()


def test_a_posterior_that_holds_code(theirs: Path, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    (theirs / "posterior.nc").write_bytes(pickle.dumps(Bomb(harm)))
    with pytest.raises(ValueError, match=r"posterior\.nc cannot be read as a posterior"):
        arviz_io.load(theirs / "posterior.nc")
    with pytest.raises(ValueError, match=r"posterior\.nc cannot be read as a posterior"):
        analyse.figures(theirs)
    assert not harm.exists()


@pytest.mark.parametrize(
    "group", ["data", "model", "prior", "likelihood", "guide", "kl", "optim", "schedule"]
)
def test_all_that_this_library_comes_with_is_trusted(group: str) -> None:
    for path in sorted((FOLDER / group).glob("*.yaml")):
        said = path.read_text().replace("${initial:}", "kaiming").replace("${", "{")
        assert not strangers(yaml.safe_load(said))
