"""`hierrouter explain` and `hierrouter explore`: one query's tree, or a page to play with."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.errors import InputError
from hierrouter_cli import console, options, report
from hierrouter_cli.declared import with_flags
from hierrouter_cli.selecting import named_baselines, open_tree, own_policies

SPLIT = "validation"
PAGE = "explore.html"
TEXTS = 500


@with_flags
def explain(
    opening: OpenTree,
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY_ID", help="An id, dataset/id, or the beginning of either."),
    ] = None,
    worst: Annotated[
        int | None,
        options.value("--worst", "N", "Instead: the N queries with the largest regret.", min=1),
    ] = None,
    split: Annotated[str | None, options.split_flag(f"Of --worst; default {SPLIT}.")] = None,
    checkpoint: options.Checkpoint = None,
    alpha: options.ShownAlpha = None,
    format: options.ShortFormat = "text",
) -> None:
    """Show one query: every answer, what it is worth, the router's route and what it lost.

    With --worst one line for each of the queries on which the router loses most.
    """
    from hierrouter.questions.query import find_query
    from hierrouter.reports import explain as explaining
    from hierrouter.runs.selection import as_trained, select_run
    from hierrouter.tables import json_text

    if (query is None) == (worst is None):
        what = "no query" if query is None else "a query and --worst contradict each other"
        raise InputError(f"{what}; give QUERY_ID or --worst N")
    if query is not None and split is not None:
        raise InputError(f"--split {split} is for --worst; a query is looked for in all folds")
    tree = open_tree(as_trained(opening, checkpoint))
    row = None if query is None else find_query(tree, query)
    shown = select_run(tree, alpha, checkpoint)
    report.say_shown("explain", shown)
    if row is not None:
        name = [tree.datasets[row], tree.query_ids[row]]
        report.look_at("explain", tree, tree.splits[row], shown, query=name)
        [found] = explaining.explain_queries(
            opening.cache, tree, [row], shown.alpha, shown.trained, opening.pool
        )
        if format == "json":
            console.put(json_text(explaining.as_object(found), "query"))
        else:
            console.put(explaining.as_text(found, console.page_width(), sys.stdout.isatty()))
    elif worst is not None:
        if shown.trained is None:
            raise InputError("no router, so no regret: --worst; run `hierrouter train` first")
        fold = split or SPLIT
        rows = explaining.worst_queries(tree, fold, shown.alpha, shown.trained, worst)
        several = explaining.explain_queries(
            opening.cache, tree, rows, shown.alpha, shown.trained, opening.pool
        )
        report.look_at("explain", tree, fold, shown, worst=worst)
        table = explaining.worst_table(several, fold)
        if format == "json":
            queries = [explaining.as_object(query) for query in several]
            console.put(json_text({"split": fold, "queries": queries}, "queries"))
        else:
            console.put_tables([table])


@with_flags
def explore(
    *,
    opening: OpenTree,
    checkpoint: options.Checkpoint = None,
    sweep: options.Sweep = None,
    policy: options.Policies = None,
    baselines: Annotated[
        str | None, options.baselines_flag("Names, or your own, to be fitted and shown beside it.")
    ] = None,
    split: options.Split = report.TEST,
    texts: Annotated[
        int, options.value("--texts", "N", "So many queries with question and answers.", min=0)
    ] = TEXTS,
    out: Annotated[
        Path | None,
        options.value("--out", "FILE.html", f"The page; default runs/<time>-explore/{PAGE}."),
    ] = None,
) -> None:
    """Write a page on which alpha, prices and models can be changed, query by query.

    It is one file, opens from disk and loads nothing. Policies and baselines can be switched on it.
    """
    from hierrouter.collection.files import require_free
    from hierrouter.reports.explore import as_html, explore_fold
    from hierrouter.runs.folders import draft_of, new_run
    from hierrouter.runs.selection import as_trained, select_run
    from hierrouter_cache.writer import write_atomically

    if out:
        require_free(out)
    policies = own_policies(policy)
    chosen = () if baselines is None else named_baselines(baselines)
    tree = open_tree(as_trained(opening, checkpoint))
    # A checkpoint that was asked for is not put behind a sweep that was not.
    shown = select_run(tree, None, checkpoint, sweep, with_sweep=not checkpoint or bool(sweep))
    if tree.second:
        raise InputError("the page has prices of tokens only: leave --price-of-second out")
    report.say_shown("explore", shown, split, with_sweep=True)
    report.warn_of_test("explore", split)
    with console.bar("explore") as on_done, contextlib.redirect_stdout(sys.stderr):
        content = explore_fold(
            *(opening.cache, tree, split, shown, texts, opening.pool, on_done),
            policies=policies,
            baselines=chosen,
        )
    look = {"texts": len(content.texts), **report.looks_at(policies)}
    look |= {"baselines": [one.name for one in chosen]} if chosen else {}
    report.log_looks("explore", tree, split, [shown.run, shown.sweep_run], look)
    html = as_html(content).encode()
    if out:
        page = out
        write_atomically(page, html)
    else:
        page = new_run("explore", None) / PAGE
        with draft_of(page.parent) as draft:
            write_atomically(draft / PAGE, html)
    console.say(f"explore: page {page}, {len(html) / 1e6:.1f} MB")
