"""Rows of a SELECT as text for people: whole, however wide the terminal is."""

from __future__ import annotations

import io
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hierrouter.tables import SIGNIFICANT_DIGITS, one_line, safe_text

if TYPE_CHECKING:
    import pyarrow as pa

COLUMN_GAP = 2  # blanks between two columns
MIN_WRAPPED_WIDTH = 20  # of a column whose texts are broken into lines; less is hard to read


def rows_as_text(rows: pa.Table, width: int | None) -> str:
    """Lay out rows so that no cell is cut.

    Without a terminal each row is one line. On a terminal long texts are broken into lines, and
    a row becomes a list of its values if it has too many columns for that.

    Args:
        rows: to be shown.
        width: of the terminal, in columns; None if there is none.

    Returns:
        The text.
    """
    values = [list(row.values()) for row in rows.to_pylist()]
    names = [one_line(name) for name in rows.column_names]
    cells = [[cell_text(value) for value in row] for row in values]
    if width is None:
        return _one_line_a_row(names, [[one_line(cell) for cell in row] for row in cells], values)
    widths = [max(map(_width, column)) for column in zip(names, *cells, strict=True)]
    is_plain = not any("\n" in cell or "\t" in cell for row in cells for cell in row)
    if is_plain and _table_width(widths) <= width:
        return _one_line_a_row(names, cells, values)
    if _table_width([min(column, MIN_WRAPPED_WIDTH) for column in widths]) <= width:
        return _wrapped_table(names, cells, widths, width)
    return _records(names, cells, width)


def cell_text(value: Any) -> str:
    """Return a value as text that cannot control the terminal; "" if there is none."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{SIGNIFICANT_DIGITS}g}"
    return safe_text(str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _width(text: str) -> int:
    """Return the columns that the widest line of a text takes."""
    from rich.cells import cell_len

    return max((cell_len(line) for line in text.split("\n")), default=0)


def _table_width(widths: Sequence[int]) -> int:
    return sum(widths) + COLUMN_GAP * (len(widths) - 1)


def _one_line_a_row(
    names: Sequence[str], cells: Sequence[Sequence[str]], values: Sequence[Sequence[Any]]
) -> str:
    """Lay out a plain table in which each column is as wide as its longest cell."""
    widths = [max(map(_width, column)) for column in zip(names, *cells, strict=True)]
    is_right = [
        any(row[column] is not None for row in values)
        and all(row[column] is None or _is_number(row[column]) for row in values)
        for column in range(len(names))
    ]
    lines = [names, ["-" * width for width in widths], *cells]
    text = io.StringIO()
    for line in lines:
        padded = []
        for cell, width, right in zip(line, widths, is_right, strict=True):
            blanks = " " * (width - _width(cell))
            padded.append(blanks + cell if right else cell + blanks)
        text.write((" " * COLUMN_GAP).join(padded).rstrip() + "\n")
    return text.getvalue()


def _wrapped_table(
    names: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], width: int
) -> str:
    """Lay out a table as wide as the terminal: long texts are broken into lines."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, COLUMN_GAP // 2)
    )
    for name, column_width in zip(names, widths, strict=True):
        fits = column_width <= MIN_WRAPPED_WIDTH
        table.add_column(
            Text(name),
            overflow="fold",
            no_wrap=fits,
            min_width=min(column_width, MIN_WRAPPED_WIDTH),
        )
    for row in cells:
        table.add_row(*(Text(cell) for cell in row), end_section="\n" in "".join(row))
    return _print_rich([table], width)


def _records(names: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> str:
    """Lay out each row as a list: a name and its value, broken into lines, on each line."""
    from rich.table import Table
    from rich.text import Text

    lists: list[Any] = []
    for number, row in enumerate(cells, start=1):
        lists.append(Text(f"row {number:,}", style="bold"))
        grid = Table.grid(padding=(0, COLUMN_GAP, 0, 0))
        grid.add_column(overflow="fold", max_width=max(width // 3, 1))
        grid.add_column(overflow="fold")
        for name, cell in zip(names, row, strict=True):
            grid.add_row(Text(name), Text(cell))
        lists.append(grid)
    return _print_rich(lists, width)


def _print_rich(renderables: Sequence[Any], width: int) -> str:
    """Return what rich prints on a page of this width."""
    from rich.console import Console

    text = io.StringIO()
    page = Console(file=text, width=width)
    for renderable in renderables:
        page.print(renderable)
    return "\n".join(line.rstrip() for line in text.getvalue().split("\n"))
