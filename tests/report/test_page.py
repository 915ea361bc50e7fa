"""The page as HTML: nothing from outside, nothing unescaped, headings in order, numbers in words."""

from html.parser import HTMLParser
from itertools import pairwise

import pytest

from pyrobbb.report.page import Cell, Chart, Charts, Code, Fact, Page, Section, Table, Text, render, vega
from pyrobbb.report.words import component, number, seconds

EVIL = "</script><script>alert(1)</script><b>"


class Parsed(HTMLParser):
    """Elements with their attributes, and the text of scripts apart from that of the page."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.scripts, self.words, self._inside = [], [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words.append(data)


def page(**values):
    table = Table(
        EVIL, ["Run", EVIL], [[Cell(EVIL, link="a/b.html"), Cell("2.5", 2.5, note=EVIL)]], sortable=True
    )
    chart = Chart(EVIL, {"data": {"values": [{"x": EVIL}]}, "mark": "point"}, EVIL)
    parts = [Text(EVIL), Code("Command", EVIL), table, Charts([chart, chart], table)]
    sections = [Section("First", EVIL, parts), Section("Second & last", "", [Code("All", EVIL, folded=True)])]
    return Page(EVIL, EVIL, Text(EVIL, "bad"), [Fact(EVIL, EVIL, EVIL)], sections, **values)


@pytest.fixture(scope="module")
def parsed():
    return Parsed(render(page()))


def test_words_from_a_folder_are_never_markup(parsed):
    own = [attrs for tag, attrs in parsed.elements if tag == "script"]
    assert len(own) == 4  # two charts, Vega, the page's own
    assert not any(tag == "b" for tag, _ in parsed.elements)
    assert sum(words.count(EVIL) for words in parsed.words) >= 10


def test_a_column_of_numbers_is_one_whatever_its_first_row_holds():
    rows = [[Cell("a"), Cell("–"), Cell("x")], [Cell("b"), Cell("2.5", 2.5), Cell("y")]]
    parts = [Table("", ["Run", "Score", "Words"], rows)]
    found = Parsed(render(Page("", "", None, [], [Section("Scores", "", parts)]))).elements
    cells = [attrs.get("class") for tag, attrs in found if tag in ("th", "td")]
    assert cells == [None, "number", None] * 3


def test_a_table_is_looked_through_once(monkeypatch):
    """Once for each cell, a sweep of 1000 runs had taken half a minute."""
    looks, numeric = [], Table.numeric.fget
    monkeypatch.setattr(Table, "numeric", property(lambda table: looks.append(1) or numeric(table)))
    rows = [[Cell(str(row)), Cell("2.5", 2.5)] for row in range(9)]
    render(Page("", "", None, [], [Section("Scores", "", [Table("", ["Run", "Score"], rows)])]))
    assert len(looks) == 1


def test_nothing_is_fetched_from_elsewhere(parsed):
    addresses = [v for _, attrs in parsed.elements for k, v in attrs.items() if k in ("src", "href")]
    assert not [address for address in addresses if "//" in address and not address.startswith("data:")]
    assert vega() in "".join(parsed.scripts)


def test_headings_are_in_order_and_links_lead_to_them(parsed):
    levels = [int(tag[1]) for tag, _ in parsed.elements if tag in ("h1", "h2", "h3")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    names = [attrs["id"] for _, attrs in parsed.elements if "id" in attrs]
    assert len(names) == len(set(names))
    inside = [a["href"][1:] for tag, a in parsed.elements if tag == "a" and a["href"].startswith("#")]
    assert set(inside) <= set(names)
    assert {"main", "nav", "header", "footer"} <= {tag for tag, _ in parsed.elements}


def test_a_page_without_charts_does_without_vega():
    html = render(Page("t", "l", sections=[Section("s", "", [Text("words")])]))
    assert len(html) < 30_000


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0896423, "0.08964"),
        (27.537225, "27.54"),
        (478410, "478,410"),
        (1986390.9, "1,986,391"),
        (float("nan"), "–"),
        (float("inf"), "inf"),
        (None, "–"),
        ("cpu", "cpu"),
    ],
)
def test_numbers_in_words(value, words):
    assert number(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0.86, "0.86 s"), (46.2, "46 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_times_in_words(value, words):
    assert seconds(value) == words


def test_a_component_in_words():
    part = {"_target_": "a.b.Mixture", "_partial_": True, "pi": 0.5, "of": {"_target_": "x.Y"}, "root": None}
    assert component(part) == "Mixture(pi=0.5, of=Y)"
    assert component({"_target_": "a.Normal", "scale": None, "learn_scale": False}) == "Normal"
    assert component({"_target_": "a.Laplace", "linearised": False}) == "Laplace(linearised=False)"
