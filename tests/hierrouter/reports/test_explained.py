"""An explained query as text, Markdown, JSON, a list, and a section of the page."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from hierrouter.reports.explain import as_markdown, as_object, as_text, in_order, worst_table
from hierrouter.reports.page import CASES, as_html, cases
from hierrouter.reports.values import Choice, Explained, Node, Routed
from hierrouter.tables import as_markdown as table_as_markdown
from hierrouter.tables import json_text
from tests.hierrouter.reports.examples import HOSTILE, example
from tests.hierrouter.reports.test_page import Page

ALPHA = 0.1
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def node(number: int, quality: float, answer: str, models: int = 2) -> Node:
    parent, depth = (number - 1) // models, 1 if number <= models else 2
    names = [f"m{(n - 1) % models}" for n in (parent, number) if n]
    return Node(
        number=number,
        parent=parent,
        model=names[-1],
        route=">".join(names),
        answer=answer,
        quality=quality,
        accuracy=float(quality > 0.5),
        tokens_in=1_000,
        tokens_out=2,
        cost=float(depth),
        reward=quality - ALPHA * depth,
    )


def query(answers: tuple[str, ...] = tuple("abcdef"), question: str = "why?") -> Explained:
    """Two models and hops; node 6 (m1>m1) is right, the router ends at 5 (m1>m0)."""
    nodes = tuple(
        node(number, 1.0 if number == 6 else 0.2, answer)
        for number, answer in enumerate(answers, 1)
    )
    choices = (
        Choice(0, ("m0", "m1"), (0.25, 0.75), "m1", 0.0),
        Choice(2, ("m0", "m1"), (0.625, 0.375), "m0", 0.8),
    )
    return Explained(
        id="7",
        dataset="set",
        split="test",
        question=question,
        references=("f", "F"),
        scorer="token_f1",
        alpha=ALPHA,
        hops=2,
        nodes=nodes,
        best=6,
        fixed=3,
        router=Routed(5, choices),
    )


def hostile() -> Explained:
    texts = tuple(f"{text} {HOSTILE[-1]}" for text in HOSTILE[:6])
    return replace(
        query(texts, question="\n".join(HOSTILE)),
        id=HOSTILE[0],
        dataset=HOSTILE[6],
        references=HOSTILE,
    )


def wide_query() -> Explained:
    """20 models and 2 hops: more calls than a page shows."""
    nodes = tuple(node(number, 0.2, str(number), models=20) for number in range(1, 421))
    return replace(
        query(), nodes=nodes, best=21, fixed=420, router=Routed(41, query().router.choices)
    )


def test_text_shows_every_node_with_its_numbers_and_whose_it_is() -> None:
    text = as_text(query(), 160)
    assert "set/7  test fold; Q is token_f1; R = Q - 0.1 C" in text
    assert "Question   why?" in text and "Reference  f | F" in text
    for letter in "abcdef":
        assert re.search(rf"[│ ]   ?{letter}\n", text), letter
    assert "m1  Q 1.000, right, 1,000+2 tokens, C 2.000, R 0.8000  < best in hindsight" in text
    assert "m0  Q 0.200, wrong, 1,000+2 tokens, C 2.000, R 0.0000  < HierRouter" in text
    assert text.count("<") == 3
    assert "\x1b" not in text and "\x1b" in as_text(query(), 160, colour=True)


def test_text_has_the_routes_and_choices_as_tables() -> None:
    lines = [" ".join(line.split()) for line in as_text(query(), 160).splitlines()]
    assert "HierRouter m1>m0 0.200 2.000 0.0000 0.8000" in lines
    assert "best in hindsight m1>m1 1.000 2.000 0.8000 0.0000" in lines
    assert "best fixed route m0>m0 0.200 2.000 0.0000 0.8000" in lines
    assert "the question 0.250 0.750 m1 0.0000" in lines
    assert "m1 0.625 0.375 m0 0.8000" in lines


@pytest.mark.parametrize("width", [40, 80, 200])
def test_text_fits_the_terminal(width: int) -> None:
    assert max(map(cell_len, as_text(hostile(), width).splitlines())) <= width


def test_a_route_that_stops_early_is_named_so() -> None:
    found = replace(query(), router=Routed(2, query().router.choices[:1]))
    assert found.route(2) == "m1>stop"
    assert "HierRouter  m1>stop" in re.sub(r" {3,}", "  ", as_text(found, 160))


def test_calls_come_before_those_made_after_them() -> None:
    assert [node.number for node in in_order(query())] == [1, 3, 4, 2, 5, 6]


@pytest.mark.parametrize("show", [lambda found: as_text(found, 100), as_markdown])
def test_hostile_text_is_shown_and_steers_nothing(show) -> None:
    text = show(hostile())
    assert not STEERING.search(text)
    assert "x1b" in text and "u202egpj" in text


def test_text_shows_brackets_as_they_are() -> None:
    assert "[/INST] [red]x[i]" in as_text(hostile(), 200)


def test_markdown_has_no_html_links_or_tables_of_others() -> None:
    text = as_markdown(hostile())
    assert "<" not in text and "](" not in text
    assert "a\\|b\\*c\\_d" in text


def test_markdown_is_a_nested_list() -> None:
    lines = as_markdown(query()).splitlines()
    [right] = [line for line in lines if "Q 1.000" in line]
    assert right.startswith("  - **m1** *best in hindsight* Q 1.000, right")
    assert right.endswith(": f")
    assert sum(line.startswith("- **m") for line in lines) == 2


def test_json_holds_everything_whole() -> None:
    found = json.loads(json_text(as_object(hostile()), "query"))
    assert [item["answer"] for item in found["nodes"]] == [item.answer for item in hostile().nodes]
    assert found["question"] == hostile().question
    assert found["regret"] == pytest.approx(0.8)
    assert found["router"]["choices"][1]["probabilities"] == [0.625, 0.375]
    assert not STEERING.search(json_text(as_object(hostile()), "query"))


def test_a_list_has_one_line_for_each_query() -> None:
    short = replace(query(), router=Routed(2, query().router.choices[:1]))
    table = worst_table([query(), short], "test")
    assert [row.cells for row in table.rows] == [
        ("set/7", pytest.approx(0.8), 0.0, 0.8, "m1>m0", "m1>m1", "why?"),
        ("set/7", pytest.approx(0.7), 0.0, 0.0, "m1>stop", "m1>m1", "why?"),
    ]
    assert table_as_markdown(table).count("\n| set/7 ") == 2
    assert worst_table([], "validation").note == "No regret on the validation fold."


def test_the_page_has_a_folded_case_for_each_query() -> None:
    html = as_html(replace(example(), worst=(query(), replace(query(), id="8"))))
    page = Page(html)
    assert page.tags.count("details") == page.tags.count("summary") == 2
    assert page.tags.count("q") == 12
    assert ("details", "open", "") not in page.attributes
    words = " ".join("".join(page.words).split())
    assert "set/7 m1>m0 instead of m1>m1: regret 0.8000" in words
    cells = "<td>0.250</td><td>0.750</td><td>m1</td><td>0.0000</td>"
    assert f'<tr><th scope="row">the question</th>{cells}</tr>' in html
    assert page.attributes.count(("li", "class", "taken")) == 4
    assert ("a", "href", "#worst") in page.attributes


def test_without_cases_there_is_no_section() -> None:
    page = Page(as_html(example()))
    assert "details" not in page.tags
    assert ("a", "href", "#worst") not in page.attributes


def test_hostile_cases_are_shown_not_obeyed() -> None:
    html = as_html(replace(example(), worst=(hostile(),)))
    assert not STEERING.search(html)
    assert not {"script", "img", "iframe", "a"} & {
        tag for tag, name, _ in Page(html).attributes if name not in ("href", "class")
    }
    assert "<script" not in html and "<img" not in html
    words = "".join(Page(html).words)
    for text in ("<script>alert(1)</script>", "[/INST] [red]x[i]", "\\u202egpj"):
        assert text in words


def test_of_a_large_tree_the_page_shows_what_routes_passed() -> None:
    [case] = cases([wide_query()])
    # The question, and the states 1, 2 and 20 before the last calls of the three routes.
    assert case["hidden"] == 420 - 4 * 20
    assert [len(call["below"]) for call in case["calls"]] == [20, 20, *[0] * 17, 20]


def test_a_page_shows_so_many_cases_and_cuts_answers() -> None:
    long = query(("x" * 5_000, *"bcdef"))
    found = cases([long] * (CASES + 5))
    assert len(found) == CASES
    assert len(found[0]["calls"][0]["answer"]) == 600
