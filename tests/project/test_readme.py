"""The README's own words, run as a reader would run them."""

import json
import re
import shlex
from pkgutil import resolve_name
from statistics import mean

import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir

from experiments._runner import schema
from experiments._runner.build import build
from experiments._runner.compose import declared
from paths import ROOT
from seeds import FIXED

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    every = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return [code for own, code in every if own == language]


def numbers_in(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[\d.]+", text)]


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("pyrobbb")]


@FIXED  # what it printed
def test_the_table_s_intervals_hold_the_price(caplog, capsys):
    code, _ = blocks("python")
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert not warnings_in(caplog)
    low, high, size = names["low"][:, 0], names["high"][:, 0], torch.tensor([80.0, 150.0])
    truth = 100 + 4 * size
    assert bool(((low < truth) & (truth < high)).all())
    widths = (high - low) / (2 * 1.96 * 30)  # 1.08 and 1.08
    assert float(widths.min()) > 0.7
    assert float(widths.max()) < 2.2
    printed, shown = (numbers_in(text) for text in (capsys.readouterr().out, blocks("")[1]))
    assert printed == pytest.approx(shown, abs=2)  # other processors and versions round otherwise


def test_the_python_example_runs_and_is_unsure_far_from_the_data(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    _, code = blocks("python")
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert not warnings_in(caplog)
    spread = (names["high"] - names["low"]).flatten()
    assert spread[1] > 3 * spread[0]  # the ratio's log: mean 2.67, sd 0.17 over 20 seeds
    error = float(names["prediction"].mean[0]) - float(torch.sin(torch.tensor(1.0)))
    assert abs(error) < 0.2  # mean -0.005, sd 0.037
    assert float(names["again"].mean[0]) == pytest.approx(float(names["prediction"].mean[0]), abs=0.05)
    assert "posterior" in (
        names["tree"].children if hasattr(names["tree"], "children") else names["tree"].groups()
    )


def test_the_table_of_log_likelihoods_is_the_record_s():
    record = json.loads((ROOT / "docs" / "records" / "own_tables.json").read_text())
    for name in record["tables"]:
        means = {who: mean(one["log_likelihood"] for one in runs) for who, runs in record[name].items()}
        ours = means.pop("fit_table")
        row = next(line for line in TEXT.splitlines() if line.startswith(f"| {name.replace('_', ' ')} |"))
        numbers = [float(number) for number in re.findall(r"-\d+\.\d{3}", row)]
        assert numbers == [round(ours, 3), round(max(means.values()), 3)], name


def commands() -> list[str]:
    lines = [line for block in blocks("") for line in block.splitlines()]
    return [line for line in lines if line.startswith("python -m experiments.run")]


@pytest.mark.parametrize("line", commands())
def test_every_command_of_the_readme_builds_a_run(line):
    build(declared("run", shlex.split(line, comments=True)[3:]))


def test_there_are_commands_to_test():
    assert len(commands()) >= 3


def test_the_yaml_example_builds_a_run(tmp_path):
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
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


PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "experiments").rglob("*.yaml")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_declaration_that_is_written_down_exists(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"(?:python -m |`)((?:experiments|benchmarks)(?:\.\w+)+)", text):
        resolve_name(name)
    for name in re.findall(r"\bexperiment=(\w+)", text):
        assert (ROOT / "experiments" / "experiment" / f"{name}.yaml").is_file(), name


def test_the_design_names_files_that_exist():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:pyrobbb|experiments)/[\w/]+\.\w+)`", text):
        assert (ROOT / path).is_file(), path
