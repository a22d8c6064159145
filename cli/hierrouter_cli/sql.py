"""`hierrouter cache sql`: people's own questions to a cache."""

from __future__ import annotations

import csv
import io
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hierrouter.report.text import one_line
from hierrouter_cli import console, options, parsing

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("text", "json", "csv")
ROWS_SHOWN = 100
CELL_SHOWN = 60


def sql(
    question: Annotated[str, typer.Argument(metavar="SELECT", help="One SELECT statement.")],
    cache: options.Cache = options.DEFAULT_CACHE,
    format: Annotated[
        str, options.choice("--format", FORMATS, "Format of what is printed.")
    ] = "text",
) -> None:
    """Answer a SELECT over the views nodes, queries, scores and routes; nothing can be changed.

    Text shows the first 100 rows and cuts long cells; json (one object a line) and csv hold all.
    """
    from hierrouter.inspection import ask_cache

    parsing.check_format(format, FORMATS)
    answer = ask_cache(cache, question)
    console.put({"text": _text, "json": _json, "csv": _csv}[format](answer))
    if format == "text" and answer.num_rows > ROWS_SHOWN:
        console.say(
            f"the first {ROWS_SHOWN} of {answer.num_rows:,} rows; --format csv has them all"
        )


def _text(answer: pa.Table) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    for name in answer.column_names:
        table.add_column(Text(one_line(name)), overflow="ellipsis", max_width=CELL_SHOWN)
    for row in answer.slice(0, ROWS_SHOWN).to_pylist():
        table.add_row(*(Text(_short(value)) for value in row.values()))
    page = Console(file=io.StringIO(), width=(CELL_SHOWN + 3) * answer.num_columns)
    page.print(table)
    return "\n".join(line.rstrip() for line in page.file.getvalue().splitlines()) + "\n"  # type: ignore[attr-defined]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else one_line(str(value), CELL_SHOWN)


def _json(answer: pa.Table) -> str:
    rows = ({name: _plain(value) for name, value in row.items()} for row in answer.to_pylist())
    return "".join(json.dumps(row, default=str, allow_nan=False) + "\n" for row in rows)


def _plain(value: Any) -> Any:
    """Sums are decimals in DuckDB, and JSON has no NaN and no infinity."""
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(answer: pa.Table) -> str:
    from hierrouter.report.text import csv_text

    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow([csv_text(name) for name in answer.column_names])
    for row in answer.to_pylist():
        cells = (csv_text(cell) if isinstance(cell, str) else cell for cell in row.values())
        writer.writerow(list(cells))
    return sink.getvalue()
