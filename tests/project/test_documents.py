"""What the documents point to is there."""

import re

import pytest

from paths import ROOT


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_every_test_file_that_a_document_names_exists(page):
    named = re.findall(r"(?:tests/)?((?:\w+/)*test_\w+\.py)", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []
