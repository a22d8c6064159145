"""The page under several price lists: one switch, everything under each list."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hierrouter.reports.page import as_html
from hierrouter.reports.results import Report
from tests.hierrouter.reports.examples import HOSTILE, example, two_prices
from tests.hierrouter.reports.test_page import Page

HOSTILE_NAME = HOSTILE[0]


def dear() -> Report:
    """Another report, so that it can be told from the first."""
    return replace(example(), alpha=0.25, notes=("Dear.",))


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(as_html(two_prices(), others={HOSTILE_NAME: dear(), "third": example()}))


def values(page: Page, tag: str, name: str) -> list[str]:
    return [value for found, key, value in page.attributes if (found, key) == (tag, name)]


def test_one_list_needs_no_switch() -> None:
    html = as_html(example())
    assert "<input" not in html and ":has(#prices" not in html
    assert "Prices:" not in html


def test_each_list_has_a_button_and_the_first_one_is_chosen(page: Page) -> None:
    assert values(page, "input", "id") == ["prices-1", "prices-2", "prices-3"]
    assert set(values(page, "input", "name")) == {"prices"}
    checked = page.attributes.index(("input", "checked", ""))
    assert values(page, "input", "checked") == [""]
    assert checked < page.attributes.index(("input", "id", "prices-2"))


def test_each_list_has_its_figures_and_tables(page: Page) -> None:
    assert page.tags.count("svg") == 3 * 2
    assert page.tags.count("table") == 6 + 5 + 5
    ids = [value for _, key, value in page.attributes if key == "id"]
    assert len(ids) == len(set(ids))
    for number in (1, 2, 3):
        assert values(page, "div", "class").count(f"prices-{number}") == 3
        assert f"body:has(#prices-{number}:not(:checked)) .prices-{number} " in page.style


def test_only_a_screen_hides_a_list(page: Page) -> None:
    assert page.style.index("@media screen") < page.style.index("body:has(#prices-1")
    assert page.style.count("display: none") == 3 + page.style.split("@media screen")[0].count(
        "display: none"
    )


def test_names_are_text(page: Page) -> None:
    words = "".join(page.words)
    assert "Prices: cheap" in words and f"Prices: {HOSTILE_NAME}" in words
    assert "script" not in page.tags


def test_what_is_said_of_a_list_stands_with_it() -> None:
    html = as_html(two_prices(), others={"dear": dear()})
    second = html.index('<div class="prices-2">')
    assert html.index("Dear.") > second
    assert html.count("R = Q − 0.25 C") == html[second:].count("R = Q − 0.25 C") > 0


def test_looks_at_the_test_fold_are_explained_where_they_are_counted() -> None:
    looked = replace(example(), provenance={"test_looks": {"this_router": 2, "all_routers": 5}})
    words = "".join(Page(as_html(looked)).words)
    for text in ("test_looks.this_router", "test_looks.all_routers", "looks at the test fold"):
        assert text in words
    assert "looks at the test fold" not in "".join(Page(as_html(example())).words)
