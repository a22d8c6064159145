"""The page: whole, inert, the same each time."""

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html import escape
from html.parser import HTMLParser

import pytest

from hierrouter.reports.page import READER_QUESTIONS, VISIBLE_TABLES, as_html
from hierrouter.reports.results import ReportData
from hierrouter.reports.sentences import message
from hierrouter.reports.tables import report_tables
from tests.hierrouter.reports.examples import deferring, example, hostile, stopping

FETCHING = {"src", "srcset", "href", "action", "data", "poster", "background", "formaction"}


class Page(HTMLParser):
    """Tags, attributes and visible text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.style = ""
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend((tag, name, value or "") for name, value in attrs)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "style" and not self.style:
            self.style = data
        else:
            self.words += data

    def values(self, name: str, tag: str | None = None) -> list[str]:
        """Of one attribute, wherever it stands or on one kind of tag."""
        return [v for t, n, v in self.attributes if n == name and tag in (None, t)]


@cache
def html_of(make: Callable[[], ReportData]) -> str:
    """Drawn once."""
    return as_html(make())


@pytest.fixture(scope="module", params=[example, hostile, stopping, deferring])
def page(request: pytest.FixtureRequest) -> Page:
    return Page(html_of(request.param))


def test_nothing_is_loaded_or_run(page: Page) -> None:
    harmful = {"script", "iframe", "img", "link", "object", "embed", "form", "base"}
    assert not harmful & set(page.tags)
    for tag, name, value in page.attributes:
        assert not name.startswith("on") and name != "style", (tag, name)
        if name.rpartition(":")[2] in FETCHING:
            assert value.startswith("#"), (tag, name, value)
    assert "url(" not in page.style and "@import" not in page.style


def test_policy_allows_the_one_style_sheet_and_nothing_else(page: Page) -> None:
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    [policy] = [value for value in page.values("content", "meta") if "default-src" in value]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert page.tags.count("style") == 1
    html = html_of(example)  # the policy comes before anything it governs
    assert html.index("Content-Security-Policy") < html.index("<style")


def test_every_part_is_there_and_links_lead_somewhere(page: Page) -> None:
    assert page.tags.count("table") in (6, 7)
    # The frontier, and the net reward by dataset, which two figures share no id.
    assert page.tags.count("svg") == page.tags.count("figure") == 2
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {value[1:] for value in page.values("href")} <= set(ids)


def test_hostile_text_is_shown_not_obeyed() -> None:
    html = html_of(hostile)
    assert "<script" not in html and "<b>bold" not in html and "<img" not in html
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html)
    words = Page(html).words
    for shown in ("<script>alert(1)</script>", "\\x1b]8;;http://x\\x07link", "\\u202egpj", "=1+1"):
        assert shown in words


def test_scrolling_parts_can_be_reached_by_keyboard(page: Page) -> None:
    wide = page.attributes.count(("div", "class", "wide"))
    assert wide == page.tags.count("table") + page.tags.count("figure")
    assert page.attributes.count(("div", "tabindex", "0")) == wide


def test_the_message_leads_then_the_frontier_then_three_tables_and_questions_are_folded() -> None:
    html = html_of(stopping)
    assert f"<h1>{escape(message(stopping()))}</h1>" in html
    open_part, *folded = html.split("<details>")
    assert open_part.index("<h1>") < open_part.index("<svg") < open_part.index("<table")
    assert open_part.count("<table") == len(VISIBLE_TABLES) == 3
    asked = [part.split("</summary>")[0].strip().removeprefix("<summary>") for part in folded]
    assert set(asked[:-2]) <= set(READER_QUESTIONS)
    assert asked[-2:] == ["What do the words mean?", "Where do the figures come from?"]
    assert "hierrouter" not in Page(html).words
    for key in stopping().provenance:  # no identifiers in sight
        assert f">{key}<" not in open_part
    names = [name for shown in READER_QUESTIONS.values() for name in shown]
    assert {table.name for table in report_tables(stopping())} <= {*VISIBLE_TABLES, *names}


def test_definitions_name_every_symbol_and_the_page_is_deterministic() -> None:
    words = Page(html_of(example)).words
    for term in ("gap closed", "95% bootstrap, 200 resamples", "alpha = 0.1", "token_f1"):
        assert term in words
    assert as_html(example()) == html_of(example)


def test_a_router_that_may_stop_has_a_table_and_terms_more() -> None:
    page, plain = Page(html_of(stopping)), html_of(example)
    assert (page.tags.count("table"), page.tags.count("figure")) == (7, 2)
    assert "Where HierRouter stops" in page.words and "Where HierRouter stops" not in plain
    for term in ("ppo, exact, value", "state view", "stop"):
        assert f"<dt>{term}</dt>" in html_of(stopping) and f"<dt>{term}</dt>" not in plain
    assert "<dt>deferral</dt>" in html_of(deferring) and "<dt>deferral</dt>" not in plain


def test_provenance_is_flat_sorted_and_says_how_the_router_was_trained() -> None:
    html = html_of(stopping)
    for key, value in (
        ("algo", "exact"),
        ("view", "query+answer"),
        ("allow_stop", "true"),
        ("trained_alpha", "0.1"),
    ):
        assert f"<dt>{key}</dt><dd><code>{value}</code></dd>" in html
    keys = re.findall(r"<dt>(cache|encoder.name|seed)</dt>", html_of(example))
    assert keys == ["cache", "encoder.name", "seed"]
    looked = replace(example(), provenance={"test_looks": {"this_router": 2, "all_routers": 5}})
    words = Page(as_html(looked)).words
    for text in ("test_looks.this_router", "test_looks.all_routers", "looks at the test fold"):
        assert text in words
    assert "looks at the test fold" not in html_of(example)
