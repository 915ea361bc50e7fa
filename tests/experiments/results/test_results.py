"""`make results` leaves the documents as they are: their numbers and figures are those of the records."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from matplotlib.image import imread

from experiments._runner.tables import interval, markdown, mean_sd
from experiments.reproductions.training_choices import CENTRE
from experiments.results.__main__ import MARKED, filled, make
from experiments.results.claims import DECLARED, FOUND, claims
from experiments.results.records import NOT_RUN, Records, estimate, made_by, seeds, verdict
from experiments.results.texts import TEXTS
from paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    root = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "README.md", root)
    shutil.copytree(ROOT / "docs" / "records", root / "docs" / "records")
    for page in PAGES[1:]:
        (root / page.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(page, root / page.relative_to(ROOT))
    make(root)
    return root


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_is_what_the_records_make(page, copy):
    assert (copy / page.relative_to(ROOT)).read_text(encoding="utf-8") == page.read_text(encoding="utf-8")


def test_every_figure_is_what_the_records_make_and_has_a_page(copy):
    folder = ROOT / "docs" / "figures"
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in (copy / "docs" / "figures").iterdir()}
    for name in names:
        ours, made = imread(folder / name), imread(copy / "docs" / "figures" / name)
        assert ours.shape == made.shape
        assert float(np.abs(ours - made).mean()) < 0.005  # a letter drawn otherwise by another release
    shown = set(
        re.findall(r"\]\((?:\.\./)?figures/([\w.]+)\)", "".join(p.read_text(encoding="utf-8") for p in PAGES))
    )
    assert shown == names


def test_every_text_has_its_place_and_every_mark_a_text():
    marks = [found[2] for page in PAGES for found in MARKED.finditer(page.read_text(encoding="utf-8"))]
    assert sorted(marks) == sorted(TEXTS)
    with pytest.raises(ValueError, match="there is no text named 'x'"):
        filled("a <!-- x -->1<!-- /x -->", Records(Path()))


def test_without_records_no_number_is_left(tmp_path):
    page = "<!-- A15 -->2.39 %<!-- /A15 -->, <!-- mnist -->\n1.93\n<!-- /mnist -->"
    kept = filled(page, Records(tmp_path))
    assert kept == (
        "<!-- A15 -->not run on today's code<!-- /A15 -->, "
        "<!-- mnist -->\nNot run on today's code.\n<!-- /mnist -->"
    )
    assert len(re.findall("not run on today's code", claims(Records(tmp_path)))) == len(DECLARED["claims"])
    assert filled("no marks", Records(tmp_path)) == "no marks"


def test_every_claim_names_a_function_that_reads_it():
    assert {claim["found"] for claim in DECLARED["claims"] if "found" in claim} == set(FOUND)
    text = (ROOT / "experiments" / "results" / "claims.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == DECLARED


def test_a_bar_within_a_cell_is_no_border():
    assert markdown(["a"], [["P(D|w)"]]) == "| a |\n| --- |\n| P(D\\|w) |"


def test_intervals_are_students():
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))
    assert estimate([1.0, 2.0, 3.0], 1) == "2.0 (-0.5 to 4.5)"
    assert estimate([1.25], 2, sign=True) == "+1.25"
    assert verdict([1.0, 1.1, 0.9]) == "holds"
    assert verdict([-1.0, -1.1, -0.9]) == "does not"
    assert verdict([1.0, -1.0, 0.5]) == "undecided"
    assert verdict([1.0]) == seeds(1) == "one seed"


def test_times_are_said_where_a_record_has_them(tmp_path):
    timed = {"machine": "4 cores", "date": "2030-01-01", "seconds": {"make mnist": 99.6, "make test": 500}}
    (tmp_path / "first_run.json").write_text(json.dumps(timed))
    assert TEXTS["first_run"](Records(tmp_path)) == (
        "in a fresh clone `make mnist` took 100 s, set-up included, then `make test` 500 s, "
        "on 4 cores, 2030-01-01."
    )
    record = {"command": "a", "machine": "b", "date": "c", "versions": {"torch": "2"}}
    assert made_by(record) == "`a`; b, torch 2, c."
    record["runs"] = [{"metrics": {"train_seconds": 90}}]
    record["found"] = {"x": [{"seconds": 40}, {"seconds": 50}], "y": {"seconds": 60}, "z": {}}
    assert made_by(record) == "`a`; b, torch 2, c; trainings of 4 minutes in all."


def test_runs_that_are_still_to_come_fill_their_targets(tmp_path):
    """Table 1 at its length, the training choices and the bandit, made up in the form of their commands."""
    short = Records(ROOT / "docs" / "records").get("table1_400")
    cells = [cell | {"width": width} for cell in short["cells"] for width in (400, 800, 1200)]
    lines = {CENTRE: {"validation_errors": [4.0, 3.0]}}
    lines["the whole KL on every minibatch"] = {"validation_errors": [8.0, 7.5]}
    lines["geometric"] = {"stopped": "the free energy is nan"}
    regret = {"500": [900.0, 1100.0], "50000": [9000.0, 10_000.0]}
    agent = {"expected": regret, "expected in the last fifth": [1.0, 2.0], "eaten in the first 50": [5, 9]}
    found = {
        "table1_full": short | {"cells": cells, "widths": [400, 800, 1200], "epochs": 600},
        "training_choices": {"lines": lines},
        "bandit": {"agents": dict.fromkeys(("Bayes by Backprop", "1 % greedy", "5 % greedy"), agent)},
    }
    for name, record in found.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    records = Records(tmp_path)
    assert TEXTS["A19"](records) == "2.50"
    assert TEXTS["A20"](records) == "not finite: geometric"
    assert TEXTS["A22"](records) == "900 to 1100, 5 to 9 eaten; 2 seeds"
    assert TEXTS["B8"](records).startswith("Bayes by Backprop 9,500, 1 % greedy 9,500")
    errors = [cell["metrics"]["test"]["error"] for cell in short["cells"] if cell["row"] == "sgd"]
    assert TEXTS["B3"](records) == f"600 epochs, 3 seeds: 2x1200 {mean_sd(errors, 2)} %"
    assert "not run" not in " ".join(TEXTS[name](records) for name in ("B1", "B2", "B4", "B7"))
    first, *_, below = (line for line in claims(records).splitlines() if "table1 form=full" in line)
    assert "at 0 of 3 widths" in first
    assert "| holds, after 600 epochs |" in below
    part = [cell for cell in cells if (cell["row"], cell["width"]) == ("mixture", 400)]
    found["table1_full"] |= {"cells": part, "rows": ["mixture"], "widths": [400]}
    (tmp_path / "table1_full.json").write_text(json.dumps(found["table1_full"]))
    errors = [cell["metrics"]["test"]["error"] for cell in part]
    wide = f"2x800 {NOT_RUN}, 2x400 {mean_sd(errors, 2)} %"
    assert TEXTS["B2"](records) == f"600 epochs, 3 seeds: {wide}"
    assert TEXTS["B4"](records) == TEXTS["B7"](records) == NOT_RUN
