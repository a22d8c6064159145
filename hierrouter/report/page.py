"""One self-contained HTML page.

In: a `Report`. Out: the page as text: headline, figures, tables, definitions, provenance. It loads
nothing and runs nothing: no script, no network, and a Content-Security-Policy that says so. All
foreign text goes through autoescape and `safe_text`. Not covered: where the page is written.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hierrouter.report.deferral_curve import deferral_figure
from hierrouter.report.definitions import definitions
from hierrouter.report.depth_curve import depth_curve_figure
from hierrouter.report.plots import BAND_OF, frontier_figure, reward_figure
from hierrouter.report.results import ALL, Report, Row
from hierrouter.report.table import Table
from hierrouter.report.tables import ROUTES_SHOWN, report_tables
from hierrouter.report.text import one_line, safe_text
from hierrouter.report.worst import cases

STYLE_SHEETS = ("report.css", "worst.css")


@dataclass(frozen=True)
class Headline:
    """One number at the top of the page, what it is, and what it is compared with."""

    label: str
    value: str
    detail: str


@dataclass(frozen=True)
class Figure:
    """A drawing, its caption, and what a screen reader calls it."""

    caption: str
    label: str
    svg: Markup


@dataclass(frozen=True)
class Cell:
    """A cell as the page shows it."""

    text: str
    best: bool


def as_html(report: Report, routes: int | None = ROUTES_SHOWN) -> str:
    """The page, the same bytes for the same report.

    Args:
        routes: how many fixed routes the tables show, the best ones first; None for all.
    """
    templates = resources.files("hierrouter.report").joinpath("templates")
    style = "".join(templates.joinpath(name).read_text("utf-8") for name in STYLE_SHEETS)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            style=Markup(style),  # noqa: S704 - our own file, not foreign text
            policy=content_security_policy(style),
            report=report,
            headlines=headlines(report),
            figures=_figures(report),
            tables=[_view(table) for table in report_tables(report, routes)],
            worst=cases(report.worst),
            definitions=definitions(report),
            provenance=_flat(report.provenance),
        )
    )


def content_security_policy(style: str) -> str:
    """Nothing is loaded, run, framed or sent; the one allowed style sheet is named by its hash."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def headlines(report: Report) -> tuple[Headline, ...]:
    """What a reader in a hurry wants to know; baselines only where nothing has been trained."""
    router, single = report.router, report.best("single")
    if router is None:
        bounds = [single, report.best("route"), report.best("oracle")]
        labels = ["Best pool model", "Best fixed route", "Oracle"]
        return tuple(
            Headline(f"{label}, R", f"{row.reward:.3f}", f"{row.policy}, {_span(row)}")
            for label, row in zip(labels, bounds, strict=True)
            if row is not None
        )
    found = [Headline("Net reward R of HierRouter", f"{router.reward:.3f}", _span(router))]
    closed, route, factor = (
        report.gap_closed.get("all"),
        report.best("route"),
        report.quality_factor,
    )
    if closed is not None:
        found.append(
            Headline(
                "Gap closed",
                f"{closed:.1%}",
                f"{_share_span(report)}of the {report.gap('all'):.3f} from the best fixed route to "
                "the oracle",
            )
        )
    if route is not None and route.difference is not None:
        found.append(
            Headline(
                "R over the best fixed route",
                f"{route.difference:+.3f}",
                f"{route.policy}, [{route.difference_low:+.3f}, {route.difference_high:+.3f}]",
            )
        )
    best = report.best("single", by="quality")
    if factor is not None and best is not None:
        found.append(
            Headline(
                "Quality over the best pool model",
                f"{factor:.2f}×",
                f"Q {router.quality:.3f} against {best.quality:.3f} of {best.policy}",
            )
        )
    return tuple(found)


def _figures(report: Report) -> list[Figure]:
    """Our own drawings: the SVG is inert, see `figure`."""
    level = f"{report.bootstrap.level:.0%}"
    band = (
        f"; band: {level} intervals of Q, {BAND_OF[report.has_spread]}" if report.frontier else ""
    )
    bars = "; thin bars: from the lowest to the highest seed" if report.has_spread else ""
    drawn = [
        (
            f"Net reward by dataset, with {level} intervals",
            "net reward by dataset",
            reward_figure(report),
        ),
        (
            f"Quality against cost; up and to the left is better{band}{bars}",
            "quality against cost",
            frontier_figure(report),
        ),
    ]
    if report.depth_curve:
        caption = "Depth: what answering more queries with more than one call brings, by alpha"
        drawn.append((caption, "depth curve", depth_curve_figure(report)))
    if report.deferral:
        caption = "Deferral: what handing more queries over to a stronger model brings"
        drawn.append((caption, "deferral curve", deferral_figure(report, report.deferral)))
    return [Figure(caption, label, Markup(svg)) for caption, label, svg in drawn]  # noqa: S704


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("hierrouter.report"),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _visible(value: Any) -> Any:
    """What the template prints: foreign text with its control characters shown."""
    return safe_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _view(table: Table) -> dict[str, Any]:
    """A table as the template wants it: cells as text, rows in groups."""
    shown, best = table.shown(), table.best()

    def cells(line: int) -> list[Cell]:
        return [Cell(text, (line, at) in best) for at, text in enumerate(shown[line])]

    def group(line: int) -> str:
        return table.rows[line].group

    return {
        "title": table.title,
        "note": table.note,
        "columns": [column.title for column in table.columns],
        "groups": [
            (name, [cells(line) for line in lines])
            for name, lines in groupby(range(len(table.rows)), group)
        ],
    }


def _span(row: Row) -> str:
    return f"[{row.reward_low:.3f}, {row.reward_high:.3f}] over {row.n} queries"


def _share_span(report: Report) -> str:
    """The interval of the share of the gap closed, where it has bounds."""
    ends = report.gap_closed_intervals.get(ALL)
    return f"[{ends[0]:.1%}, {ends[1]:.1%}] " if ends else ""


def _flat(provenance: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested provenance as lines `a.b` -> text, sorted by key."""
    lines: list[tuple[str, str]] = []
    for key, value in sorted(provenance.items()):
        if isinstance(value, Mapping):
            lines.extend(_flat(value, f"{prefix}{key}."))
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            lines.append((one_line(f"{prefix}{key}"), text))
    return lines
