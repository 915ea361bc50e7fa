"""The pages in Chromium, at desktop and phone width: no errors, and nothing that axe-core calls serious.

The report of a run, that of a sweep, and every page of the site where the extra `docs` is installed. Skipped
where Chromium or the extra `browser` is not installed.
"""

import os
import shutil
from pathlib import Path

import pytest
import yaml

from experiments import run as run_module
from experiments._runner.compose import declared
from experiments.summarise import summarise
from paths import ROOT

pytest.importorskip("playwright", reason="the extra `browser` is not installed")
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="the extra `browser` is not installed"
)
sync_api = pytest.importorskip("playwright.sync_api")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}
DOCS = ROOT / "docs"
API = Path("reference") / "api"
SHARES = 8  # of the pages of the API, for several workers
WRITTEN = sorted(
    {str(page.relative_to(DOCS).with_suffix(".html")) for page in DOCS.rglob("*.md")}
    | {"reference/keys.html"}
)
MADE = ("genindex.html", "py-modindex.html", "search.html")
BAD = ("serious", "critical")
DRAWN = "() => [...document.querySelectorAll('.chart')].every((chart) => chart.querySelector('svg'))"
SMALL = ["data=noisy_sine", "likelihood=normal", "model.hidden=[4]", "epochs=3", "batch_size=50", "draws=10"]


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip(f"Chromium is not installed: none of {', '.join(NAMES)}")
    with sync_api.sync_playwright() as play:
        started = play.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.getuid() == 0 else []
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def made(browser, tmp_path_factory):
    """A run's folder and that of a sweep of two."""
    root = tmp_path_factory.mktemp("runs")
    run_module.execute(
        declared("run", [*SMALL, "chains=2", "figures=false", f"folder={root / 'a' / 'default'}"])
    )
    other = shutil.copytree(root / "a" / "default", root / "a" / "other")
    config = yaml.safe_load((other / "config.yaml").read_text())
    config["optim"]["lr"] = 0.5
    (other / "config.yaml").write_text(yaml.safe_dump(config))
    summarise(root / "a")
    return {"run": root / "a" / "default" / "report.html", "sweep": root / "a" / "summary.html"}


def viewport(width: str):
    return dict(zip(("width", "height"), WIDTHS[width], strict=True))


def listened(page):
    """What its console says of errors, from now on."""
    said: list[str] = []
    page.on(
        "console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    return said


def opened(browser, path: Path, width: str, scheme="light"):
    """The page, and what its console said of errors."""
    page = browser.new_page(viewport=viewport(width), color_scheme=scheme)
    said = listened(page)
    page.goto(path.as_uri(), wait_until="load")
    return page, said


def findings(page, leaving_out=()):
    """What axe-core calls serious; `preload` would fetch the style sheets again, which a file may not."""
    context = {"exclude": [[selector] for selector in leaving_out]} if leaving_out else None
    options = {"preload": False, "resultTypes": ["violations"]}
    response = axe.Axe().run(page, context=context, options=options).response
    return [(v["id"], v["nodes"][0]["html"][:200]) for v in response["violations"] if v["impact"] in BAD]


def faults(page, path: Path, said: list[str], width: str, leaving_out=()):
    """What is wrong with a page of the site at a width."""
    said.clear()
    page.set_viewport_size(viewport(width))
    page.goto(path.as_uri(), wait_until="load")
    wide = page.evaluate("document.documentElement.scrollWidth")
    found = [("too wide", wide)] if wide > WIDTHS[width][0] else []
    return [*found, *findings(page, leaving_out), *(("console", words) for words in said)]


def drawn_and_accessible(browser, path: Path, width: str, scheme="light"):
    """The page, when its charts are drawn and nothing is wrong with it."""
    page, said = opened(browser, path, width, scheme)
    page.wait_for_function(DRAWN)
    assert page.locator(".chart svg").count() == page.locator(".chart").count() >= 1
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width][0]
    assert said == []
    assert findings(page) == []
    return page


def a_chart_answers_a_pointer(page):
    point = page.locator("#chart-1 .mark-symbol path").first
    point.hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "free energy" in page.locator("#vg-tooltip-element").inner_text()


def a_table_is_sorted_from_the_keyboard(page):
    button = page.get_by_role("button", name="optim.lr")
    column = (
        "() => [...document.querySelectorAll('.sortable tbody tr')].map((r) => r.cells[1].textContent.trim())"
    )
    button.focus()
    page.keyboard.press("Enter")
    assert page.evaluate(column) == ["0.001", "0.5"]
    page.keyboard.press("Enter")
    assert page.evaluate(column) == ["0.5", "0.001"]
    assert page.locator("th[aria-sort=descending]").count() == 1


def numbers_are_reached_from_the_keyboard(page):
    for summary in page.locator("details > summary").all():
        summary.focus()
        page.keyboard.press("Enter")
    assert page.locator("details:not([open])").count() == 0
    page.wait_for_function(DRAWN)
    charts = page.locator("[role=graphics-document]")  # what a screen reader says of a chart
    words = charts.evaluate_all("(charts) => charts.map((chart) => chart.ariaLabel)")
    assert len(words) == page.locator(".chart").count()
    assert all(said.endswith("The numbers are in a table.") for said in words)
    assert page.locator("main td").count() > 0
    regions = page.locator(".scroll")
    for i in range(regions.count()):  # a table wider than the page is scrolled by the arrow keys
        regions.nth(i).focus()
        assert regions.nth(i).evaluate("(region) => region === document.activeElement")


def a_chart_is_narrower_on_paper_and_as_before_afterwards(page):
    wide = "document.querySelector('#chart-1 svg').getBoundingClientRect().width"
    before = page.evaluate(wide)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(wide) == pytest.approx(440, abs=2)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(wide) == pytest.approx(before, abs=2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["run", "sweep"])
def test_a_report_is_drawn_and_accessible_on_a_phone(browser, made, name, scheme):
    drawn_and_accessible(browser, made[name], "phone", scheme).close()


def test_the_report_of_a_run_is_drawn_and_answers_at_a_desk(browser, made):
    page = drawn_and_accessible(browser, made["run"], "desktop")
    a_chart_answers_a_pointer(page)
    a_chart_is_narrower_on_paper_and_as_before_afterwards(page)
    numbers_are_reached_from_the_keyboard(page)
    page.close()


def test_the_report_of_a_sweep_is_drawn_and_answers_at_a_desk(browser, made):
    page = drawn_and_accessible(browser, made["sweep"], "desktop")
    a_table_is_sorted_from_the_keyboard(page)
    numbers_are_reached_from_the_keyboard(page)
    page.close()


def test_the_audit_finds_what_is_wrong(browser, tmp_path):
    words = '<p style="color: #999; background: #aaa">pale</p><img src="data:,">'
    script = '<script>console.error("no")</script>'
    (tmp_path / "bad.html").write_text(f"<!doctype html><title>t</title><main>{words}{script}</main>")
    page, said = opened(browser, tmp_path / "bad.html", "phone")
    assert {"color-contrast", "image-alt", "html-has-lang"} <= {name for name, _ in findings(page)}
    assert said == ["no"]
    page.close()


@pytest.fixture
def tab(browser):
    """One page to open all others in, and what its console says."""
    page = browser.new_page()
    yield page, listened(page)
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_page_is_accessible(tab, site, name):
    page, said = tab
    found = {width: faults(page, site.folder / name, said, width) for width in WIDTHS}
    assert found == {width: [] for width in WIDTHS}


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_a_list_of_the_site_is_accessible(tab, site, name):
    page, said = tab
    assert faults(page, site.folder / name, said, "phone") == []


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_the_pages_of_the_api_are_accessible(tab, site, share):
    """At phone width, without what each page has around its text: the written pages have it too."""
    page, said = tab
    paths = sorted((site.folder / API).glob("*.html"))
    assert len(paths) > 100
    around = (".sidebar-drawer", ".toc-drawer")
    found = {path.name: faults(page, path, said, "phone", around) for path in paths[share::SHARES]}
    assert {name: faults for name, faults in found.items() if faults} == {}


def test_no_page_of_the_site_is_left_out(site):
    there = {str(path.relative_to(site.folder)) for path in site.folder.rglob("*.html")}
    assert {name for name in there if not name.startswith(str(API))} == {*WRITTEN, *MADE}
