"""Tables of plain values, and their text: terminal, Markdown, LaTeX, CSV, JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table as RichTable
from rich.text import Text

from hierrouter_cache.errors import InputError

DIGITS = 12
REPR_WIDTH = 200  # columns
THOUSANDS = ("", "k", "M", "G", "T")
DAYS, HOURS, MINUTES = 86_400, 3_600, 60


def json_text(found: Mapping[str, Any], what: str) -> str:
    """An object, indented, ASCII only, with a newline at its end.

    Raises InputError: it holds what JSON cannot say.
    """
    try:
        text = json.dumps(_plain(found), sort_keys=True, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"not JSON: {what}: {error}; give texts and finite numbers") from None
    return f"{text}\n"


def significant(value: float) -> float:
    """`value` to 12 significant digits, without a negative zero."""
    return float(f"{value:.{DIGITS}g}") + 0.0


def finite_or_none(value: float) -> float | None:
    """None in place of what JSON cannot say."""
    return value if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


# Control, format (bidi, zero width, tags), surrogate, line and paragraph separator.
INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
KEPT = frozenset("\n\t")
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
_LABEL = re.compile(r"[^a-z0-9]+")  # what is left out of a label
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_\[\]|~$!])")


class _Visible(dict[int, int | str]):
    """What `safe_text` makes of each code point, worked out when it is first met."""

    def __missing__(self, code: int) -> int | str:
        character = chr(code)
        steers = unicodedata.category(character) in INVISIBLE_CATEGORIES and character not in KEPT
        self[code] = shown = _escaped(code) if steers else code
        return shown


def _escaped(code: int) -> str:
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


_VISIBLE = _Visible()


def safe_text(text: str) -> str:
    r"""`text` with everything that could steer a terminal made visible.

    C0 except newline and tab, DEL, C1, bidi and other format characters, line and paragraph
    separators and lone surrogates become `\x1b`, `\u202e` or `\U000e0041`. Other text, accents and
    emoji included, is left alone.
    """
    return text.translate(_VISIBLE)


def one_line(text: str, limit: int | None = None) -> str:
    """`safe_text` without line breaks and tabs, cut to `limit` characters with an ellipsis."""
    flat = " ".join(safe_text(text).split())
    if limit is None or len(flat) <= limit:
        return flat
    return flat[: limit - 1] + "…"


def markdown_text(text: str) -> str:
    """One line of Markdown in which no character of `text` has a meaning; HTML is inert too."""
    escaped = _MARKDOWN_SPECIAL.sub(r"\\\1", one_line(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")


def latex_text(text: str) -> str:
    """One line of LaTeX that prints `text` and runs nothing."""
    return one_line(text).translate(_LATEX)


def csv_text(text: str) -> str:
    """A text cell that no spreadsheet takes for a formula: a quote is put before it if needed."""
    safe = safe_text(text)
    looks_like_formula = text.startswith(FORMULA_STARTS) or text.lstrip().startswith(FORMULA_STARTS)
    return f"'{safe}" if looks_like_formula else safe


@dataclass(frozen=True)
class Interval:
    """Two numbers that belong together in one cell."""

    low: float
    high: float


Cell = str | int | float | Interval | None


@dataclass(frozen=True)
class Column:
    """How to read one column.

    Attributes:
        best: whether the highest or the lowest number is the best; None marks none.
        signed: whether positive numbers carry a plus.
        money: whether its numbers have three significant digits, however small they are.
    """

    title: str
    digits: int = 3
    best: Literal["highest", "lowest"] | None = None
    signed: bool = False
    money: bool = False

    def show(self, cell: Cell) -> str:
        """The cell as text, not escaped; "-" where there is nothing."""
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
    """One row of a table; `ranked` rows are in the running for the best value."""

    group: str
    cells: tuple[Cell, ...]
    ranked: bool = True


@dataclass(frozen=True, repr=False)
class Table:
    """Title, columns, rows in groups, and a note to stand below.

    Attributes:
        number: its place among the tables shown with it, from 1; 0 for one that stands alone.
        name: a short one, for the label that a paper refers to it by.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Line, ...]
    note: str = ""
    number: int = 0
    name: str = ""

    @property
    def heading(self) -> str:
        """The title, behind its number where it has one."""
        return f"Table {self.number}. {self.title}" if self.number else self.title

    def cell_texts(self) -> list[list[str]]:
        """Every cell as text, not escaped."""
        return [
            [column.show(cell) for column, cell in zip(self.columns, row.cells, strict=True)]
            for row in self.rows
        ]

    def groups(self) -> list[tuple[str, list[int]]]:
        """Each group's name and the positions of its rows."""
        positions = groupby(range(len(self.rows)), lambda at: self.rows[at].group)
        return [(name, list(members)) for name, members in positions]

    def __repr__(self) -> str:
        """As on a wide terminal, without colour."""
        page = Console(file=io.StringIO(), width=REPR_WIDTH, no_color=True, force_terminal=False)
        with page.capture() as shown:
            page.print(as_rich(self, REPR_WIDTH))
        return "\n".join(line.rstrip() for line in shown.get().strip().splitlines())

    def best(self) -> frozenset[tuple[int, int]]:
        """(row, column) of the best values; all that print like the best, unless all do."""
        marked: set[tuple[int, int]] = set()
        for at, column in enumerate(self.columns):
            numbers = {
                line: cell
                for line, row in enumerate(self.rows)
                if row.ranked and isinstance(cell := row.cells[at], float)
            }
            if column.best and numbers:
                top = (max if column.best == "highest" else min)(numbers.values())
                winners = {
                    n for n, cell in numbers.items() if column.show(cell) == column.show(top)
                }
                if len(winners) < len(numbers):
                    marked.update((line, at) for line in winners)
        return frozenset(marked)


def interval(low: float | None, high: float | None) -> Interval | None:
    """The cell of an interval; nothing where an end is not known."""
    return None if low is None or high is None else Interval(low, high)


def number_tables(tables: Mapping[str, Table]) -> tuple[Table, ...]:
    """The tables with their names, and their places from 1."""
    return tuple(
        replace(table, number=number, name=name)
        for number, (name, table) in enumerate(tables.items(), start=1)
    )


MONEY_DIGITS = 3


def money(amount: float) -> str:
    """An amount with three significant digits: 0.000178, 0.0163, 1.22, 27.1, 3,404."""
    if amount == 0 or not math.isfinite(amount):
        return f"{amount:g}".removeprefix("-") if amount == 0 else f"{amount:g}"
    decimals = max(MONEY_DIGITS - 1 - math.floor(math.log10(abs(amount))), 0)
    return f"{amount:,.{decimals}f}" if decimals <= DIGITS else f"{amount:.2e}"


GUTTER = 2  # characters between two columns
FIRST_COLUMN = 36  # a longer name is broken into lines


def as_rich(table: Table, width: int = 80) -> Group:
    """The table for a terminal, folded into several where `width` characters are too few."""
    title = Text(one_line(table.heading), style="bold")
    blocks = [item for part in fold_table(table, width) for item in (Text(), _rich_block(part))]
    note = [Text(one_line(table.note), style="dim")] if table.note else []
    return Group(title, *blocks, Text(), *note)


def as_markdown(table: Table) -> str:
    """A heading and a pipe table; a group's name, if any, is in italics on a line of its own."""
    shown, best, names = (
        table.cell_texts(),
        table.best(),
        [column.title for column in table.columns],
    )
    lines = [
        f"### {markdown_text(table.heading)}",
        "",
        _pipes([markdown_text(name) for name in names]),
    ]
    lines.append(_pipes([":--", *("--:" for _ in names[1:])]))
    for group, members in table.groups():
        if group:
            lines.append(_pipes([f"*{markdown_text(group)}*", *("" for _ in names[1:])]))
        for at in members:
            cells = [markdown_text(cell) for cell in shown[at]]
            lines.append(
                _pipes([_bold(c, (at, n) in best, "**", "**") for n, c in enumerate(cells)])
            )
    note = ["", markdown_text(table.note)] if table.note else []
    return "\n".join([*lines, *note]) + "\n"


# A table wider than its column is shrunk to it; a narrower one is left as large as its letters.
_SHRUNK = r"\resizebox{\ifdim\width>\columnwidth\columnwidth\else\width\fi}{!}{%"


def as_latex(table: Table) -> str:
    """A `table` environment in the style of the paper; needs the packages booktabs and graphicx.

    LaTeX counts it; `\\label` is `tab:` and the table's name. It fits any column: what is too
    wide is shrunk, and long words of title and note are not set in full lines.
    """
    shown, best, width = table.cell_texts(), table.best(), len(table.columns)
    title = latex_text(table.title)
    lines = [r"\begin{table}[h]", r"\centering", rf"\caption[{{{title}}}]{{\raggedright {title}}}"]
    lines += [rf"\label{{tab:{_LABEL.sub('-', table.name)}}}"] if table.name else []
    lines += [_SHRUNK, rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
    lines.append(_ampersands([latex_text(column.title) for column in table.columns]))
    for group, members in table.groups():
        lines.append(r"\midrule")
        if group:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{latex_text(group)}}}}} \\")
        for at in members:
            cells = [latex_text(cell) for cell in shown[at]]
            bold = [_bold(c, (at, n) in best, r"\textbf{", "}") for n, c in enumerate(cells)]
            lines.append(_ampersands(bold))
    lines += [r"\bottomrule", r"\end{tabular}}"]
    note = latex_text(table.note)
    lines += [rf"\par\smallskip{{\footnotesize\raggedright {note}\par}}"] if note else []
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def as_csv(table: Table) -> str:
    """Header and rows, 12 significant digits, empty cells empty; inert in a spreadsheet."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow([csv_text(column.title) for column in table.columns])
    for row in table.rows:
        writer.writerow([_csv_cell(cell) for cell in row.cells])
    return sink.getvalue()


def fold_table(table: Table, width: int) -> list[Table]:
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
    return [select_columns(table, [0, *columns]) for columns in parts]


def _rich_block(table: Table) -> RichTable:
    shown, best = table.cell_texts(), table.best()
    first, *others = table.columns
    block = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    block.add_column(Text(one_line(first.title)), overflow="fold", max_width=FIRST_COLUMN)
    for column in others:
        block.add_column(Text(one_line(column.title)), justify="right", no_wrap=True)
    width = len(table.columns)
    for group, members in table.groups():
        if group:
            heading = Text(one_line(group), style="italic")
            block.add_row(heading, *(Text() for _ in range(width - 1)))
        for at in members:
            cells = [one_line(cell) for cell in shown[at]]
            styles = ["bold" if (at, number) in best else "" for number in range(width)]
            block.add_row(*(Text(c, style=s) for c, s in zip(cells, styles, strict=True)))
    return block


def _widths(table: Table) -> list[int]:
    texts = [[column.title for column in table.columns], *table.cell_texts()]
    widths = [
        max(cell_len(one_line(text)) for text in column) for column in zip(*texts, strict=True)
    ]
    widths[0] = min(max([widths[0], *(len(row.group) for row in table.rows)]), FIRST_COLUMN)
    return widths


def select_columns(table: Table, columns: list[int]) -> Table:
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


def whole_number(number: float) -> str:
    """A count: 33,000."""
    return f"{number:,.0f}"


def short_number(number: float) -> str:
    """Three digits and a unit: 1.23M."""
    power = 0
    while number >= 999.5 and power < len(THOUSANDS) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g}{THOUSANDS[power]}"


def size(count: float) -> str:
    """Bytes: 1.23 MB."""
    text = short_number(count)
    digits = text.rstrip("".join(THOUSANDS))
    return f"{digits} {text[len(digits) :]}B"


def duration(seconds: float) -> str:
    """The two largest units: 2 d 3 h, 3 h 5 min, 5 min, 12 s."""
    if seconds >= DAYS:
        return f"{seconds // DAYS:.0f} d {seconds % DAYS // HOURS:.0f} h"
    if seconds >= HOURS:
        return f"{seconds // HOURS:.0f} h {seconds % HOURS // MINUTES:.0f} min"
    return f"{seconds / MINUTES:.0f} min" if seconds >= 10 * MINUTES else f"{seconds:.0f} s"
