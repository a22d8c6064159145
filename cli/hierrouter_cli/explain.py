"""`hierrouter explain`: one query's tree, and what the router did in it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter_cache.errors import InputError
from hierrouter_cli import console, options, parsing
from hierrouter_cli.looking import look_at, say_shown
from hierrouter_cli.selecting import Selected, as_trained, selecting

if TYPE_CHECKING:
    from hierrouter.explained import Explained
    from hierrouter.shown import Shown
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
    from hierrouter.query_names import find_query
    from hierrouter.shown import shown_router

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
    from hierrouter.explain import explain as explained

    [found] = explained(selected.cache, tree, [row], shown.alpha, shown.trained, selected.pool)
    return found


def _worst(
    selected: Selected, tree: RouteTree, count: int, split: str, shown: Shown
) -> Sequence[Explained]:
    """The queries of a fold on which the router loses most.

    Raises:
        InputError: there is no router.
    """
    from hierrouter.explain import explain_worst

    if shown.trained is None:
        raise InputError("no router, so no regret: --worst; run `hierrouter train` first")
    return explain_worst(
        selected.cache, tree, split, shown.alpha, shown.trained, count, selected.pool
    )


def show(found: Explained, format: str) -> None:
    """One query on stdout."""
    from hierrouter.plain_json import json_text
    from hierrouter.report.explained import as_markdown, as_object, as_text

    if format == "json":
        console.put(json_text(as_object(found), "query"))
    elif format == "md":
        console.put(as_markdown(found))
    else:
        console.put(as_text(found, console.page_width(), sys.stdout.isatty()))


def show_worst(found: Sequence[Explained], split: str, format: str) -> None:
    """A line a query on stdout; as JSON each one whole."""
    from hierrouter.plain_json import json_text
    from hierrouter.report.explained import as_object, worst_table
    from hierrouter.report.render import as_markdown

    table = worst_table(found, split)
    if format == "json":
        queries = [as_object(query) for query in found]
        console.put(json_text({"split": split, "queries": queries}, "queries"))
    elif format == "md":
        console.put(as_markdown(table))
    else:
        console.put_tables([table])
