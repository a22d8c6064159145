"""The report as one HTML page that loads nothing; what its words mean is in terms.html.j2."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from hierrouter.reports.drawing import as_svg
from hierrouter.reports.explain import EMPTY, Explained, Node, facts, marks, numbers, tables
from hierrouter.reports.figures import figures
from hierrouter.reports.html import BASE_STYLES, render, template_texts
from hierrouter.reports.results import Report
from hierrouter.reports.tables import report_tables
from hierrouter.reports.values import ALL, Row
from hierrouter.tables import one_line

LONG = 16  # rows; longer tables of the analysis are folded
CASES = 10  # that a page shows
LONGEST_ANSWER = 600  # characters; 10 cases of long answers shall not fill the page
WHOLE_TREE = 60  # calls; of larger trees only those beside a route are shown


def as_html(report: Report) -> str:
    """The page, the same bytes for the same report."""
    every = report_tables(report, analysis=True)
    own = len(report_tables(report))  # those of the analysis come after these
    return render(
        "report.html.j2",
        template_texts(*BASE_STYLES, "worst.css"),
        report=report,
        headlines=headlines(report),
        figures=[(drawing, Markup(as_svg(drawing))) for drawing in figures(report)],  # noqa: S704 - drawn by us
        tables=every[:own],
        analysis=every[own:],
        long=LONG,
        worst=cases(report.worst),
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


def cases(found: Sequence[Explained]) -> list[dict[str, Any]]:
    """What the page shows of these queries, at most `CASES` of them; see worst.html.j2.

    Their texts are cut. Of a large tree only the calls at the states that some route passes are
    shown; `hidden` counts the others.
    """
    return [_case(query) for query in found[:CASES]]


def _case(found: Explained) -> dict[str, Any]:
    calls = _calls_shown(found)
    best = found.node(found.best).route
    loss = f"best: {best}"
    if found.router:
        loss = f"{found.node(found.router.node).route} instead of {best}: regret {found.regret:.4f}"
    return {
        "name": found.name,
        "loss": loss,
        "facts": facts(found),
        "question": one_line(found.question, LONGEST_ANSWER),
        "reference": one_line(" | ".join(found.references), LONGEST_ANSWER),
        "calls": [_call(found, node, calls) for node in found.below(0)],
        "hidden": len(found.nodes) - len(calls),
        "tables": tables(found),
    }


def _call(found: Explained, node: Node, shown: frozenset[int]) -> dict[str, Any]:
    """One call, and in `below` those made after it."""
    below = [child for child in found.below(node.number) if child.number in shown]
    return {
        "model": node.model,
        "numbers": numbers(found, node),
        "answer": one_line(node.answer, LONGEST_ANSWER) or EMPTY,
        "marks": marks(found, node.number),
        "taken": found.router is not None and node.number in found.on_way(found.router.node),
        "below": [_call(found, child, shown) for child in below],
    }


def _calls_shown(found: Explained) -> frozenset[int]:
    """Their numbers: of all, or in a large tree of those at the states that some route passes."""
    if len(found.nodes) <= WHOLE_TREE:
        return frozenset(node.number for node in found.nodes)
    ends = [found.best, found.fixed, found.router.node if found.router else None]
    states = {0, *(step for end in ends if end is not None for step in found.on_way(end))}
    return frozenset(child.number for state in states for child in found.below(state))
