"""Tables as text: terminal, Markdown, LaTeX, CSV.

In: `Table`s. Out: a rich renderable or a string, every name escaped for where it goes, the best
value of a column in bold. Not covered: HTML (`page`) and JSON (`serialise`).
"""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from itertools import groupby

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

from hierrouter.plain_json import significant
from hierrouter.report.table import Cell, Interval, Line, Table
from hierrouter.report.text import csv_text, latex_text, markdown_text, one_line

GUTTER = 2  # characters between two columns
FIRST_COLUMN = 36  # a longer name is broken into lines


def as_rich(table: Table, width: int = 80) -> Group:
    """The table for a terminal, folded into several where `width` characters are too few."""
    title = Text(one_line(table.title), style="bold")
    blocks = [item for part in folded(table, width) for item in (Text(), _rich_block(part))]
    note = [Text(one_line(table.note), style="dim")] if table.note else []
    return Group(title, *blocks, Text(), *note)


def as_markdown(table: Table) -> str:
    """A heading and a pipe table; a group's name is in italics on a line of its own."""
    shown, best, names = table.shown(), table.best(), [column.title for column in table.columns]
    lines = [
        f"### {markdown_text(table.title)}",
        "",
        _pipes([markdown_text(name) for name in names]),
    ]
    lines.append(_pipes([":--", *("--:" for _ in names[1:])]))
    for group, members in _groups(table):
        lines.append(_pipes([f"*{markdown_text(group)}*", *("" for _ in names[1:])]))
        for at in members:
            cells = [markdown_text(cell) for cell in shown[at]]
            lines.append(
                _pipes([_bold(c, (at, n) in best, "**", "**") for n, c in enumerate(cells)])
            )
    note = ["", markdown_text(table.note)] if table.note else []
    return "\n".join([*lines, *note]) + "\n"


def as_latex(table: Table) -> str:
    """A `table` environment in the style of the paper; needs the package booktabs."""
    shown, best, width = table.shown(), table.best(), len(table.columns)
    lines = [r"\begin{table}[h]", r"\centering", rf"\caption{{{latex_text(table.title)}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
    lines.append(_ampersands([latex_text(column.title) for column in table.columns]))
    for group, members in _groups(table):
        lines.append(r"\midrule")
        lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{latex_text(group)}}}}} \\")
        for at in members:
            cells = [latex_text(cell) for cell in shown[at]]
            bold = [_bold(c, (at, n) in best, r"\textbf{", "}") for n, c in enumerate(cells)]
            lines.append(_ampersands(bold))
    lines += [r"\bottomrule", r"\end{tabular}"]
    note = [rf"\par\smallskip {latex_text(table.note)}"] if table.note else []
    return "\n".join([*lines, *note, r"\end{table}"]) + "\n"


def as_csv(table: Table) -> str:
    """Header and rows, 12 significant digits, empty cells empty; inert in a spreadsheet."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow([csv_text(column.title) for column in table.columns])
    for row in table.rows:
        writer.writerow([_csv_cell(cell) for cell in row.cells])
    return sink.getvalue()


def folded(table: Table, width: int) -> list[Table]:
    """The same table in parts of at most `width` characters, the first column in each.

    A part has at least one column besides the first, however narrow the terminal is.
    """
    sizes = _widths(table)
    parts: list[list[int]] = [[]]
    room = width - sizes[0]
    left = room
    for at, size in enumerate(sizes[1:], start=1):
        if parts[-1] and size + GUTTER > left:
            parts.append([])
            left = room
        parts[-1].append(at)
        left -= size + GUTTER
    if len(parts) == 1:
        return [table]
    return [_only(table, [0, *columns]) for columns in parts]


def _rich_block(table: Table) -> RichTable:
    shown, best = table.shown(), table.best()
    first, *others = table.columns
    block = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    block.add_column(Text(one_line(first.title)), overflow="fold", max_width=FIRST_COLUMN)
    for column in others:
        block.add_column(Text(one_line(column.title)), justify="right", no_wrap=True)
    width = len(table.columns)
    for group, members in _groups(table):
        heading = Text(one_line(group), style="italic")
        block.add_row(heading, *(Text() for _ in range(width - 1)))
        for at in members:
            cells = [one_line(cell) for cell in shown[at]]
            styles = ["bold" if (at, number) in best else "" for number in range(width)]
            block.add_row(*(Text(c, style=s) for c, s in zip(cells, styles, strict=True)))
    return block


def _groups(table: Table) -> list[tuple[str, list[int]]]:
    """Each group's name and the positions of its rows."""

    def group(at: int) -> str:
        return table.rows[at].group

    return [(name, list(members)) for name, members in groupby(range(len(table.rows)), group)]


def _widths(table: Table) -> list[int]:
    texts = [[column.title for column in table.columns], *table.shown()]
    widths = [
        max(cell_len(one_line(text)) for text in column) for column in zip(*texts, strict=True)
    ]
    widths[0] = min(max([widths[0], *(len(row.group) for row in table.rows)]), FIRST_COLUMN)
    return widths


def _only(table: Table, columns: list[int]) -> Table:
    """The table with these columns; what is best in a column does not depend on the others."""
    return replace(
        table,
        columns=tuple(table.columns[at] for at in columns),
        rows=tuple(
            Line(row.group, tuple(row.cells[at] for at in columns), row.ranked)
            for row in table.rows
        ),
    )


def _csv_cell(cell: Cell) -> str | float | None:
    if isinstance(cell, str):
        return csv_text(cell)
    if isinstance(cell, Interval):
        return f"{significant(cell.low)} to {significant(cell.high)}"
    return significant(cell) if isinstance(cell, float) else cell


def _bold(text: str, wanted: bool, opening: str, closing: str) -> str:
    return f"{opening}{text}{closing}" if wanted else text


def _pipes(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ampersands(cells: list[str]) -> str:
    return rf"{' & '.join(cells)} \\"
