"""One self-contained HTML page.

In: a `Report`, and the same under other prices. Out: the page as text: headline, figures, tables,
definitions, provenance. It loads nothing and runs nothing: no script, no network, and a
Content-Security-Policy that says so. All foreign text goes through autoescape and `safe_text`. Not
covered: where the page is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from markupsafe import Markup

from hierrouter.report.definitions import definitions
from hierrouter.report.figure import Drawing
from hierrouter.report.figures import figures
from hierrouter.report.headline import Headline, headlines
from hierrouter.report.html import BASE_STYLES, content_security_policy, environment
from hierrouter.report.page_table import PageTable, page_table
from hierrouter.report.results import Report
from hierrouter.report.sources import source_lines, source_terms
from hierrouter.report.svg import as_svg
from hierrouter.report.table import Table
from hierrouter.report.tables import report_tables
from hierrouter.report.worst import cases

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
    templates = resources.files("hierrouter.report").joinpath("templates")
    style = "".join(templates.joinpath(name).read_text("utf-8") for name in STYLE_SHEETS)
    style += _switching(len(lists))
    return (
        environment("hierrouter.report")
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
