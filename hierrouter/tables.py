"""Tables of plain values, rendered for a terminal, Markdown, LaTeX and CSV; and texts made safe."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from hierrouter_cache.errors import InputError

SIGNIFICANT_DIGITS = 12  # enough to read a number back, few enough to hide rounding errors
REPR_WIDTH = 200  # columns of the terminal for which `repr` prints a table
UNIT_PREFIXES = ("", "k", "M", "G", "T")
MINUTE_S = 60
HOUR_S = 3_600
DAY_S = 86_400


def json_text(values: Mapping[str, Any], what: str) -> str:
    """Write an object as JSON: indented, ASCII only, with a newline at its end.

    Args:
        values: the object; its numbers are rounded to 12 significant digits.
        what: a name of the object, for the error's message.

    Returns:
        The text.

    Raises:
        InputError: the object holds a value that JSON cannot express.
    """
    try:
        text = json.dumps(_plain(values), sort_keys=True, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"not JSON: {what}: {error}; give texts and finite numbers") from None
    return f"{text}\n"


def significant(value: float) -> float:
    """Round a number to 12 significant digits, and turn a negative zero into zero."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") + 0.0


def finite_or_none(value: float) -> float | None:
    """Return a finite number, and None for infinity or NaN, which JSON cannot express."""
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    return value


# Control, format (bidi, zero width, tags), surrogate, line and paragraph separator.
INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
HARMLESS_CONTROLS = frozenset("\n\t")
# A spreadsheet takes a cell that begins with one of these for a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "#": r"\#",
        "%": r"\%",
        "_": r"\_",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "[": "{[}",  # a row that starts with [ would be read as the argument of \\
        "]": "{]}",
        "\n": " ",
        "\t": " ",
        "−": "$-$",  # which not every LaTeX knows
    }
)
_NOT_IN_LABEL = re.compile(r"[^a-z0-9]+")
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_\[\]|~$!])")


class _VisibleCharacters(dict[int, int | str]):
    """The translation table of `safe_text`; an entry is computed when it is first needed."""

    def __missing__(self, code: int) -> int | str:
        character = chr(code)
        is_invisible = unicodedata.category(character) in INVISIBLE_CATEGORIES
        is_escaped = is_invisible and character not in HARMLESS_CONTROLS
        visible = _escape(code) if is_escaped else code
        self[code] = visible
        return visible


def _escape(code: int) -> str:
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


_VISIBLE_CHARACTERS = _VisibleCharacters()


def safe_text(text: str) -> str:
    r"""Escape all characters that could control a terminal.

    C0 except newline and tab, DEL, C1, bidi and other format characters, line and paragraph
    separators and lone surrogates become `\x1b`, `\u202e` or `\U000e0041`. Other characters,
    accents and emoji included, are unchanged.

    Args:
        text: any text.

    Returns:
        The escaped text.
    """
    return text.translate(_VISIBLE_CHARACTERS)


def one_line(text: str, limit: int | None = None) -> str:
    """Escape a text as `safe_text`, and put it on one line.

    Args:
        text: any text.
        limit: characters; a longer text is cut and ends with an ellipsis. None for no limit.

    Returns:
        The text without line breaks and tabs.
    """
    flat = " ".join(safe_text(text).split())
    if limit is None or len(flat) <= limit:
        return flat
    return flat[: limit - 1] + "…"


def markdown_text(text: str) -> str:
    """Escape a text for one line of Markdown: no character has a meaning, HTML included."""
    escaped = _MARKDOWN_SPECIAL.sub(r"\\\1", one_line(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")


def latex_text(text: str) -> str:
    """Escape a text for one line of LaTeX: it is printed, and no command in it is run."""
    return one_line(text).translate(_LATEX)


def csv_text(text: str) -> str:
    """Escape a text for a CSV cell: a quote precedes it if a spreadsheet would see a formula."""
    safe = safe_text(text)
    # Some spreadsheets ignore white space before a formula.
    looks_like_formula = text.startswith(FORMULA_STARTS) or text.lstrip().startswith(FORMULA_STARTS)
    return f"'{safe}" if looks_like_formula else safe


@dataclass(frozen=True)
class Interval:
    """The two ends of an interval, in one cell."""

    low: float
    high: float


Cell = str | int | float | Interval | None


@dataclass(frozen=True)
class Column:
    """How to print one column.

    Attributes:
        title: the heading.
        digits: decimals of its numbers.
        best: whether the highest or the lowest number is the best; None to mark none.
        signed: whether positive numbers are printed with a plus.
        money: whether numbers are amounts, printed with three significant digits.
    """

    title: str
    digits: int = 3
    best: Literal["highest", "lowest"] | None = None
    signed: bool = False
    money: bool = False

    def show(self, cell: Cell) -> str:
        """Return the cell as text, not escaped; "-" for an empty cell."""
        if cell is None:
            return "-"
        if isinstance(cell, str | int):
            return str(cell)
        if isinstance(cell, Interval):
            return f"[{self.show(cell.low)}, {self.show(cell.high)}]"
        if self.money:
            return money(cell)
        sign = "+" if self.signed else ""
        rounded = round(cell, self.digits) + 0.0  # without a negative zero
        return f"{rounded:{sign}.{self.digits}f}"


@dataclass(frozen=True)
class Line:
    """One row of a table.

    Attributes:
        group: name of the group that it belongs to; "" for none.
        cells: one for each column.
        ranked: whether it takes part in the choice of the best values.
    """

    group: str
    cells: tuple[Cell, ...]
    ranked: bool = True


@dataclass(frozen=True, repr=False)
class Table:
    """A table of plain values.

    Attributes:
        title: the title.
        columns: the columns.
        rows: the rows; those of a group follow each other.
        note: a text below the table.
        number: its number among the tables printed with it, from 1; 0 for a single table.
        name: a short name, for the label that a paper refers to it by.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Line, ...]
    note: str = ""
    number: int = 0
    name: str = ""

    @property
    def heading(self) -> str:
        """The title, after the table's number if it has one."""
        return f"Table {self.number}. {self.title}" if self.number else self.title

    def cell_texts(self) -> list[list[str]]:
        """Return all cells as texts, not escaped, row by row."""
        return [
            [column.show(cell) for column, cell in zip(self.columns, row.cells, strict=True)]
            for row in self.rows
        ]

    def groups(self) -> list[tuple[str, list[int]]]:
        """Return each group's name and the indices of its rows."""
        rows = range(len(self.rows))
        groups = groupby(rows, lambda row: self.rows[row].group)
        return [(name, list(members)) for name, members in groups]

    def __repr__(self) -> str:
        """Return the table as on a wide terminal, without colour."""
        page = Console(file=io.StringIO(), width=REPR_WIDTH, no_color=True, force_terminal=False)
        with page.capture() as capture:
            page.print(as_rich(self, REPR_WIDTH))
        return "\n".join(line.rstrip() for line in capture.get().strip().splitlines())

    def best(self) -> frozenset[tuple[int, int]]:
        """Return (row, column) of the best values.

        All values that print like the best one count, unless all values of the column do.
        """
        marked: set[tuple[int, int]] = set()
        for position, column in enumerate(self.columns):
            if column.best is None:
                continue
            numbers: dict[int, float] = {}
            for row, line in enumerate(self.rows):
                cell = line.cells[position]
                if line.ranked and isinstance(cell, float):
                    numbers[row] = cell
            if not numbers:
                continue
            choose = max if column.best == "highest" else min
            best_text = column.show(choose(numbers.values()))
            best_rows = [row for row, number in numbers.items() if column.show(number) == best_text]
            if len(best_rows) < len(numbers):
                marked.update((row, position) for row in best_rows)
        return frozenset(marked)


def interval(low: float | None, high: float | None) -> Interval | None:
    """Return the cell of an interval; None if an end is unknown."""
    return None if low is None or high is None else Interval(low, high)


def number_tables(tables: Mapping[str, Table]) -> tuple[Table, ...]:
    """Number tables from 1, and give them their names.

    Args:
        tables: tables by name.

    Returns:
        The tables in the same order.
    """
    return tuple(
        replace(table, number=number, name=name)
        for number, (name, table) in enumerate(tables.items(), start=1)
    )


MONEY_DIGITS = 3


def money(amount: float) -> str:
    """Format an amount with three significant digits: 0.000178, 0.0163, 1.22, 27.1, 3,404."""
    if amount == 0:
        return "0"  # also for a negative zero
    if not math.isfinite(amount):
        return f"{amount:g}"
    decimals = max(MONEY_DIGITS - 1 - math.floor(math.log10(abs(amount))), 0)
    return f"{amount:,.{decimals}f}" if decimals <= SIGNIFICANT_DIGITS else f"{amount:.2e}"


GUTTER = 2  # characters between two columns
MAX_FIRST_COLUMN = 36  # characters; a longer name is broken into lines
MIN_TITLE_WIDTH = 12  # characters of the title of another column, however narrow the page is


def as_rich(table: Table, width: int = 80) -> Group:
    """Render a table for a terminal, in several parts if it is too wide.

    Args:
        table: the table.
        width: characters of a line.

    Returns:
        Title, parts and note.
    """
    title = Text(one_line(table.heading), style="bold")
    blocks: list[Text | RichTable] = []
    for part in fold_table(table, width):
        blocks += [Text(), _rich_block(part, _title_width(width))]
    note = [Text(one_line(table.note), style="dim")] if table.note else []
    return Group(title, *blocks, Text(), *note)


def as_markdown(table: Table) -> str:
    """Render a table as Markdown: a heading and a pipe table.

    A group's name is in italics on a line above its rows.

    Args:
        table: the table.

    Returns:
        The text.
    """
    texts = table.cell_texts()
    best = table.best()
    titles = [column.title for column in table.columns]
    empty_cells = ["" for _ in titles[1:]]
    lines = [
        f"### {markdown_text(table.heading)}",
        "",
        _markdown_row([markdown_text(title) for title in titles]),
        _markdown_row([":--", *("--:" for _ in titles[1:])]),
    ]
    for group, rows in table.groups():
        if group:
            lines.append(_markdown_row([f"*{markdown_text(group)}*", *empty_cells]))
        for row in rows:
            cells = [
                _bold(markdown_text(text), (row, column) in best, "**", "**")
                for column, text in enumerate(texts[row])
            ]
            lines.append(_markdown_row(cells))
    if table.note:
        lines += ["", markdown_text(table.note)]
    return "\n".join(lines) + "\n"


# A table wider than its column is shrunk to it; a narrower one keeps the size of its letters.
_SHRUNK = r"\resizebox{\ifdim\width>\columnwidth\columnwidth\else\width\fi}{!}{%"


def as_latex(table: Table) -> str:
    """Render a table as a `table` environment in the style of the paper.

    LaTeX numbers it, and `\\label` is `tab:` and the table's name. It needs the packages booktabs
    and graphicx. It fits any column: a table that is too wide is shrunk, and the title and the note
    are set flush left, so that long words do not stretch their lines.

    Args:
        table: the table.

    Returns:
        The text.
    """
    texts = table.cell_texts()
    best = table.best()
    width = len(table.columns)
    title = latex_text(table.title)
    lines = [r"\begin{table}[h]", r"\centering", rf"\caption[{{{title}}}]{{\raggedright {title}}}"]
    if table.name:
        lines.append(rf"\label{{tab:{_NOT_IN_LABEL.sub('-', table.name)}}}")
    lines += [_SHRUNK, rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
    lines.append(_latex_row([latex_text(column.title) for column in table.columns]))
    for group, rows in table.groups():
        lines.append(r"\midrule")
        if group:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{latex_text(group)}}}}} \\")
        for row in rows:
            cells = [
                _bold(latex_text(text), (row, column) in best, r"\textbf{", "}")
                for column, text in enumerate(texts[row])
            ]
            lines.append(_latex_row(cells))
    lines += [r"\bottomrule", r"\end{tabular}}"]
    if table.note:
        note = latex_text(table.note)
        lines.append(rf"\par\smallskip{{\footnotesize\raggedright {note}\par}}")
    lines.append(r"\end{table}")
    return "\n".join(lines) + "\n"


def as_csv(table: Table) -> str:
    """Render a table as CSV: header and rows, 12 significant digits, no formulas.

    Args:
        table: the table.

    Returns:
        The text; an empty cell is empty.
    """
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow([csv_text(column.title) for column in table.columns])
    for row in table.rows:
        writer.writerow([_csv_cell(cell) for cell in row.cells])
    return sink.getvalue()


def fold_table(table: Table, width: int) -> list[Table]:
    """Divide a table into parts that are narrow enough, each with the first column.

    Args:
        table: the table.
        width: characters of a line.

    Returns:
        The parts. Each has at least one column besides the first, however narrow the terminal is.
    """
    first_width, *other_widths = _column_widths(table, _title_width(width))
    room = width - first_width
    parts: list[list[int]] = [[]]  # columns besides the first
    left = room
    for column, column_width in enumerate(other_widths, start=1):
        if parts[-1] and column_width + GUTTER > left:
            parts.append([])
            left = room
        parts[-1].append(column)
        left -= column_width + GUTTER
    if len(parts) == 1:
        return [table]
    return [select_columns(table, [0, *columns]) for columns in parts]


def _title_width(width: int) -> int:
    """Return the characters of a column's title on a page of this width; a longer one is broken."""
    return max(min(MAX_FIRST_COLUMN, width // 2), MIN_TITLE_WIDTH)


def _broken_title(title: str, width: int) -> str:
    """Break a title into lines: it may be the name of a model, of a route or of a dataset."""
    lines = Text(one_line(title)).wrap(Console(width=width), width, overflow="fold")
    return "\n".join(line.plain.rstrip() for line in lines)


def _rich_block(table: Table, title_width: int) -> RichTable:
    texts = table.cell_texts()
    best = table.best()
    first, *others = table.columns
    block = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    block.add_column(Text(one_line(first.title)), overflow="fold", max_width=MAX_FIRST_COLUMN)
    for column in others:
        title = _broken_title(column.title, title_width)
        block.add_column(Text(title), justify="right", no_wrap=True)
    for group, rows in table.groups():
        if group:
            heading = Text(one_line(group), style="italic")
            block.add_row(heading, *(Text() for _ in others))
        for row in rows:
            cells = []
            for position, text in enumerate(texts[row]):
                style = "bold" if (row, position) in best else ""
                cells.append(Text(one_line(text), style=style))
            block.add_row(*cells)
    return block


def _column_widths(table: Table, title_width: int) -> list[int]:
    """Return the characters of each column; a group's name counts for the first one."""
    titles = [column.title for column in table.columns]
    widths = []
    for title, *texts in zip(titles, *table.cell_texts(), strict=True):
        title_lines = _broken_title(title, title_width).split("\n")
        widths.append(max(cell_len(text) for text in (*title_lines, *map(one_line, texts))))
    group_widths = [len(row.group) for row in table.rows]
    widths[0] = min(max([widths[0], *group_widths]), MAX_FIRST_COLUMN)
    return widths


def select_columns(table: Table, columns: list[int]) -> Table:
    """Return a table with some of its columns.

    Args:
        table: the table.
        columns: the indices of the columns, in the order of the result.

    Returns:
        The table. The best values are the same, because they are chosen column by column.
    """
    return replace(
        table,
        columns=tuple(table.columns[column] for column in columns),
        rows=tuple(
            Line(row.group, tuple(row.cells[column] for column in columns), row.ranked)
            for row in table.rows
        ),
    )


def _csv_cell(cell: Cell) -> str | float | None:
    if isinstance(cell, str):
        return csv_text(cell)
    if isinstance(cell, Interval):
        return f"{significant(cell.low)} to {significant(cell.high)}"
    return significant(cell) if isinstance(cell, float) else cell


def _bold(text: str, is_bold: bool, opening: str, closing: str) -> str:
    return f"{opening}{text}{closing}" if is_bold else text


def _markdown_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _latex_row(cells: list[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def whole_number(number: float) -> str:
    """Format a count: 33,000."""
    return f"{number:,.0f}"


def short_number(number: float) -> str:
    """Format a number with three digits and a prefix: 1.23M."""
    power = 0
    # 999.5 would be rounded to 1,000.
    while number >= 999.5 and power < len(UNIT_PREFIXES) - 1:
        number /= 1000
        power += 1
    return f"{number:.3g}{UNIT_PREFIXES[power]}"


def size(count: float) -> str:
    """Format a number of bytes: 1.23 MB."""
    text = short_number(count)
    digits = text.rstrip("".join(UNIT_PREFIXES))
    return f"{digits} {text[len(digits) :]}B"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units: 2 d 3 h, 3 h 5 min, 5 min, 12 s."""
    if seconds >= DAY_S:
        return f"{seconds // DAY_S:.0f} d {seconds % DAY_S // HOUR_S:.0f} h"
    if seconds >= HOUR_S:
        return f"{seconds // HOUR_S:.0f} h {seconds % HOUR_S // MINUTE_S:.0f} min"
    if seconds >= 10 * MINUTE_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds:.0f} s"


# Rows of a SELECT as text: whole, however wide the terminal is.

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
