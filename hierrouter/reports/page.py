"""One self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from markupsafe import Markup

from hierrouter.reports.drawing import Drawing, as_svg
from hierrouter.reports.explain import EMPTY, facts, marks, numbers, tables
from hierrouter.reports.figures import figures
from hierrouter.reports.headline import Headline, definitions, headlines, source_lines, source_terms
from hierrouter.reports.html import (
    BASE_STYLES,
    PageTable,
    content_security_policy,
    environment,
    page_table,
)
from hierrouter.reports.results import Report
from hierrouter.reports.tables import report_tables
from hierrouter.reports.values import Explained, Node
from hierrouter.tables import Table, one_line

CASES = 10  # that a page shows
LONGEST_ANSWER = 600  # characters; 10 cases of long answers shall not fill the page
WHOLE_TREE = 60  # calls; of larger trees only those beside a route are shown


@dataclass(frozen=True)
class Call:
    """A node as the page shows it.

    Attributes:
        model: that was called.
        numbers: what it gave and took.
        answer: its response, cut.
        marks: whose routes end here.
        taken: whether the router's route leads through it.
        below: the calls made after it.
    """

    model: str
    numbers: str
    answer: str
    marks: tuple[str, ...]
    taken: bool
    below: tuple[Call, ...]


@dataclass(frozen=True)
class Case:
    """A query as the page shows it.

    Attributes:
        name: `dataset/id`.
        loss: the router's route, the best one, and the regret.
        facts: which query it is, and how it is valued.
        question, reference: texts.
        calls: those made on the question, with all that is shown below them.
        hidden: how many calls of the tree are not shown.
        tables: the routes to compare, and the router's choices.
    """

    name: str
    loss: str
    facts: str
    question: str
    reference: str
    calls: tuple[Call, ...]
    hidden: int
    tables: tuple[Table, ...]


def cases(found: Sequence[Explained]) -> list[Case]:
    """What the page shows of these queries, at most `CASES` of them."""
    return [_case(query) for query in found[:CASES]]


def _case(found: Explained) -> Case:
    shown = _shown(found)
    return Case(
        name=found.name,
        loss=_loss(found),
        facts=facts(found),
        question=one_line(found.question, LONGEST_ANSWER),
        reference=one_line(" | ".join(found.references), LONGEST_ANSWER),
        calls=tuple(_call(found, node, shown) for node in found.below(0)),
        hidden=len(found.nodes) - len(shown),
        tables=tuple(tables(found)),
    )


def _loss(found: Explained) -> str:
    if found.router is None or found.regret is None:
        return f"best: {found.route(found.best)}"
    taken, best = found.route(found.router.node), found.route(found.best)
    return f"{taken} instead of {best}: regret {found.regret:.4f}"


def _call(found: Explained, node: Node, shown: frozenset[int]) -> Call:
    return Call(
        model=node.model,
        numbers=numbers(found, node),
        answer=one_line(node.answer, LONGEST_ANSWER) or EMPTY,
        marks=marks(found, node.number),
        taken=found.router is not None and node.number in found.on_way(found.router.node),
        below=tuple(
            _call(found, child, shown)
            for child in found.below(node.number)
            if child.number in shown
        ),
    )


def _shown(found: Explained) -> frozenset[int]:
    """Numbers of all calls; in a large tree, of those at the states that some route passes."""
    if len(found.nodes) <= WHOLE_TREE:
        return frozenset(node.number for node in found.nodes)
    ends = [found.best, found.fixed, found.router.node if found.router else None]
    states = {0, *(step for end in ends if end is not None for step in found.on_way(end))}
    return frozenset(child.number for state in states for child in found.below(state))


STYLE_SHEETS = (*BASE_STYLES, "prices.css", "worst.css")


@dataclass(frozen=True)
class Figure:
    """A drawing as the page shows it; the SVG is our own, and inert."""

    drawing: Drawing
    svg: Markup


@dataclass(frozen=True)
class Prices:
    """All that depends on prices, under one price list.

    Attributes:
        number: from 1, for the switch and for ids.
        name: of the price list; empty where there is but one.
        notes: sentences that a reader must not miss.
        analysis: the tables beside those of the policies.
    """

    number: int
    name: str
    notes: tuple[str, ...]
    headlines: tuple[Headline, ...]
    figures: tuple[Figure, ...]
    tables: tuple[PageTable, ...]
    analysis: tuple[PageTable, ...]


def as_html(report: Report, others: Mapping[str, Report] | None = None) -> str:
    """The page, the same bytes for the same reports.

    Args:
        others: the same report under further price lists, by their names. A switch at the top
            chooses the list; print shows all of them.
    """
    lists = {"": report} if not others else {_own_name(report): report, **others}
    templates = resources.files("hierrouter.reports").joinpath("templates")
    style = "".join(templates.joinpath(name).read_text("utf-8") for name in STYLE_SHEETS)
    style += _switching(len(lists))
    return (
        environment("hierrouter.reports")
        .get_template("report.html.j2")
        .render(
            style=Markup(style),  # noqa: S704 - our own text, not foreign
            policy=content_security_policy(style),
            report=report,
            lists=[
                _under(number, name, one)
                for number, (name, one) in enumerate(lists.items(), start=1)
            ],
            worst=cases(report.worst),
            definitions=(*definitions(report), *source_terms(report.provenance)),
            provenance=source_lines(report.provenance),
        )
    )


def _own_name(report: Report) -> str:
    """What the price list of the report itself is called."""
    return report.price_lists[0].name if report.price_lists else "prices of this report"


def _under(number: int, name: str, report: Report) -> Prices:
    tables = report_tables(report, analysis=True)
    own = len(report_tables(report))  # those of the analysis come after these
    return Prices(
        number=number,
        name=name,
        notes=report.notes,
        headlines=headlines(report),
        figures=_figures(report, salt=f"prices-{number}-"),
        tables=_page_tables(tables[:own]),
        analysis=_page_tables(tables[own:]),
    )


def _figures(report: Report, salt: str) -> tuple[Figure, ...]:
    return tuple(
        Figure(drawing, Markup(as_svg(drawing, salt=salt)))  # noqa: S704 - drawn by us, texts escaped
        for drawing in figures(report)
    )


def _page_tables(tables: Sequence[Table]) -> tuple[PageTable, ...]:
    return tuple(page_table(table) for table in tables)


def _switching(count: int) -> str:
    """Rules by which a page shows one price list; where a browser lacks :has, it shows all."""
    rules = (
        f"body:has(#prices-{number}:not(:checked)) .prices-{number} {{ display: none; }}\n"
        for number in range(1, count + 1)
    )
    return f"@media screen {{\n{''.join(rules)}}}\n" if count > 1 else ""
