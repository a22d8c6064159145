"""Print for commands: messages and bars on stderr, results on stdout."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from hierrouter.tables import safe_text

if TYPE_CHECKING:
    from rich.progress import TaskID

    from hierrouter.tables import Table

Result = TypeVar("Result")

MAX_ERROR_LENGTH = 300  # in characters, `error: ` included
PIPE_WIDTH = 160  # in columns, if the output is not a terminal
SECONDS_PER_DOWNLOAD_LINE = 30.0  # if the output is not a terminal
MEGABYTE = 1e6
LONG_BAR_WIDTH = 120  # columns from which on a terminal has room for a long bar


def say(message: str) -> None:
    """Print a message for the user on stderr; one that nobody can read is no error."""
    with suppress(OSError):
        print(safe_text(message), file=sys.stderr, flush=True)  # noqa: T201


def say_of(command: str, message: str) -> None:
    """Print a line for the person on stderr, with the command that it comes from."""
    say(f"{command}: {message}")


def say_error(message: str) -> None:
    """Print what is wrong with a failed command, in one line on stderr."""
    line = " ".join(safe_text(f"error: {message}").split())
    if len(line) > MAX_ERROR_LENGTH:
        line = line[: MAX_ERROR_LENGTH - 3] + "..."
    say(line)


class SafeFormatter(logging.Formatter):
    """Formats log lines and traces so that foreign text cannot control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return safe_text(super().format(record))


def log_to_stderr() -> None:
    """Show the warnings and the errors that libraries log, with their traces."""
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def put(text: str) -> bool:
    """Print a result on stdout, exactly as it is; a reader that has gone away is no error.

    Returns:
        False if the reader has gone away. It is noticed once: later output goes nowhere, and the
        result is True.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def foreign_output_on_stderr() -> AbstractContextManager[object]:
    """Send to stderr what Python code of a user or a library prints: it is no result."""
    return contextlib.redirect_stdout(sys.stderr)


@contextmanager
def results_alone() -> Iterator[None]:
    """Send to stderr whatever is written to stdout meanwhile, by C code and other processes, too.

    So nothing that a library writes there gets between the results of a command. For Python code
    alone `foreign_output_on_stderr` is enough.
    """
    sys.stdout.flush()
    results = sys.stdout.fileno()
    kept = os.dup(results)
    try:
        messages = sys.stderr.fileno() if sys.stderr else os.open(os.devnull, os.O_WRONLY)
        os.dup2(messages, results)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, results)
        os.close(kept)


def put_json(values: Any, sort_keys: bool = False) -> bool:
    """Print values as one line of JSON, see `put`.

    Raises:
        ValueError: a number is not finite, which JSON cannot express.
    """
    return put(json.dumps(values, sort_keys=sort_keys, allow_nan=False) + "\n")


def put_as(
    format: str,
    result: Result,
    as_json: Callable[[Result], str],
    long_table: Callable[[Result], Table],
    tables: Callable[[Result], Sequence[Table]],
) -> None:
    """Print a result on stdout in one of `declared.FORMATS`.

    Args:
        format: name of the format.
        result: to be printed.
        as_json: returns the complete result as JSON text.
        long_table: returns a table with one row a fact, for CSV.
        tables: returns the tables that people read, on a terminal or in a paper.
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


def terminal_width() -> int | None:
    """Return the width of the terminal in columns; None if the output is no terminal."""
    from rich.console import Console

    return Console().width if sys.stdout.isatty() else None


def page_width() -> int:
    """Return the width of the terminal in columns; `PIPE_WIDTH` if the output is no terminal."""
    return terminal_width() or PIPE_WIDTH


def put_tables(tables: Iterable[Table]) -> None:
    """Print tables on stdout, as wide as the terminal; in colour only on a terminal."""
    from hierrouter.tables import as_rich

    width = page_width()
    put_rich((as_rich(table, width) for table in tables), width)


def put_rich(renderables: Iterable[Any], width: int) -> None:
    """Print texts and tables of rich on stdout; in colour only on a terminal.

    Args:
        renderables: whatever rich can print.
        width: in columns.
    """
    import io

    from rich.console import Console

    text = io.StringIO()
    page = Console(file=text, force_terminal=sys.stdout.isatty(), width=width)
    for renderable in renderables:
        page.print(renderable)
    put(text.getvalue())


class _Stage:
    """The bars of one stage of a longer job, with rich's methods; they only move the job's bar.

    Attributes:
        bars: rich's, with the bar of the job.
        task: of the job in `bars`.
        number: of the stage, from 0.
        console: of `bars`.
        done: how much of the stage is done.
        total: how much that is in all; 0 if it is not known.
    """

    def __init__(self, bars: Any, task: TaskID, number: int) -> None:
        self.bars = bars
        self.task = task
        self.number = number
        self.console = bars.console
        self.done = 0.0
        self.total = 0.0

    def add_task(self, description: str, total: float | None, note: str) -> TaskID:
        """Begin anew at the start of the stage."""
        self.done = 0.0
        self.total = total or 0.0
        return self.task

    def reset(self, task: TaskID, **changes: Any) -> None:
        """Do nothing: the parts of a task are not shown one by one."""

    def update(self, task: TaskID, note: str = "", **changes: Any) -> None:
        """Move the job's bar within this stage."""
        self.done = changes.get("completed", self.done + changes.get("advance", 0))
        share = min(self.done / self.total, 1.0) if self.total else 0.0
        self.bars.update(task, completed=self.number + share, note=note)


_stage: ContextVar[_Stage | None] = ContextVar("stage", default=None)


@contextmanager
def one_bar(stages: int) -> Iterator[Callable[[int, str], None]]:
    """Show one bar for a job of several stages, instead of the bars that the stages show.

    Args:
        stages: their number.

    Returns:
        A context whose value is called when a stage begins, with its number from 0 and its label.
    """
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
    """Show bars with an estimated end on stderr, if that is a terminal."""
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
    # The only column that may shrink. Otherwise rich narrows all columns on a narrow terminal, and
    # cuts numbers.
    note = Column(no_wrap=False)
    with Progress(
        SafeColumn("{task.description:<16}"),
        BarColumn(bar_width=28 if console.width >= LONG_BAR_WIDTH else 10),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        SafeColumn("{task.fields[note]}", table_column=note),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as bars:
        _open_bars.append(bars)
        try:
            yield bars
        finally:
            _open_bars.remove(bars)


# The bars on the terminal. Threads add to them, too, so this is no context variable.
_open_bars: list[Any] = []


@contextmanager
def download_bar(repository: str) -> Iterator[Callable[[int, int], None]]:
    """Show a download: among the bars that are there, else alone; in lines without a terminal.

    Args:
        repository: what is downloaded.

    Returns:
        A context whose value is called with the bytes that are here, and the bytes in all.
    """
    if not (sys.stderr and sys.stderr.isatty()):
        yield _download_lines(repository)
        return
    with ExitStack() as stack:
        bars = _open_bars[-1] if _open_bars else stack.enter_context(progress_bars())
        task = None

        def move(done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = bars.add_task("download", total=None, note=f"MB of {repository}")
            bars.update(task, completed=int(done / MEGABYTE), total=math.ceil(total / MEGABYTE))

        try:
            yield move
        finally:
            if task is not None:
                bars.remove_task(task)


def _download_lines(repository: str) -> Callable[[int, int], None]:
    """Return what names a download when it begins, and says now and again how far it is."""
    last_line_s: float | None = None

    def move(done: int, total: int) -> None:
        nonlocal last_line_s
        if last_line_s is None:  # the total grows with each file that is begun
            say(f"download: {repository}")
        elif monotonic() - last_line_s >= SECONDS_PER_DOWNLOAD_LINE:
            megabytes = f"{done / MEGABYTE:,.0f} of {total / MEGABYTE:,.0f} MB"
            say(f"download: {repository}, {megabytes}")
        else:
            return
        last_line_s = monotonic()

    return move


@contextmanager
def bar(label: str, note: str = "") -> Iterator[Callable[..., None]]:
    """Show one bar, see `progress_bars`.

    Args:
        label: in front of the bar.
        note: behind it.

    Returns:
        A context whose value moves the bar. It is called with how much is done, how much there is
        in all, and perhaps another note and label.
    """
    with progress_bars() as bars:
        task = bars.add_task(label, total=None, note=note)

        def move(done: int, total: int | None, note: str = "", label: str | None = None) -> None:
            bars.update(task, description=label, completed=done, total=total, note=note)

        yield move
