"""`hierrouter report`: tables, figures and a page."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter_cli import console, options, parsing
from hierrouter_cli.completing import FIGURES, some_of
from hierrouter_cli.looking import log_looks, looks_at, say_if_few, say_shown
from hierrouter_cli.opening import open_trees, own_policies
from hierrouter_cli.selecting import Selected, as_trained, selecting

if TYPE_CHECKING:
    from hierrouter.report.results import Report
    from hierrouter.reporting import Reported


@selecting
def report(
    *,
    alpha: options.ShownAlpha = None,
    selected: Selected,
    checkpoint: options.Checkpoint = None,
    sweep: Annotated[
        Path | None,
        typer.Option("--sweep", metavar="DIR", help="Folder of a sweep; default: the latest."),
    ] = None,
    defer_to: options.DeferTo = None,
    defer_share: options.DeferShare = None,
    policy: options.Policies = None,
    split: options.Split = "test",
    all_tables: Annotated[
        bool, typer.Option("--all", help="Also the tables that only page and JSON hold otherwise.")
    ] = False,
    figures: Annotated[
        str | None,
        typer.Option(
            "--figures",
            metavar="svg,pdf,png",
            autocompletion=some_of(FIGURES),
            help="Also the figures, a file each.",
        ),
    ] = None,
    format: options.Format = "text",
    out: options.Out = None,
) -> None:
    """Evaluate exactly on the test fold and show it.

    Text also writes a self-contained page with all figures; the other formats write it only where
    --out or --figures ask for files.
    """
    from hierrouter.price_lists import price_lists
    from hierrouter.runs import check_out, new_run

    parsing.check_format(format)
    parsing.check_split(split)
    check_out(out)
    files = parse_figures(figures)
    value = parsing.parse_alpha(alpha)
    share = parsing.parse_share(defer_share, defer_to)
    policies = own_policies(policy)
    lists = price_lists(selected.prices or [], selected.price or [])
    selection = as_trained(selected, checkpoint).unpriced()
    trees = open_trees(selected.cache, selection, [given.prices for given in lists])
    # What needs torch comes after all that can be refused without it.
    from hierrouter.comparison import DeferTo
    from hierrouter.report.finished import FinishedReport, made_of
    from hierrouter.shown import shown_router

    page = out is not None or format == "text" or bool(files)
    shown = shown_router(trees[0], value, checkpoint, sweep, with_sweep=True)
    by_name = {given.name: priced for given, priced in zip(lists, trees, strict=True)}
    defer = DeferTo(defer_to, share) if defer_to is not None else None
    reported = made_of(by_name, shown, split, defer, policies, with_worst=page)
    say_what(reported)
    with contextlib.redirect_stdout(sys.stderr):  # what a user's policy prints is no result
        finished = FinishedReport.of(reported)
    show(finished.result, format, all_tables)
    if page:
        folder = new_run("report", out)
        with contextlib.redirect_stdout(sys.stderr):
            written = finished.write(folder)
        console.say(f"report: page {written}")
        write_figures(finished.result, folder, files)


def parse_figures(text: str | None) -> Sequence[str]:
    """Formats of files, separated by commas; none where there is no text.

    Raises:
        InputError: an unknown one.
    """
    if text is None:
        return ()
    from hierrouter.report.export import check_formats

    formats = parsing.split_names(text) or ()
    check_formats(formats)
    return formats


def say_what(reported: Reported) -> None:
    """What is shown, and of which runs; a look at the test fold is logged."""
    tree, shown = reported.tree, reported.shown
    say_if_few(tree, reported.split, "every figure rests on them")
    say_shown("report", shown, reported.split, with_alpha=True, with_sweep=True)
    look = {
        "alpha": shown.alpha,
        "defer": asdict(reported.defer) if reported.defer else None,
        "price_lists": [priced.fingerprint for priced in reported.lists.values()],
        **looks_at(reported.policies),
    }
    log_looks("report", tree, reported.split, reported.runs, look)


def write_figures(result: Report, folder: Path, formats: Sequence[str]) -> None:
    """Each figure of the page in `folder`, once in each format."""
    if not formats:
        return
    from hierrouter.report.export import export_figures

    console.say(f"report: {len(export_figures(result, folder, formats))} figures in {folder}")


def show(result: Report, format: str, all_tables: bool = False) -> None:
    """The report on stdout.

    Args:
        all_tables: with the tables of the analysis.
    """
    from hierrouter.report.serialise import as_json
    from hierrouter.report.tables import long_table, report_tables

    tables = functools.partial(report_tables, analysis=all_tables)
    console.put_as(format, result, as_json, long_table, tables)


def show_summary(result: Report) -> None:
    """Quality by dataset, and the table with rewards and intervals: what fits a screen."""
    from hierrouter.report.tables import quality_table, summary_table

    console.put_tables([quality_table(result), summary_table(result)])
