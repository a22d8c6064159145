"""Commands that look at routers: `report`, `compare`, `explain` and `explore`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hierrouter.replay.open_tree import OpenTree
from hierrouter.reports.jobs import Compare, Explain, Explore, Report
from hierrouter.tables import one_line, safe_text
from hierrouter_cache import CACHE
from hierrouter_cache.errors import InputError
from hierrouter_cli import console, declared
from hierrouter_cli.declared import check_job, open_tree, open_trees, quiet_bar, with_flags

if TYPE_CHECKING:
    from hierrouter.reports.report import FinishedReport
    from hierrouter.reports.results import ReportData

FULL_STYLE = "full"
PAPER_STYLE = "paper"
STYLES = (FULL_STYLE, PAPER_STYLE)
PAPER_FIGURES = ("pdf",)
READABLE_FORMATS = ("text", "md", "latex")


@with_flags
def report(
    *,
    opening: OpenTree,
    reporting: Report,
    all_tables: Annotated[
        bool, declared.switch("--all", "Every table, not only the message.")
    ] = False,
    style: Annotated[
        str,
        declared.choice(
            "--style", STYLES, "All of it, or the paper's three results.", subject="style"
        ),
    ] = FULL_STYLE,
    format: declared.Format = "text",
) -> None:
    """Evaluate exactly on the test fold and say what comes of it.

    Text is a message of a few lines, and a self-contained page with all figures; the other formats
    have every table, and write the page only where --out or --figures ask for files.
    """
    if style == PAPER_STYLE and format not in READABLE_FORMATS:
        raise InputError(
            f"the paper's tables are for readers: --style paper --format {format}; give "
            f"--format {', '.join(READABLE_FORMATS[:-1])} or {READABLE_FORMATS[-1]}, or leave "
            f"--style out: {format} has every row"
        )
    check_job(reporting)
    opening.price_lists()  # refused before the cache is read
    # Last, because it needs torch: everything above is refused before it is imported.
    from hierrouter.runs.selection import as_trained

    trees = open_trees(as_trained(opening, reporting.checkpoint))
    finished = reporting.evaluate(trees, console.say, lambda: quiet_bar("report"))
    if style == PAPER_STYLE:
        show_paper(finished, format, reporting.out, reporting.figures or PAPER_FIGURES)
    else:
        show_report(finished, reporting, format, all_tables, opening.cache)


def show_report(
    finished: FinishedReport, reporting: Report, format: str, all_tables: bool, cache: Path
) -> None:
    """Print a report, and write its files if text is printed or files were asked for."""
    from hierrouter.reports.report import PAGE_FILE, as_json
    from hierrouter.reports.tables import long_table, report_tables

    if format != "text" or all_tables:
        console.put_as(format, finished.result, as_json, long_table, report_tables)
    if format != "text" and reporting.out is None and not reporting.figures:
        return
    with console.foreign_output_on_stderr():
        folder = finished.save(reporting.out, reporting.figures)
    if reporting.figures:
        count = len(finished.figure_files(folder, reporting.figures))
        console.say(f"report: {count} figures in {folder}")
    page = folder / PAGE_FILE
    if format == "text":
        show_message(finished.result, page, cache, finished.checkpoint)
    else:
        console.say(f"report: page {page}")


# The next command to try, by the verdict on the router.
NEXT_COMMANDS = {
    "few": "explore",
    "untrained": "train --allow-stop",
    "unembedded": "collect",  # it embeds the states once the encoder can be loaded
    "better": 'route "a question of yours"',
    "barely better": "compare",
    "open": "compare",
    "barely worse": "compare",
    "constant": "compare",
    "fixed": "compare",
    "worse": "explain --worst 10",
}
MAX_MESSAGE_LINES = 20
MAX_MESSAGE_COLUMNS = 80
LINES_AFTER_NOTES = 4  # a line on further notes, an empty one, the next command, the page


def show_message(
    result: ReportData, page: Path, cache: Path, checkpoint: Path | None = None
) -> None:
    """Print the message, the headlines, notes as far as they fit, what to do next, and the page.

    Args:
        result: the figures of the report.
        page: the page's file.
        cache: folder of the cache, for the next command.
        checkpoint: the run that was named, for the next command.
    """
    from rich.console import Console
    from rich.text import Text

    from hierrouter.reports.sentences import headlines, in_time_sentence, message, verdict

    width = min(console.page_width(), MAX_MESSAGE_COLUMNS)
    judgement = verdict(result)
    measure = Console(width=width)

    def wrapped(text: str, style: str = "") -> list[Text]:
        lines = Text(one_line(text), style).wrap(measure, width)
        return [Text(line.plain.rstrip(), style) for line in lines]

    style = "bold green" if judgement == "better" else "bold"
    lines = [Text(), *wrapped(message(result), style), Text()]
    figures = headlines(result)
    label_width = max(len(figure.label) for figure in figures)
    value_width = max(len(figure.value) for figure in figures)
    for figure in figures:
        line = Text(
            f"  {figure.label:<{label_width}}  {figure.value:>{value_width}}  "
            f"{one_line(figure.detail)}"
        )
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    in_time = in_time_sentence(result)
    sentences = [in_time, *result.notes] if in_time else result.notes
    notes = [wrapped(f"note: {sentence}") for sentence in sentences]
    while notes and len(lines) + len(notes[0]) <= MAX_MESSAGE_LINES - LINES_AFTER_NOTES:
        lines += notes.pop(0)
    if notes:
        lines.append(Text(f"note: {len(notes)} more on the page"))
    console.put_rich([*lines, Text()], width)
    flags = ""
    if cache != CACHE:
        flags += f" --cache {shlex.quote(str(cache))}"
    if checkpoint and judgement not in ("few", "untrained", "unembedded"):
        flags += f" --checkpoint {shlex.quote(str(checkpoint))}"
    console.put(safe_text(f"next: hierrouter {NEXT_COMMANDS[judgement]}{flags}\npage: {page}\n"))


def show_paper(
    finished: FinishedReport, format: str, out: Path | None, figures: Sequence[str]
) -> None:
    """Print the paper's results and what they lack, and write the figures.

    In LaTeX the net reward is the paper's figure; elsewhere it is a table with its numbers.

    Args:
        finished: the report.
        format: one of `READABLE_FORMATS`.
        out: folder for the figures; None makes a new one below `runs`.
        figures: their formats.
    """
    from hierrouter.reports.figures import latex_figure, paper_figures
    from hierrouter.reports.report import as_json
    from hierrouter.reports.tables import long_table

    for sentence in (*finished.paper_notes, *finished.result.notes):
        console.say(f"report: {sentence}")
    tables = finished.paper_tables
    if format == "latex":
        del tables["reward"]
    console.put_as(format, finished.result, as_json, long_table, lambda _: list(tables.values()))
    files = finished.save_paper_figures(out, figures)
    for file in files:
        console.say(f"report: figure {file}")
    if format != "latex":
        return
    for drawing in paper_figures(finished.result):
        without_suffix = files[0].with_name(drawing.name).as_posix()
        console.put("\n" + latex_figure(drawing, without_suffix))


@with_flags
def compare(*, opening: OpenTree, comparing: Compare, format: declared.Format = "text") -> None:
    """Fit the baselines on the train fold, and compare them with the learned router.

    Text also writes everything as JSON; the other formats write it only where --out says.
    """
    with console.bar("start"):  # the import of whatever learns takes seconds
        from hierrouter.reports.comparison import as_json, contest_tables, long_table
        from hierrouter.runs.selection import as_trained

    check_job(comparing)
    tree = open_tree(as_trained(opening, comparing.checkpoint))
    standings = comparing.evaluate(tree, console.say, lambda: quiet_bar("fit"))
    console.put_as(format, standings, as_json, long_table, contest_tables)
    if comparing.out or format == "text":
        console.say(f"compare: {standings.save(comparing.out)}")


@with_flags
def explain(
    *, opening: OpenTree, explaining: Explain, format: declared.ShortFormat = "text"
) -> None:
    """Show one query: every answer, what it is worth, the router's route and what it lost.

    With --worst one line for each of the queries on which the router loses most, with --routes one
    for each group of a router that is a table of routes.
    """
    from hierrouter.reports.explain import RouteList
    from hierrouter.runs.selection import as_trained

    explaining.check()
    tree = open_tree(as_trained(opening, explaining.checkpoint))
    explanations = explaining.run(tree, console.say)
    if format == "json":
        console.put(explanations.to_json())
    elif isinstance(explanations, RouteList):
        console.put_tables([explanations.table])
    elif explaining.worst is None:
        console.put(explanations.to_text(console.page_width(), sys.stdout.isatty()))
    else:
        console.put_tables([explanations.table])


@with_flags
def explore(*, opening: OpenTree, exploring: Explore) -> None:
    """Write a page on which alpha, prices and models can be changed, query by query.

    It is one file, opens from disk and loads nothing. Policies and baselines can be switched on it.
    """
    from hierrouter.runs.selection import as_trained

    check_job(exploring)
    tree = open_tree(as_trained(opening, exploring.checkpoint))
    page = exploring.run(tree, console.say, lambda: quiet_bar("explore"))
    console.say(f"explore: page {page}, {page.stat().st_size / 1e6:.1f} MB")
