"""The README's own words, run as a reader would run them."""

import re
import shlex

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir

from experiments._runner import schema
from experiments._runner.build import build, register_resolvers
from paths import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_python_example_runs_and_is_unsure_far_from_the_data():
    (code,) = blocks("python")
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    spread = (names["high"] - names["low"]).flatten()
    assert spread[1] > 3 * spread[0]  # the ratio's log: mean 2.67, sd 0.17 over 20 seeds
    error = float(names["prediction"].mean[0]) - float(torch.sin(torch.tensor(1.0)))
    assert abs(error) < 0.2  # mean -0.005, sd 0.037
    assert "posterior" in (
        names["tree"].children if hasattr(names["tree"], "children") else names["tree"].groups()
    )


def commands() -> list[str]:
    lines = [line for block in blocks("") for line in block.splitlines()]
    return [line for line in lines if line.startswith("python -m experiments.run")]


@pytest.mark.parametrize("line", commands())
def test_every_command_of_the_readme_builds_a_run(line):
    overrides = shlex.split(line, comments=True)[3:]
    register_resolvers()
    schema.register()
    with initialize_config_dir(str(ROOT / "experiments"), version_base="1.3"):
        build(compose("run", overrides))


def test_there_are_commands_to_test():
    assert len(commands()) >= 3


def test_the_yaml_example_builds_a_run(tmp_path):
    (text,) = blocks("yaml")
    register_resolvers()
    schema.register()
    assert yaml.safe_load(text)["name"] == "mine"
    (tmp_path / "my.yaml").write_text(text)
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        run = build(compose("my", [f"hydra.searchpath=[file://{ROOT / 'experiments'}]"]))
    assert run.epochs == 20
    assert run.prior.scale == 0.1


def test_the_folders_that_the_readme_names_exist():
    for name in re.findall(r"^\| `(\w+)/` \|", TEXT, re.MULTILINE):
        assert (ROOT / name).is_dir(), name


def test_the_design_names_every_room():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rooms = [f"{p.name}/" if p.is_dir() else p.name for p in (ROOT / "pyrobbb").iterdir()]
    rooms += [p.name for p in (ROOT / "experiments").glob("*.*")]
    missing = [r for r in rooms if not r.startswith(("_", ".")) and f"`{r}`" not in text and r != "py.typed"]
    assert not missing
