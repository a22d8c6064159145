"""Everything a person sees while a command runs.

Results go to stdout, messages and progress to stderr. Progress shows on a terminal only. Text of
models, datasets and errors passes through `safe_text` on its way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hierrouter.report.text import safe_text

if TYPE_CHECKING:
    from rich.progress import Progress

    from hierrouter.report.table import Table

MAX_ERROR = 300
PIPE_WIDTH = 160  # columns where the output is not a terminal


def say(message: str) -> None:
    """A line for the person, on stderr."""
    print(safe_text(message), file=sys.stderr, flush=True)  # noqa: T201


def say_error(message: str) -> None:
    """The one line in which a failed command says what is wrong."""
    line = " ".join(safe_text(message).split())
    say(f"error: {line if len(line) <= MAX_ERROR else line[: MAX_ERROR - 3] + '...'}")


def put(text: str) -> None:
    """A result, on stdout, exactly as it is; a reader that has gone away is no error."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def put_tables(tables: Iterable[Table]) -> None:
    """Tables on stdout, as wide as the terminal, in colour on one only."""
    import io

    from rich.console import Console

    from hierrouter.report.render import as_rich

    person = sys.stdout.isatty()
    width = Console().width if person else PIPE_WIDTH
    text = io.StringIO()
    page = Console(file=text, force_terminal=person, width=width)
    for table in tables:
        page.print(as_rich(table, width))
    put(text.getvalue())


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Bars with an estimated end on stderr; nothing where that is not a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description:<16}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bars:
        yield bars
