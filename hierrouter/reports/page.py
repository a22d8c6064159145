"""The report as one HTML page that loads nothing; terms.html.j2 explains its words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from hierrouter.reports.curve import curve_figure
from hierrouter.reports.drawing import Drawing, as_svg
from hierrouter.reports.figures import frontier_figure, net_reward_figure
from hierrouter.reports.html import BASE_STYLES, render, template_texts
from hierrouter.reports.results import ReportData
from hierrouter.reports.sentences import claims_sentence, message
from hierrouter.reports.tables import report_tables, summary_table
from hierrouter.tables import one_line, select_columns

VISIBLE_TABLES = ("summary", "depths", "datasets")  # not folded
# Columns of the summary that fit on a phone, with and without a router.
SUMMARY_COLUMNS = [0, 1, 2, 3, 5, 6]
UNTRAINED_SUMMARY_COLUMNS = [0, 1, 2, 3, 4]
# Questions that a reader asks next, each with the tables that answer it; folded.
READER_QUESTIONS = {
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


def as_html(report: ReportData) -> str:
    """Return the page: the same bytes for the same report."""
    tables = {table.name: table for table in report_tables(report)}
    # The page shows few columns and one fixed route; JSON and CSV have all of them. The notes of
    # the summary are at the top of the page already.
    columns = SUMMARY_COLUMNS if report.router else UNTRAINED_SUMMARY_COLUMNS
    summary = select_columns(summary_table(report, routes=1), columns)
    tables["summary"] = replace(summary, note=claims_sentence(report), number=1)
    questions = {}
    for question, names in READER_QUESTIONS.items():
        answers = [tables[name] for name in names if name in tables]
        if answers:
            questions[question] = answers
    # With one dataset its bars would repeat the summary.
    by_dataset = [net_reward_figure(report)] if len(report.shown_datasets) > 1 else []
    curve = curve_figure(report)
    return render(
        "report.html.j2",
        template_texts(*BASE_STYLES),
        report=report,
        message=message(report),
        figures_above=_with_svg([frontier_figure(report)]),
        figures_below=_with_svg(by_dataset),
        figures_folded=_with_svg([curve] if curve else []),
        tables=[tables[name] for name in VISIBLE_TABLES if name in tables],
        questions=questions,
        provenance=source_lines(report.provenance),
    )


def _with_svg(drawings: Sequence[Drawing]) -> list[tuple[Drawing, Markup]]:
    """Pair each drawing with its markup."""
    return [(drawing, Markup(as_svg(drawing))) for drawing in drawings]  # noqa: S704 - drawn by us


def source_lines(provenance: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Flatten nested provenance into lines, sorted by key.

    Args:
        provenance: JSON values by name, nested.
        prefix: text before each key.

    Returns:
        The key, such as `encoder.name`, and its value as text.
    """
    lines: list[tuple[str, str]] = []
    for key, value in sorted(provenance.items()):
        if isinstance(value, Mapping):
            lines.extend(source_lines(value, f"{prefix}{key}."))
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            lines.append((one_line(f"{prefix}{key}"), text))
    return lines
