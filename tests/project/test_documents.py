"""What the documents point to is there."""

import json
import re

import pytest

from experiments.studies.bound import report
from paths import ROOT

DECLARED = [
    path
    for path in sorted((ROOT / "experiments").rglob("*.yaml"))
    if "# Command:" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_every_test_file_that_a_document_names_exists(page):
    named = re.findall(r"(?:tests/)?((?:\w+/)*test_\w+\.py)", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []


def test_the_table_of_the_bound_is_that_of_its_record():
    record = json.loads((ROOT / "docs" / "records" / "bound.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "reproduction" / "bound.md").read_text(encoding="utf-8")
    assert report(record) in page
    asked = {"network", "prior", "free_energy", "trivial_free_energy", "test_error", "seeds"}
    assert asked <= set(record["rows"][0])


def test_the_gallery_shows_every_figure_and_what_it_was_drawn_from():
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    shown = re.findall(r"\(figures/([\w-]+)\.png\)", page)
    assert sorted(shown) == sorted(path.stem for path in (ROOT / "docs" / "figures").iterdir())
    assert re.findall(r"^<!-- from\.(\w+) -->\nFrom `docs/records/", page, re.M) == shown


@pytest.mark.parametrize("path", DECLARED, ids=lambda path: path.stem)
def test_where_a_declaration_says_its_result_is_recorded_there_is_a_page_that_has_it(path):
    (said,) = re.findall(r"^# Recorded: (.*)", path.read_text(encoding="utf-8"), re.M)
    for page, section in re.findall(r"(docs/[\w/-]+\.md)(?:, \"(.*?)\")?", said):
        assert section in (ROOT / page).read_text(encoding="utf-8")
    assert "docs/" in said
