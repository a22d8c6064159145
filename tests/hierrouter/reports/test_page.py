"""The page: whole, inert, and the same each time."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from hierrouter.reports.headline import definitions, headlines
from hierrouter.reports.page import as_html
from hierrouter.reports.results import Report
from tests.hierrouter.reports.examples import deferring, example, hostile, policies, stopping

FETCHING = {"src", "srcset", "href", "action", "data", "poster", "background", "formaction"}


class Page(HTMLParser):
    """Tags, attributes and visible text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.style = ""
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend((tag, name, value or "") for name, value in attrs)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "style" and not self.style:
            self.style = data
        else:
            self.words.append(data)

    @property
    def policy(self) -> str:
        values = [
            value for tag, name, value in self.attributes if (tag, name) == ("meta", "content")
        ]
        return next(value for value in values if "default-src" in value)


@pytest.fixture(scope="module", params=[example, hostile, stopping, deferring])
def page(request: pytest.FixtureRequest) -> Page:
    report: Report = request.param()
    return Page(as_html(report))


def test_nothing_is_loaded_or_run(page: Page) -> None:
    assert not {"script", "iframe", "img", "link", "object", "embed", "form", "base"} & set(
        page.tags
    )
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name != "style", tag
        if name.rpartition(":")[2] in FETCHING:
            assert value.startswith("#"), (tag, name, value)
    assert "url(" not in page.style and "@import" not in page.style


def test_policy_allows_the_one_style_sheet_and_nothing_else(page: Page) -> None:
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert page.policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert page.tags.count("style") == 1


def test_policy_comes_before_anything_it_governs() -> None:
    html = as_html(example())
    assert html.index("Content-Security-Policy") < html.index("<style")


def test_links_within_the_page_lead_somewhere(page: Page) -> None:
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    targets = {value[1:] for _, name, value in page.attributes if name == "href"}
    assert targets <= set(ids)


def test_hostile_text_is_shown_not_obeyed() -> None:
    html = as_html(hostile())
    assert "<script" not in html and "<b>bold" not in html and "<img" not in html
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html)
    words = "".join(Page(html).words)
    for shown in ("<script>alert(1)</script>", "\\x1b]8;;http://x\\x07link", "\\u202egpj", "=1+1"):
        assert shown in words


def test_every_table_figure_and_section_is_there(page: Page) -> None:
    assert page.tags.count("table") in (5, 6)
    assert page.tags.count("svg") == page.tags.count("figure") == page.tags.count("table") - 3
    ids = {value for _, name, value in page.attributes if name == "id"}
    assert {"main", "figures", "tables", "definitions", "provenance"} <= ids


def test_scrolling_parts_can_be_reached_by_keyboard(page: Page) -> None:
    wide = page.attributes.count(("div", "class", "wide"))
    assert wide == page.tags.count("table") + page.tags.count("figure")
    assert page.attributes.count(("div", "tabindex", "0")) == wide


def test_page_is_deterministic() -> None:
    assert as_html(example()) == as_html(example())


def test_headlines_of_a_trained_router() -> None:
    shown = {line.label: (line.value, line.detail) for line in headlines(example())}
    assert shown["Net reward R of HierRouter"][0] == "0.600"
    assert shown["Gap closed"] == (
        "50.0%",
        "[0.0%, 87.5%] of the 0.400 from the best fixed route to the oracle",
    )
    assert shown["R over the best fixed route"][0] == "+0.200"
    assert "the best one on these queries" in shown["R over the best fixed route"][1]
    assert shown["Quality over the best pool model"][0] == "2.33×"


def untrained() -> Report:
    return example([policy for policy in policies() if policy.kind != "router"])


def test_without_a_router_the_page_says_so() -> None:
    assert "No trained policy" in as_html(untrained())
    assert "No trained policy" not in as_html(example())
    assert [line.value for line in headlines(untrained())] == ["0.250", "0.400", "0.800"]


def test_definitions_name_every_symbol() -> None:
    words = "".join(Page(as_html(example())).words)
    for term in (
        "gap closed",
        "95% bootstrap, 200 resamples",
        "alpha = 0.1",
        "token_f1",
    ):
        assert term in words


def test_a_router_that_may_stop_has_a_table_and_a_figure_more() -> None:
    page = Page(as_html(stopping()))
    assert (page.tags.count("table"), page.tags.count("figure")) == (6, 3)
    words = "".join(page.words)
    for shown in (
        "Where HierRouter stops",
        "Depth: what",
        "from the lowest to the highest seed",
        "other seeds",
    ):
        assert shown in words
        assert shown not in as_html(example())


@pytest.mark.parametrize("term", ["ppo, exact", "state view", "stop", "depth curve", "seeds"])
def test_terms_are_explained_where_they_occur(term: str) -> None:
    assert term in dict(definitions(stopping()))
    assert term not in dict(definitions(example()))


def test_provenance_says_how_the_router_was_trained() -> None:
    html = as_html(stopping())
    for key, value in (
        ("algo", "exact"),
        ("view", "query+answer"),
        ("allow_stop", "true"),
        ("max_cost", "null"),
        ("trained_alpha", "0.1"),
    ):
        assert f"<dt>{key}</dt><dd><code>{value}</code></dd>" in html


def test_provenance_is_flat_and_sorted() -> None:
    html = as_html(example())
    keys = ["<dt>cache</dt>", "<dt>encoder.name</dt>", "<dt>seed</dt>"]
    places = [html.index(key) for key in keys]
    assert places == sorted(places)
