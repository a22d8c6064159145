"""`hierrouter explain` and `hierrouter explore`: one query's tree, or an interactive page."""

from __future__ import annotations

import sys

from hierrouter.replay.open_tree import OpenTree
from hierrouter.reports.jobs import Explain, Explore
from hierrouter_cli import console, options
from hierrouter_cli.declared import with_flags
from hierrouter_cli.selecting import check_job, open_tree, quiet_bar


@with_flags
def explain(
    *, opening: OpenTree, explaining: Explain, format: options.ShortFormat = "text"
) -> None:
    """Show one query: every answer, what it is worth, the router's route and what it lost.

    With --worst one line for each of the queries on which the router loses most.
    """
    from hierrouter.runs.selection import as_trained

    explaining.check()
    tree = open_tree(as_trained(opening, explaining.checkpoint))
    explanations = explaining.run(tree, console.say)
    if format == "json":
        console.put(explanations.to_json())
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
