"""The report's page in a real browser: quiet, whole, inert, readable."""

from pathlib import Path
from typing import Any

import pytest

from hierrouter.learning.config import Objective
from hierrouter.learning.sweep import train_sweep
from hierrouter.learning.training import train
from hierrouter.replay.open_tree import OpenTree
from hierrouter.reports.estimates import Bootstrap
from hierrouter.reports.fold_report import DeferralTarget, report_on_fold
from hierrouter.reports.page import as_html
from tests.browser.conftest import SIZES, barriers, faint, opened
from tests.hierrouter.learning.trainings import ALPHA, EXACT_GLIMPSE, GRID, VALUE
from tests.hierrouter.reports.examples import hostile

MOST_BYTES = 3_000_000
QUICK = Bootstrap(n=100)
SMALLEST_LABEL = 7 / 0.75  # pixels, the height of the font: 7 points
# Of each drawing in sight its place on the page, and how much of it lies outside of its own frame.
DRAWINGS = """[...document.querySelectorAll('svg')].filter(
  svg => svg.checkVisibility()).map(svg => {
  const inside = svg.getBBox(), frame = svg.viewBox.baseVal, shown = svg.getBoundingClientRect()
  const marks = [...svg.querySelectorAll('path, use')].filter(
    mark => mark.getBBox().width + mark.getBBox().height > 0)
  const labels = [...svg.querySelectorAll('text')].map(
    label => parseFloat(getComputedStyle(label).fontSize) * shown.width / frame.width)
  return {
    width: shown.width, height: shown.height, marks: marks.length, labels: labels.length,
    smallest: Math.min(...labels),
    filled: inside.width * inside.height / (frame.width * frame.height),
    outside: Math.max(-inside.x, -inside.y, inside.x + inside.width - frame.width,
      inside.y + inside.height - frame.height),
  }
})"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, testbed_cache: Path) -> dict[str, Path]:
    """A page with every kind of figure, and one of harmful texts."""
    folder = tmp_path_factory.mktemp("pages")
    texts = {"testbed": page_of_testbed(testbed_cache), "hostile": as_html(hostile())}
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, "utf-8")
    return {name: folder / f"{name}.html" for name in texts}


def page_of_testbed(cache: Path) -> str:
    tree, objective = OpenTree(cache=cache).run(), Objective(ALPHA, allow_stop=True)
    trained = train(tree, objective, EXACT_GLIMPSE, 0)
    sweep = train_sweep(tree, GRID, objective, VALUE, 0)
    report = report_on_fold(
        tree, ALPHA, trained, sweep, {}, "test", QUICK, defer=DeferralTarget("facts", 0.5)
    )
    return as_html(report)


@pytest.mark.parametrize("name", ["testbed", "hostile"])
def test_a_page_asks_for_nothing_and_says_nothing(
    name: str, browser: Any, pages: dict[str, Path]
) -> None:
    with opened(browser, pages[name]) as (page, log):
        page.mouse.click(640, 400)
        page.keyboard.press("End")
        page.wait_for_load_state("networkidle")
        assert log == [f"request: {pages[name].as_uri()}"]
    assert pages[name].stat().st_size < MOST_BYTES


def test_every_plot_is_drawn(browser: Any, pages: dict[str, Path]) -> None:
    with opened(browser, pages["testbed"]) as (page, _):
        drawings = page.evaluate(DRAWINGS)
        # The frontier, the net rewards and the learning curve.
        assert page.locator("figure").count() == len(drawings) == 3
    for drawing in drawings:
        assert drawing["width"] > 600 and drawing["height"] > 250
        assert drawing["marks"] > 15 and drawing["labels"] > 8
    assert drawing["filled"] > 0.8 and drawing["outside"] < 3


def test_hostile_text_is_read_and_does_nothing(browser: Any, pages: dict[str, Path]) -> None:
    with opened(browser, pages["hostile"]) as (page, _):
        assert page.evaluate("window.harmed") is None
        assert page.locator("script, iframe, img, object, embed, form, link, base").count() == 0
        assert page.locator("[href]:not([href^='#'])").count() == 0
        assert page.locator("style, [style]").count() == 1
        assert page.evaluate("getComputedStyle(document.body).backgroundImage") == "none"


@pytest.mark.parametrize("name", ["testbed", "hostile"])
def test_a_phone_scrolls_down_only(name: str, browser: Any, pages: dict[str, Path]) -> None:
    with opened(browser, pages[name], "phone") as (page, _):
        width = page.evaluate("document.documentElement.scrollWidth")
        drawings = page.evaluate(DRAWINGS)
    assert width <= SIZES["phone"]["width"]
    assert min(drawing["smallest"] for drawing in drawings) >= SMALLEST_LABEL


@pytest.mark.parametrize("size", SIZES)
def test_the_first_screen_holds_the_message_and_the_figure_and_no_column_is_cut(
    size: str, browser: Any, pages: dict[str, Path]
) -> None:
    with opened(browser, pages["testbed"], size, fold=True) as (page, _):
        message, figure = (
            page.locator("h1").bounding_box(),
            page.locator("svg").first.bounding_box(),
        )
        tables = page.locator(".wide:has(table):visible")
        assert tables.count() == 3
        hidden = tables.evaluate_all("all => all.map(one => one.scrollWidth - one.clientWidth)")
    assert 0 < message["y"] < message["y"] + message["height"] < figure["y"]
    assert figure["y"] + figure["height"] <= SIZES[size]["height"]
    assert max(hidden) <= 0


def test_a_desk_shows_every_column(browser: Any, pages: dict[str, Path]) -> None:
    with opened(browser, pages["testbed"]) as (page, _):
        tables = page.locator(".wide:has(table)")
        assert tables.count() > 5
        hidden = tables.evaluate_all("all => all.map(one => one.scrollWidth - one.clientWidth)")
    assert max(hidden) <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_keeps_people_from_using_it(
    size: str, scheme: str, browser: Any, axe: str, pages: dict[str, Path]
) -> None:
    with opened(browser, pages["testbed"], size, scheme) as (page, _):
        assert barriers(page, axe) == []


def test_barriers_are_seen(browser: Any, axe: str, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(BAD)
    with opened(browser, tmp_path / "bad.html") as (page, _):
        assert {line.split(":")[0] for line in barriers(page, axe)} >= {"color-contrast"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out(scheme: str, browser: Any, pages: dict[str, Path]) -> None:
    with opened(browser, pages["testbed"], scheme=scheme) as (page, _):
        assert page.locator("td").count() > 300 and faint(page) == []
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    shade = sum(map(int, paper.removeprefix("rgb(").removesuffix(")").split(",")))
    assert (shade < 128) == (scheme == "dark")


def test_totals_stay_in_sight(browser: Any, pages: dict[str, Path]) -> None:
    for size in SIZES:
        with opened(browser, pages["testbed"], size) as (page, _):
            table = page.locator("table.totals").nth(1)  # costs: the widest
            frame = table.locator("..").bounding_box()
            header = table.locator("thead th")
            total = header.last.bounding_box()
            assert header.last.inner_text() == "all"
            assert total["x"] + total["width"] <= frame["x"] + frame["width"] + 1
            assert total["width"] > 20


BAD = """<!doctype html><body style="color: #999; background: #bbb">
<script>console.log(1); window.harmed = 1; fetch("http://127.0.0.1:9/").catch(() => {})</script>
<p>faint</p>
<svg viewBox="0 0 900 9" style="width: 900px"><text font-size="3" y="9">small</text></svg>"""


def test_what_is_watched_for_is_seen(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "bad.html"
    file.write_text(BAD)
    with opened(browser, file, "phone") as (page, log):
        page.wait_for_load_state("networkidle")
        assert {"console: 1", "request: http://127.0.0.1:9/"} <= set(log)
        assert page.evaluate("window.harmed") == 1
        assert page.evaluate("document.documentElement.scrollWidth") > SIZES["phone"]["width"]
        assert page.evaluate(DRAWINGS)[0]["smallest"] < SMALLEST_LABEL
        assert faint(page) == ["faint"]
