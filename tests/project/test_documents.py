"""What the documents point to is there."""

import json
import re
from importlib.util import find_spec
from pkgutil import resolve_name

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


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.stem
)
def test_no_text_follows_a_mark_that_begins_a_line(page):
    """Such a line is a block of HTML: its Markdown would be shown as it is."""
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if re.match(r" {0,3}<!--.*-->\s*\S", line)] == []


def test_every_name_of_the_api_s_page_is_where_its_page_says():
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    names = re.findall(r"\{py:(?:func|class)\}`(?:~|[^`<]*<)?([\w.]+)>?`", page)
    assert len(names) >= 15
    for name in names:
        if ".estimators." in name and find_spec("sklearn") is None:
            continue
        found = resolve_name(name)
        assert f"{found.__module__}.{found.__qualname__}" == name


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
