"""`hierrouter report`: tables, figures and a page; and what is said of every router shown."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter.replay.open_tree import OpenTree
from hierrouter.tables import one_line, safe_text
from hierrouter_cache.errors import InputError
from hierrouter_cli import console, options
from hierrouter_cli.declared import with_flags
from hierrouter_cli.selecting import open_trees, own_policies

if TYPE_CHECKING:
    from hierrouter.evaluation.policies import OwnPolicy
    from hierrouter.pools.pool import Pool
    from hierrouter.reports.report import ReportRequest
    from hierrouter.reports.results import Report
    from hierrouter.runs.selection import SelectedRun
    from hierrouter_cache.tree import RouteTree

TEST = "test"
FULL, PAPER = STYLES = ("full", "paper")
PRINTED = ("text", "md", "latex")  # formats that a reader reads
FEW_QUERIES = 30


@with_flags
def report(
    *,
    alpha: options.ShownAlpha = None,
    opening: OpenTree,
    checkpoint: options.Checkpoint = None,
    sweep: options.Sweep = None,
    retrain: Annotated[
        bool, options.switch("--retrain", "Train runs again that do not fit; they are new runs.")
    ] = False,
    defer_to: options.DeferTo = None,
    defer_share: options.DeferShare = None,
    policy: options.Policies = None,
    p95_below: options.P95Below = None,
    split: options.SplitOrAll = TEST,
    all_tables: Annotated[
        bool, options.switch("--all", "Every table, not only the message.")
    ] = False,
    figures: Annotated[
        str | None,
        options.value(
            "--figures", "svg,pdf,png", "Also the figures, a file each.", offer_list=options.FIGURES
        ),
    ] = None,
    style: Annotated[
        str,
        options.choice(
            "--style", STYLES, "All of it, or the paper's tables and the frontier.", what="style"
        ),
    ] = FULL,
    format: options.Format = "text",
    out: options.Out = None,
) -> None:
    """Evaluate exactly on the test fold and say what comes of it.

    Text is a message of a few lines, and a self-contained page with all figures; the other formats
    have every table, and write the page only where --out or --figures ask for files.
    """
    from hierrouter.runs.folders import check_out, draft_of, new_run
    from hierrouter.runs.selection import as_trained

    check_out(out)
    if style == PAPER and format not in PRINTED:
        raise InputError(
            f"the paper's tables are for readers: --style paper --format {format}; give "
            f"--format {', '.join(PRINTED[:-1])} or {PRINTED[-1]}"
        )
    files = options.split_names(figures) or (["pdf"] if style == PAPER else [])
    if files:
        from hierrouter.reports.figures import check_formats

        check_formats(files)
    share = options.parse_share(defer_share, defer_to)
    policies = own_policies(policy)
    opening.price_lists()  # refused before the cache is read
    trees = open_trees(as_trained(opening, checkpoint))
    tree = next(iter(trees.values()))
    if retrain:
        from hierrouter.runs.training import RunCallbacks
        from hierrouter.runs.training import retrain as train_again

        callbacks = RunCallbacks(on_note=console.say)
        checkpoint = train_again("train", checkpoint, tree, callbacks)
        sweep = train_again("sweep-alpha", sweep, tree, callbacks)
    # What needs torch comes after all that can be refused without it.
    from hierrouter.reports.fold_report import DeferralTarget
    from hierrouter.reports.report import ReportRequest, as_json
    from hierrouter.reports.tables import long_table, report_tables
    from hierrouter.runs.selection import select_run

    page = style == FULL and (out is not None or format == "text" or bool(files))
    shown = select_run(tree, alpha, checkpoint, sweep, with_sweep=True)
    defer = DeferralTarget(defer_to, share) if defer_to is not None else None
    request = ReportRequest(trees, shown, split, defer, policies, p95_below)
    say_what(request)
    # What a user's policy prints is no result.
    with console.bar("report"), contextlib.redirect_stdout(sys.stderr):
        finished = request.evaluate()
    if style == PAPER:
        folder = new_run("report", out)
        with draft_of(folder) as draft:
            show_paper(finished.result, format, folder, draft, files)
        return
    if format != "text" or all_tables:
        console.put_as(format, finished.result, as_json, long_table, report_tables)
    if page:
        folder = new_run("report", out)
        with draft_of(folder) as draft, contextlib.redirect_stdout(sys.stderr):
            written = finished.write(draft)
            figures_written = []
            if files:
                from hierrouter.reports.figures import export_figures

                figures_written = export_figures(finished.result, draft, files)
        if files:
            console.say(f"report: {len(figures_written)} figures in {folder}")
        if format == "text":
            show_message(finished.result, folder / written.name, opening.cache, checkpoint)
        else:
            console.say(f"report: page {folder / written.name}")


NEXT = {  # what to do where the router is so
    "untrained": "train --allow-stop",
    "better": 'route "a question of yours"',
    "open": "compare",
    "constant": "compare",
    "worse": "explain --worst 10",
}
LINES, COLUMNS = 20, 80  # of a message at most


def show_message(result: Report, page: Path, cache: Path, checkpoint: Path | None = None) -> None:
    """What the report says, three figures, what must be known, what to do next, and the page."""
    from rich.console import Console
    from rich.text import Text

    from hierrouter.reports.sentences import headlines, in_time_sentence, message, verdict

    width, found, figures = min(console.page_width(), COLUMNS), verdict(result), headlines(result)
    measure = Console(width=width)

    def wrapped(text: str, style: str = "") -> list[Text]:
        lines = Text(one_line(text), style).wrap(measure, width)
        return [Text(line.plain.rstrip(), style) for line in lines]

    lines = [
        Text(),
        *wrapped(message(result), "bold green" if found == "better" else "bold"),
        Text(),
    ]
    label, number = (max(len(row[at]) for row in figures) for at in (0, 1))
    for what, value, said in figures:
        line = Text(f"  {what:<{label}}  {value:>{number}}  {one_line(said)}")
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    asked = filter(None, [in_time_sentence(result)])
    notes = [wrapped(f"note: {note}") for note in (*asked, *result.notes)]
    while notes and len(lines) + len(notes[0]) <= LINES - 4:
        lines += notes.pop(0)
    more = [Text(f"note: {len(notes)} more on the page")] if notes else []
    console.put_rich([*lines, *more, Text()], width)
    flags = f" --cache {shlex.quote(str(cache))}" if cache != options.DEFAULT_CACHE else ""
    if checkpoint and found != "untrained":
        flags += f" --checkpoint {shlex.quote(str(checkpoint))}"
    console.put(safe_text(f"next: hierrouter {NEXT[found]}{flags}\npage: {page}\n"))


def say_what(request: ReportRequest) -> None:
    """What is shown, and of which runs; a look at the test fold is logged."""
    tree, shown = request.tree, request.selected
    say_if_few(tree, request.split, "every figure rests on them")
    say_shown("report", shown, request.split, with_alpha=True, with_sweep=True)
    look = {
        "alpha": shown.alpha,
        "defer": asdict(request.defer) if request.defer else None,
        "price_lists": [priced.fingerprint for priced in request.price_lists.values()],
        **looks_at(request.policies),
    }
    log_looks("report", tree, request.split, request.runs, look)


def show_paper(
    result: Report, format: str, folder: Path, draft: Path, files: Sequence[str]
) -> None:
    """The paper's two tables on stdout, the frontier in files; what the tables lack is said.

    `folder`: where the figure will be; `draft`: where it is written.
    """
    from hierrouter.reports.figures import frontier_figure, latex_figure, save
    from hierrouter.reports.report import as_json
    from hierrouter.reports.tables import lacking_for_paper, long_table, paper_tables

    for lacking in lacking_for_paper(result):
        console.say(f"report: {lacking}")
    console.put_as(format, result, as_json, long_table, paper_tables)
    drawing = frontier_figure(result)
    for suffix in dict.fromkeys(files):
        name = save(drawing, draft / f"{drawing.name}.{suffix}").name
        console.say(f"report: figure {folder / name}")
    if format == "latex":
        console.put("\n" + latex_figure(drawing, (folder / drawing.name).as_posix()))


def say_shown(
    command: str,
    shown: SelectedRun,
    split: str | None = None,
    with_alpha: bool = False,
    with_sweep: bool = False,
) -> None:
    """Which router is shown, and what is remarkable about it.

    `split`: the fold that it is shown on; None names none; `with_alpha`: name the price of cost;
    `with_sweep`: name the sweep, too.
    """
    for remark in shown.remarks:
        console.say(f"{command}: {remark}")
    found = f"checkpoint {shown.run or 'none'}" + f" ({shown.why})" * bool(shown.run and shown.why)
    found += f", sweep {shown.sweep_run or 'none'}" if with_sweep else ""
    alpha = f" at alpha {shown.alpha:g}" if with_alpha else ""
    console.say(
        f"{command}: {split} fold{alpha}; {found}" if split else f"{command}: {found}{alpha}"
    )


def say_called(command: str, run: Path, pool: Pool) -> None:
    """Which run routes, and whom it calls; where a server answers, a question goes there."""
    from hierrouter.runs.fitting import run_status

    called = [
        f"{model.name} at {model.endpoint.base_url}" if model.endpoint else model.name
        for model in pool.models
    ]
    known = f" ({known})" if (known := run_status(run)) else ""
    console.say(f"{command}: {run}{known}, {', '.join(called)}")


def say_if_few(tree: RouteTree, fold: str, role: str) -> None:
    """Warn where a fold is too small to trust what is read off it."""
    found = len(tree.rows(fold))
    if found < FEW_QUERIES:
        console.say(f"note: only {found} {fold} queries, and {role}; add queries to trust it")


def warn_of_test(command: str, split: str) -> None:
    if split == TEST:
        console.say(f"{command}: the test fold; what is changed after a look at it is tuned on it")


def look_at(command: str, tree: RouteTree, split: str, shown: SelectedRun, **what: Any) -> None:
    """Where it is one at the test fold, say what that means and log it; see `log_looks`."""
    warn_of_test(command, split)
    log_looks(command, tree, split, [shown.run], {"alpha": shown.alpha, **what})


def looks_at(policies: Iterable[OwnPolicy]) -> dict[str, Any]:
    """Policies of the user's own as part of a look; an edit of their module is another look."""
    shown = {policy.path: policy.version for policy in policies}
    return {"policies": shown} if shown else {}


def log_looks(
    command: str, tree: RouteTree, split: str, runs: Iterable[Path | None], look: Mapping[str, Any]
) -> None:
    """Log that routers are looked at on the test fold; nothing for other folds, or without runs.

    `tree`: all folds, under the prices shown; `runs`: of the routers, that of the main one first;
    `look`: what is looked at beside the tree, JSON values.
    """
    from hierrouter.runs.looks import record_looks

    for line in record_looks(command, tree, split, runs, look):
        console.say(f"{command}: {line}")
