"""What our HTML pages share: templates, tables, and what a page may do."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hierrouter.reports.results import ALL
from hierrouter.tables import Table, safe_text

BASE_STYLES = ("report.css", "tables.css")  # of this package's templates


@cache
def environment(package: str) -> Environment:
    """Templates of a package; what they print of foreign text is inert and visible."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def content_security_policy(style: str, script: str | None = None) -> str:
    """Nothing is loaded, framed or sent; what is allowed is named by its hash.

    Args:
        style: the page's one style sheet.
        script: its one script; None runs none.
    """
    runs = "" if script is None else f"script-src '{_digest(script)}'; "
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; {runs}"
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _visible(value: Any) -> Any:
    """What a template prints: foreign text with its control characters shown."""
    return safe_text(value) if isinstance(value, str) and not isinstance(value, Markup) else value


LONG = 16  # rows; longer tables of the analysis are folded


@dataclass(frozen=True)
class Cell:
    """A cell as the page shows it."""

    text: str
    best: bool


@dataclass(frozen=True)
class PageTable:
    """A table as the page shows it.

    Attributes:
        columns: their titles.
        groups: each with its name and its rows.
        totals: whether the last column is that of all queries, which stays in sight.
        long: whether it fills a screen.
    """

    title: str
    note: str
    columns: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[Cell, ...], ...]], ...]
    totals: bool
    long: bool


def page_table(table: Table) -> PageTable:
    """The table with its best cells marked."""
    shown, best = table.shown(), table.best()

    def cells(line: int) -> tuple[Cell, ...]:
        return tuple(Cell(text, (line, at) in best) for at, text in enumerate(shown[line]))

    grouped = groupby(range(len(table.rows)), lambda line: table.rows[line].group)
    columns = tuple(column.title for column in table.columns)
    return PageTable(
        title=table.title,
        note=table.note,
        columns=columns,
        groups=tuple((name, tuple(map(cells, lines))) for name, lines in grouped),
        totals=columns[-1] == ALL,
        long=len(table.rows) > LONG,
    )
