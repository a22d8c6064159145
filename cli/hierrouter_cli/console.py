"""Everything a person sees while a command runs."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from hierrouter.tables import safe_text

if TYPE_CHECKING:
    from rich.progress import TaskID

    from hierrouter.tables import Table

Result = TypeVar("Result")


MAX_ERROR = 300  # characters of the line, `error: ` included
PIPE_WIDTH = 160  # columns where the output is not a terminal
WIDE = 120  # columns with room for a long bar


def say(message: str) -> None:
    """A line for the person, on stderr."""
    print(safe_text(message), file=sys.stderr, flush=True)  # noqa: T201


def say_of(command: str, message: str) -> None:
    """Print a line for the person on stderr, with the command that it comes from."""
    say(f"{command}: {message}")


def say_error(message: str) -> None:
    """The one line in which a failed command says what is wrong."""
    line = " ".join(safe_text(f"error: {message}").split())
    say(line if len(line) <= MAX_ERROR else line[: MAX_ERROR - 3] + "...")


class SafeFormatter(logging.Formatter):
    """Log lines and traces in which foreign text steers no terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return safe_text(super().format(record))


def log_to_stderr() -> None:
    """Show what libraries warn of, and their traces."""
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def put(text: str) -> bool:
    """A result, on stdout, exactly as it is; a reader that has gone away is no error.

    Returns:
        Whether somebody still reads; asked after the first time that nobody did, it is not known.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def put_json(found: Any, sort_keys: bool = False) -> bool:
    """`put` values as one line of JSON; finite numbers only, as JSON has no others."""
    return put(json.dumps(found, sort_keys=sort_keys, allow_nan=False) + "\n")


def put_as(
    format: str,
    result: Result,
    as_json: Callable[[Result], str],
    long_table: Callable[[Result], Table],
    tables: Callable[[Result], Sequence[Table]],
) -> None:
    """A result on stdout, in one of `options.FORMATS`.

    `as_json`: the whole of it as text; `long_table`: one row a fact, for CSV; `tables`: what a
    person reads, on a terminal or in a paper.
    """
    from hierrouter.tables import as_csv, as_latex, as_markdown

    if format == "json":
        put(as_json(result))
    elif format == "csv":
        put(as_csv(long_table(result)))
    elif format == "text":
        put_tables(tables(result))
    else:
        render = as_markdown if format == "md" else as_latex
        put("\n".join(render(table) for table in tables(result)))


def page_width() -> int:
    """Columns of the terminal, or of a page where the output is none."""
    from rich.console import Console

    return Console().width if sys.stdout.isatty() else PIPE_WIDTH


def put_tables(tables: Iterable[Table]) -> None:
    """Tables on stdout, as wide as the terminal, in colour on one only."""
    from hierrouter.tables import as_rich

    width = page_width()
    put_rich((as_rich(table, width) for table in tables), width)


def put_rich(items: Iterable[Any], width: int) -> None:
    """What rich can print, on stdout, in colour on a terminal only."""
    import io

    from rich.console import Console

    text = io.StringIO()
    page = Console(file=text, force_terminal=sys.stdout.isatty(), width=width)
    for item in items:
        page.print(item)
    put(text.getvalue())


class _Stage:
    """Bars of one stage of a longer work: all they do is move the bar of the whole."""

    def __init__(self, bars: Any, task: TaskID, number: int) -> None:
        self.bars, self.task, self.number, self.console = bars, task, number, bars.console
        self.done, self.of = 0.0, 0.0

    def add_task(self, description: str, total: float | None, note: str) -> TaskID:
        self.done, self.of = 0.0, total or 0.0
        return self.task

    def reset(self, task: TaskID, **changes: Any) -> None:
        """Nothing: the parts of a task count for the whole of it."""

    def update(self, task: TaskID, note: str = "", **changes: Any) -> None:
        self.done = changes.get("completed", self.done + changes.get("advance", 0))
        share = min(self.done / self.of, 1.0) if self.of else 0.0
        self.bars.update(task, completed=self.number + share, note=note)


_stage: ContextVar[_Stage | None] = ContextVar("stage", default=None)


@contextmanager
def one_bar(stages: int) -> Iterator[Callable[[int, str], None]]:
    """One bar for several stages, whatever bars they have; it is told when one begins, from 0."""
    with progress_bars() as bars:
        task = bars.add_task("", total=stages, note="")

        def begin(number: int, label: str) -> None:
            bars.update(task, description=label, completed=number, note="")
            _stage.set(_Stage(bars, task, number))

        try:
            yield begin
        finally:
            _stage.set(None)


@contextmanager
def progress_bars() -> Iterator[Any]:
    """Bars with an estimated end on stderr; nothing where that is not a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column
    from rich.text import Text

    if stage := _stage.get():
        yield stage
        return

    class SafeColumn(TextColumn):
        def render(self, task: Task) -> Text:
            text = safe_text(self.text_format.format(task=task))
            return Text(text, no_wrap=True, overflow="ellipsis")

    console = Console(stderr=True)
    # The only column that may shrink: on a narrow terminal rich takes from all, and cuts numbers.
    note = Column(no_wrap=False)
    with Progress(
        SafeColumn("{task.description:<16}"),
        BarColumn(bar_width=28 if console.width >= WIDE else 10),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        SafeColumn("{task.fields[note]}", table_column=note),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bars:
        yield bars


@contextmanager
def bar(label: str, note: str = "") -> Iterator[Callable[..., None]]:
    """One of `progress_bars`, and what moves it: told how much is done and of how much."""
    with progress_bars() as bars:
        task = bars.add_task(label, total=None, note=note)

        def show(done: int, total: int | None, note: str = "", label: str | None = None) -> None:
            bars.update(task, description=label, completed=done, total=total, note=note)

        yield show
