"""The report as one HTML page that loads nothing; what its words mean is in terms.html.j2."""

import json
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from hierrouter.reports.drawing import as_svg
from hierrouter.reports.figures import figures
from hierrouter.reports.html import BASE_STYLES, render, template_texts
from hierrouter.reports.results import Report
from hierrouter.reports.tables import report_tables
from hierrouter.reports.values import ALL, Row
from hierrouter.tables import one_line

LONG = 16  # rows; longer tables of the analysis are folded


def as_html(report: Report) -> str:
    """The page, the same bytes for the same report."""
    every = report_tables(report, analysis=True)
    own = len(report_tables(report))  # those of the analysis come after these
    return render(
        "report.html.j2",
        template_texts(*BASE_STYLES),
        report=report,
        headlines=headlines(report),
        figures=[(drawing, Markup(as_svg(drawing))) for drawing in figures(report)],  # noqa: S704 - drawn by us
        tables=every[:own],
        analysis=every[own:],
        long=LONG,
        provenance=source_lines(report.provenance),
    )


def headlines(report: Report) -> list[tuple[str, str, str]]:
    """What a reader in a hurry wants to know: what it is, the number, what it is compared with.

    Bounds only where nothing has been trained.
    """
    router = report.router
    if router is None:
        kinds = {"single": "Best pool model", "route": "Best fixed route", "oracle": "Oracle"}
        bounds = [(label, report.best(kind)) for kind, label in kinds.items()]
        return [
            (f"{label}, R", f"{row.reward:.3f}", f"{row.policy}, {_span(row)}")
            for label, row in bounds
            if row is not None
        ]
    found = [("Net reward R of HierRouter", f"{router.reward:.3f}", _span(router))]
    closed, route = report.gap_closed.get(ALL), report.best("route")
    if closed is not None:
        gap = f"{report.gap(ALL):.3f} from the best fixed route to the oracle"
        ends = report.gap_closed_intervals.get(ALL)  # None where it has no bounds
        span = f"[{_share(ends[0])}, {_share(ends[1])}] " if ends else ""
        found.append(("Gap closed", _share(closed), f"{span}of the {gap}"))
    if route is not None and route.difference is not None:
        lead = f"[{route.difference_low:+.3f}, {route.difference_high:+.3f}]"
        said = f"{route.policy}, the best one on these queries, {lead}"
        found.append(("R over the best fixed route", f"{route.difference:+.3f}", said))
    best, factor = report.best("single", by="quality"), report.quality_factor
    if factor is not None and best is not None:
        said = f"Q {router.quality:.3f} against {best.quality:.3f} of {best.policy}"
        found.append(("Quality over the best pool model", f"{factor:.2f}×", said))
    return found


def _span(row: Row) -> str:
    return f"[{row.reward_low:.3f}, {row.reward_high:.3f}] over {row.n} queries"


def _share(share: float) -> str:
    """In percent; what is not quite all of it is not called so."""
    return "> 99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"


def source_lines(provenance: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested provenance as lines `a.b` -> text, sorted by key."""
    lines: list[tuple[str, str]] = []
    for key, value in sorted(provenance.items()):
        if isinstance(value, Mapping):
            lines.extend(source_lines(value, f"{prefix}{key}."))
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            lines.append((one_line(f"{prefix}{key}"), text))
    return lines
