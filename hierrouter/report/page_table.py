"""A table as the page's template wants it.

In: a `Table`. Out: a `PageTable`: cells as texts, rows in groups. Not covered: markup, which is the
template's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from hierrouter.report.results import ALL
from hierrouter.report.table import Table

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
