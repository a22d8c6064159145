"""The report as one HTML page that loads nothing; what its words mean is in terms.html.j2."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from hierrouter.reports.drawing import as_svg
from hierrouter.reports.figures import frontier_figure
from hierrouter.reports.html import BASE_STYLES, render, template_texts
from hierrouter.reports.results import Report
from hierrouter.reports.sentences import claims_sentence, message
from hierrouter.reports.tables import report_tables, summary_table
from hierrouter.tables import one_line, select_columns

MAIN = ("summary", "depths", "datasets")  # in sight
SHORT, SHORT_UNTRAINED = [0, 1, 2, 3, 5, 6], [0, 1, 2, 3, 4]  # columns of the summary
# What a reader asks next, and the tables that answer it, folded.
QUESTIONS = {
    "Is a second hop worth it?": ("ladder",),
    "Does a look at the first answer pay?": ("looks",),
    "How far is it from the best possible?": ("reward", "regret"),
    "How good are the answers on each dataset?": ("quality", "accuracy"),
    "Where does the money go, and what is saved?": ("cost",),
    "How long does a question take?": ("latency",),
    "What if prices change?": ("prices",),
    "Should a stronger model answer in doubt?": ("deferral",),
    "Is it as sure as it should be?": ("reliability",),
}


def as_html(report: Report) -> str:
    """The page, the same bytes for the same report."""
    tables = {table.name: table for table in report_tables(report)}
    # Fit for a phone; the notes stand at the top, and JSON and CSV have all columns.
    short = select_columns(
        summary_table(report, routes=1), SHORT if report.router else SHORT_UNTRAINED
    )
    tables["summary"] = replace(short, note=claims_sentence(report), number=1)
    asked = {
        question: [tables[name] for name in names if name in tables]
        for question, names in QUESTIONS.items()
    }
    drawing = frontier_figure(report)
    return render(
        "report.html.j2",
        template_texts(*BASE_STYLES),
        report=report,
        message=message(report),
        drawing=drawing,
        svg=Markup(as_svg(drawing)),  # noqa: S704 - drawn by us
        tables=[tables[name] for name in MAIN if name in tables],
        asked={question: found for question, found in asked.items() if found},
        provenance=source_lines(report.provenance),
    )


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
