"""A table of plain values, before any markup.

In: cells that are texts, numbers or intervals. Out: `Table`, which knows how each cell reads and
which values are the best. Not covered: which tables there are (`tables`), how they look (`render`,
`page`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from hierrouter.report.text import one_line

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Interval:
    """Two numbers that belong together in one cell."""

    low: float
    high: float


Cell = str | int | float | Interval | None


class Ends(Protocol):
    """What has an interval; an end may be unknown."""

    @property
    def low(self) -> float | None: ...

    @property
    def high(self) -> float | None: ...


@dataclass(frozen=True)
class Column:
    """How to read one column.

    Attributes:
        title: its header.
        digits: decimals of its numbers.
        best: whether the highest or the lowest number is the best; None marks none.
        signed: whether positive numbers carry a plus.
    """

    title: str
    digits: int = 3
    best: Literal["highest", "lowest"] | None = None
    signed: bool = False

    def show(self, cell: Cell) -> str:
        """The cell as text, not escaped; "-" where there is nothing."""
        if cell is None:
            return "-"
        if isinstance(cell, str | int):
            return str(cell)
        if isinstance(cell, Interval):
            return f"[{self.show(cell.low)}, {self.show(cell.high)}]"
        sign = "+" if self.signed else ""
        return f"{_without_negative_zero(cell, self.digits):{sign}.{self.digits}f}"


@dataclass(frozen=True)
class Line:
    """One row of a table; `ranked` rows are in the running for the best value."""

    group: str
    cells: tuple[Cell, ...]
    ranked: bool = True


@dataclass(frozen=True, repr=False)
class Table:
    """Title, columns, rows in groups, and a note to stand below."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Line, ...]
    note: str = ""

    def shown(self) -> list[list[str]]:
        """Every cell as text, not escaped."""
        return [
            [column.show(cell) for column, cell in zip(self.columns, row.cells, strict=True)]
            for row in self.rows
        ]

    def __repr__(self) -> str:
        """Title, aligned columns below the names of their groups, note; nothing is escaped."""
        titles = [one_line(column.title) for column in self.columns]
        shown = [[one_line(cell) for cell in line] for line in self.shown()]
        widths = [max(map(len, column)) for column in zip(titles, *shown, strict=True)]

        def line(cells: list[str]) -> str:
            first, *others = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
            return "  ".join([first.strip().ljust(widths[0]), *others]).rstrip()

        lines, group = [line(titles)], ""
        for row, cells in zip(self.rows, shown, strict=True):
            if row.group != group:
                group = row.group
                lines.append(f"-- {one_line(group)}")
            lines.append(line(cells))
        note = ["", one_line(self.note)] if self.note else []
        return "\n".join([one_line(self.title), "", *lines, *note])

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with the numbers as they are; needs pandas.

        The group of a row is the first column; an interval becomes two, its low and its high end.
        """
        import pandas

        columns: dict[str, list[Cell]] = {"group": [row.group for row in self.rows]}
        of = ""
        for at, column in enumerate(self.columns):
            cells = [row.cells[at] for row in self.rows]
            if any(isinstance(cell, Interval) for cell in cells):
                for end in ("low", "high"):
                    columns[f"{of} {end}".strip()] = [
                        getattr(cell, end) if isinstance(cell, Interval) else None for cell in cells
                    ]
                continue
            of = column.title
            columns[of] = cells
        return pandas.DataFrame(columns)

    def best(self) -> frozenset[tuple[int, int]]:
        """(row, column) of the best values; those that print the same are all best."""
        marked: set[tuple[int, int]] = set()
        for at, column in enumerate(self.columns):
            numbers = {
                line: cell
                for line, row in enumerate(self.rows)
                if row.ranked and isinstance(cell := row.cells[at], float)
            }
            if column.best and numbers:
                top = (max if column.best == "highest" else min)(numbers.values())
                winners = (
                    n for n, cell in numbers.items() if column.show(cell) == column.show(top)
                )
                marked.update((line, at) for line in winners)
        return frozenset(marked)


def interval(low: float | None, high: float | None) -> Interval | None:
    """The cell of an interval; nothing where an end is not known."""
    return None if low is None or high is None else Interval(low, high)


def interval_of(found: Ends | None) -> Interval | None:
    """The same of a value with its ends, such as an estimate; nothing where there is none."""
    return None if found is None else interval(found.low, found.high)


def numbered(tables: Iterable[Table]) -> tuple[Table, ...]:
    """The tables with their places, from 1, before their titles."""
    return tuple(
        replace(table, title=f"Table {number}. {table.title}")
        for number, table in enumerate(tables, start=1)
    )


def digits_for(values: Iterable[float]) -> int:
    """Decimals that leave two figures to the smallest positive value; 3 to 9."""
    smallest = min((value for value in values if value > 0), default=1.0)
    return min(max(1 - math.floor(math.log10(smallest)), 3), 9)


def _without_negative_zero(value: float, digits: int) -> float:
    return round(value, digits) + 0.0
