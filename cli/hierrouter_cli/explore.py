"""`hierrouter explore`: a page to play with a cache."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hierrouter_cli import console, options, parsing
from hierrouter_cli.looking import log_looks, looks_at, say_shown, warn_of_test
from hierrouter_cli.opening import own_policies
from hierrouter_cli.selecting import Selected, as_trained, selecting

if TYPE_CHECKING:
    from hierrouter.evaluate.policies import OwnPolicy
    from hierrouter.explore.data import Explored
    from hierrouter.shown import Shown
    from hierrouter_cache.tree import RouteTree

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
    from hierrouter.interchange.files import require_free
    from hierrouter.shown import shown_router

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
    from hierrouter.explore.data import explored

    # What a user's own policy prints is no result of ours.
    with console.bar("explore") as on_done, contextlib.redirect_stdout(sys.stderr):
        return explored(selected.cache, tree, split, shown, texts, selected.pool, on_done, policies)


def write(content: Explored, out: Path | None) -> Path:
    """The page, in `out` or in the folder of a new run; returns where it is."""
    from hierrouter.explore.page import as_html
    from hierrouter.runs import new_run
    from hierrouter_cache.atomic_files import write_atomically

    page = as_html(content).encode()
    out = out or new_run("explore", None) / PAGE
    write_atomically(out, page)
    return out
