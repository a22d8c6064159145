"""The report as one HTML page that loads nothing; terms.html.j2 explains its words.

Pages are rendered from templates, with a policy that forbids loading anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hierrouter.reports.estimates import ALL_DATASETS
from hierrouter.reports.results import ReportData
from hierrouter.reports.sentences import claims_sentence, message
from hierrouter.reports.tables import report_tables, summary_table
from hierrouter.tables import one_line, safe_text, select_columns

if TYPE_CHECKING:
    from hierrouter.reports.drawing import Drawing

VISIBLE_TABLES = ("summary", "depths", "datasets")  # not folded
# Columns of the summary that fit on a phone, with and without a router.
SUMMARY_COLUMNS = [0, 1, 2, 3, 5, 6]
UNTRAINED_SUMMARY_COLUMNS = [0, 1, 2, 3, 4]
# Questions that a reader asks next, each with the tables that answer it; folded.
READER_QUESTIONS = {
    "Is a second hop worth it?": ("ladder",),
    "Does a look at the first answer pay?": ("looks",),
    "Which hop decides?": ("variance",),
    "How far is it from the best possible?": ("reward", "regret", "luck"),
    "How good are the answers on each dataset?": ("quality", "accuracy"),
    "Where does the money go, and what is saved?": ("cost",),
    "How long does a question take?": ("latency",),
    "What if prices change?": ("prices",),
    "Should a stronger model answer in doubt?": ("deferral",),
    "Is it as sure as it should be?": ("reliability",),
    "Can the answers and their scores be trusted?": ("responses", "agreement", "disagreements"),
}


def as_html(report: ReportData) -> str:
    """Return the page: the same bytes for the same report."""
    # Pages without figures do not need matplotlib.
    from hierrouter.reports.figures import curve_figure, frontier_figure, net_reward_figure

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
    from hierrouter.reports.drawing import as_svg

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


# Marks of HTML.

BASE_STYLES = ("report.css", "tables.css")
TEMPLATE_PACKAGE = "hierrouter.reports"


def render(template: str, style: str, script: str = "", **values: Any) -> str:
    """Render a page that loads, frames and sends nothing.

    The page's content security policy allows the style sheet and the script by their hashes, and
    nothing else.

    Args:
        template: file name of the template.
        style: the page's style sheet.
        script: its only script; an empty script is not allowed to run either.
        values: variables of the template; foreign text in them is escaped, and its control
            characters are made visible.
    """
    script_rule = f"script-src '{_digest(script)}'; " if script else ""
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; {script_rule}"
        "base-uri 'none'; form-action 'none'"
    )
    return (
        _templates()
        .get_template(template)
        .render(
            policy=policy,
            style=Markup(style),  # noqa: S704 - our own text, not foreign
            script=Markup(script),  # noqa: S704 - our own text
            **values,
        )
    )


def template_texts(*names: str, between: str = "") -> str:
    """Join the text of some files of the templates folder.

    Args:
        names: file names.
        between: text between two files.
    """
    folder = resources.files(TEMPLATE_PACKAGE).joinpath("templates")
    return between.join(folder.joinpath(name).read_text("utf-8") for name in names)


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader(TEMPLATE_PACKAGE),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["ALL_DATASETS"] = ALL_DATASETS
    return environment


def _visible(value: Any) -> Any:
    """Make control characters visible in every text that a template prints, except in markup."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return safe_text(value)


def _digest(text: str) -> str:
    """Return the SHA-256 of a text in the notation of a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
