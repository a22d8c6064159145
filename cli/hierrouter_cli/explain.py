"""`hierrouter explain` and `hierrouter explore`: one query's tree, or a page to play with."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter_cache.errors import InputError
from hierrouter_cli import console, options, parsing
from hierrouter_cli.report import log_looks, look_at, looks_at, say_shown, warn_of_test
from hierrouter_cli.selecting import Selected, as_trained, own_policies, selecting

if TYPE_CHECKING:
    from hierrouter.evaluation.policies import OwnPolicy
    from hierrouter.learning.selection import Shown
    from hierrouter.reports.explore import Explored
    from hierrouter.reports.values import Explained
    from hierrouter_cache.tree import RouteTree

SPLIT = "validation"
FORMATS = ("text", "json", "md")


@selecting
def explain(
    selected: Selected,
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY_ID", help="An id, dataset/id, or the beginning of either."),
    ] = None,
    worst: Annotated[
        int | None,
        typer.Option(
            "--worst", metavar="N", min=1, help="Instead: the N queries with the largest regret."
        ),
    ] = None,
    split: Annotated[
        str | None,
        options.choice("--split", options.FOLDS, f"Of --worst; default {SPLIT}."),
    ] = None,
    checkpoint: options.Checkpoint = None,
    alpha: options.ShownAlpha = None,
    format: Annotated[
        str, options.choice("--format", FORMATS, "Format of what is printed.")
    ] = "text",
) -> None:
    """Show one query: every answer, what it is worth, the router's route and what it lost.

    With --worst one line for each of the queries on which the router loses most.
    """
    from hierrouter.learning.selection import shown_router
    from hierrouter.questions.query import find_query

    parsing.check_format(format, FORMATS)
    _check_asked(query, worst, split)
    value = parsing.parse_alpha(alpha)
    tree = as_trained(selected, checkpoint).open()
    row = None if query is None else find_query(tree, query)
    shown = shown_router(tree, value, checkpoint)
    say_shown("explain", shown)
    if row is not None:
        name = [tree.datasets[row], tree.query_ids[row]]
        look_at("explain", tree, tree.splits[row], shown, query=name)
        show(_one(selected, tree, row, shown), format)
    elif worst is not None:
        fold = split or SPLIT
        found = _worst(selected, tree, worst, fold, shown)
        look_at("explain", tree, fold, shown, worst=worst)
        show_worst(found, fold, format)


def _check_asked(query: str | None, worst: int | None, split: str | None) -> None:
    """Refuse what contradicts itself before anything is opened.

    Raises:
        InputError: neither a query nor --worst, both, or a fold for one query.
    """
    if (query is None) == (worst is None):
        what = "no query" if query is None else "a query and --worst contradict each other"
        raise InputError(f"{what}; give QUERY_ID or --worst N")
    if query is not None and split is not None:
        raise InputError(f"--split {split} is for --worst; a query is looked for in all folds")
    parsing.check_split(split or SPLIT)


def _one(selected: Selected, tree: RouteTree, row: int, shown: Shown) -> Explained:
    """The query at a position."""
    from hierrouter.reports.explain import explain as explained

    [found] = explained(selected.cache, tree, [row], shown.alpha, shown.trained, selected.pool)
    return found


def _worst(
    selected: Selected, tree: RouteTree, count: int, split: str, shown: Shown
) -> Sequence[Explained]:
    """The queries of a fold on which the router loses most.

    Raises:
        InputError: there is no router.
    """
    from hierrouter.reports.explain import explain_worst

    if shown.trained is None:
        raise InputError("no router, so no regret: --worst; run `hierrouter train` first")
    return explain_worst(
        selected.cache, tree, split, shown.alpha, shown.trained, count, selected.pool
    )


def show(found: Explained, format: str) -> None:
    """One query on stdout."""
    from hierrouter.reports.explain import as_markdown, as_object, as_text
    from hierrouter.tables import json_text

    if format == "json":
        console.put(json_text(as_object(found), "query"))
    elif format == "md":
        console.put(as_markdown(found))
    else:
        console.put(as_text(found, console.page_width(), sys.stdout.isatty()))


def show_worst(found: Sequence[Explained], split: str, format: str) -> None:
    """A line a query on stdout; as JSON each one whole."""
    from hierrouter.reports.explain import as_object, worst_table
    from hierrouter.tables import as_markdown, json_text

    table = worst_table(found, split)
    if format == "json":
        queries = [as_object(query) for query in found]
        console.put(json_text({"split": split, "queries": queries}, "queries"))
    elif format == "md":
        console.put(as_markdown(table))
    else:
        console.put_tables([table])


PAGE = "explore.html"
TEXTS = 500


@selecting
def explore(
    *,
    selected: Selected,
    checkpoint: options.Checkpoint = None,
    sweep: Annotated[
        Path | None,
        typer.Option("--sweep", metavar="DIR", help="Folder of a sweep; default: the latest."),
    ] = None,
    policy: options.Policies = None,
    split: options.Split = "test",
    texts: Annotated[
        int,
        typer.Option(
            "--texts", metavar="N", min=0, help="So many queries with question and answers."
        ),
    ] = TEXTS,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE.html", help=f"The page; default runs/<time>-explore/{PAGE}."
        ),
    ] = None,
) -> None:
    """Write a page on which alpha, prices and models can be changed, query by query.

    It is one file, opens from disk and loads nothing.
    """
    from hierrouter.collection.files import require_free
    from hierrouter.learning.selection import shown_router

    parsing.check_split(split)
    if out:
        require_free(out)
    policies = own_policies(policy)
    tree = as_trained(selected, checkpoint).open()
    # A checkpoint that was asked for is not put behind a sweep that was not.
    shown = shown_router(tree, None, checkpoint, sweep, with_sweep=not checkpoint or bool(sweep))
    say_shown("explore", shown, split, with_sweep=True)
    warn_of_test("explore", split)
    content = _explored(selected, tree, split, shown, texts, policies)
    look = {"texts": len(content.texts), **looks_at(policies)}
    log_looks("explore", tree, split, [shown.run, shown.sweep_run], look)
    page = write(content, out)
    console.say(f"explore: page {page}, {page.stat().st_size / 1e6:.1f} MB")


def _explored(
    selected: Selected,
    tree: RouteTree,
    split: str,
    shown: Shown,
    texts: int,
    policies: Sequence[OwnPolicy],
) -> Explored:
    """What the page holds, with a bar while a sweep is evaluated."""
    from hierrouter.reports.explore import explored

    # What a user's own policy prints is no result of ours.
    with console.bar("explore") as on_done, contextlib.redirect_stdout(sys.stderr):
        return explored(selected.cache, tree, split, shown, texts, selected.pool, on_done, policies)


def write(content: Explored, out: Path | None) -> Path:
    """The page, in `out` or in the folder of a new run; returns where it is."""
    from hierrouter.learning.runs import new_run
    from hierrouter.reports.explore import as_html
    from hierrouter_cache.writer import write_atomically

    page = as_html(content).encode()
    out = out or new_run("explore", None) / PAGE
    write_atomically(out, page)
    return out
