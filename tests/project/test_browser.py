"""The pages in Chromium, at desktop and phone width: no errors, and nothing that axe-core calls serious.

The report of a run, that of a sweep, and pages of the site where `make docs` has built it. Skipped where
Chromium or the extra `browser` is not installed.
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
SITE = ROOT / "build" / "docs"
PAGES = (
    "index.html",
    "tutorials/regression.html",
    "howto/prior.html",
    "reference/keys.html",
    "results.html",
    "reproduction/figure5.html",
)
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
    run_module.execute(declared("run", [*SMALL, "chains=2", f"folder={root / 'a' / 'default'}"]))
    other = shutil.copytree(root / "a" / "default", root / "a" / "other")
    config = yaml.safe_load((other / "config.yaml").read_text())
    config["optim"]["lr"] = 0.5
    (other / "config.yaml").write_text(yaml.safe_dump(config))
    summarise(root / "a")
    return {"run": root / "a" / "default" / "report.html", "sweep": root / "a" / "summary.html"}


def opened(browser, path: Path, width: str, scheme="light"):
    """The page, and what its console said of errors."""
    width_height = dict(zip(("width", "height"), WIDTHS[width], strict=True))
    page = browser.new_page(viewport=width_height, color_scheme=scheme)
    said: list[str] = []
    page.on(
        "console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.as_uri(), wait_until="load")
    return page, said


def findings(page):
    response = axe.Axe().run(page).response
    return [(v["id"], v["nodes"][0]["html"][:200]) for v in response["violations"] if v["impact"] in BAD]


@pytest.mark.parametrize(("width", "scheme"), [("desktop", "light"), ("phone", "light"), ("phone", "dark")])
@pytest.mark.parametrize("name", ["run", "sweep"])
def test_a_report_is_drawn_and_accessible(browser, made, name, width, scheme):
    page, said = opened(browser, made[name], width, scheme)
    page.wait_for_function(DRAWN)
    assert page.locator(".chart svg").count() == page.locator(".chart").count() >= 1
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width][0]
    assert said == []  # before the audit, which itself asks for a site's style sheets
    assert findings(page) == []
    page.close()


def test_the_audit_finds_what_is_wrong(browser, tmp_path):
    words = '<p style="color: #999; background: #aaa">pale</p><img src="data:,">'
    script = '<script>console.error("no")</script>'
    (tmp_path / "bad.html").write_text(f"<!doctype html><title>t</title><main>{words}{script}</main>")
    page, said = opened(browser, tmp_path / "bad.html", "phone")
    assert {"color-contrast", "image-alt", "html-has-lang"} <= {name for name, _ in findings(page)}
    assert said == ["no"]
    page.close()


def test_a_chart_answers_a_pointer(browser, made):
    page, _ = opened(browser, made["run"], "desktop")
    point = page.locator("#chart-1 .mark-symbol path").first
    point.hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    assert "free energy" in page.locator("#vg-tooltip-element").inner_text()
    page.close()


def test_a_table_is_sorted_from_the_keyboard(browser, made):
    page, _ = opened(browser, made["sweep"], "desktop")
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
    page.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_the_site_is_accessible(browser, name, width):
    if not (SITE / name).exists():
        pytest.skip("the site is not built; make docs builds it")
    page, said = opened(browser, SITE / name, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width][0]
    assert said == []  # before the audit, which itself asks for a site's style sheets
    assert findings(page) == []
    page.close()
