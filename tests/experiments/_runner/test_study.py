"""Studies leave a record: what was found, and how."""

import json
from dataclasses import dataclass, field

import pytest

from experiments._runner.record import write_record
from experiments._runner.study import Study
from paths import ROOT

ROOMS = [ROOT / "experiments" / room for room in ("paper", "tutorial", "reproductions", "studies")]
EVERY = [path for room in ROOMS for path in room.glob("*.py")]
STUDIES = [path for path in EVERY if "STUDY = Study(" in path.read_text()]


@dataclass
class Settings:
    seeds: list[int] = field(default_factory=lambda: [1, 2])


def test_a_record_says_how_it_was_made(tmp_path):
    study = Study("experiments.paper.table1", "mine", Settings, parts=("seeds",))
    chosen, overrides, out = study.begin(["seeds=[3]", "epochs=2", f"folder={tmp_path}"])
    out.record({"seeds": chosen.seeds})
    found = json.loads((tmp_path / "seeds=3" / "record.json").read_text())
    assert found["command"] == "python -m experiments.paper.table1 seeds=[3] epochs=2"
    assert (found["seeds"], overrides) == ([3], ["epochs=2"])
    assert {"date", "machine", "versions"} <= set(found)


def test_a_record_makes_its_folder(tmp_path):
    path = tmp_path / "there" / "planted.json"
    write_record(path, "python -m benchmarks.planted", {"fits": 2})
    assert json.loads(path.read_text())["fits"] == 2


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_names_its_module_and_records(path):
    text = path.read_text()
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    assert f'"{module}"' in text
    assert "out.record(" in text


def test_there_are_studies():
    assert len(STUDIES) >= 11
