"""Open the cache a command was pointed at, with a bar while something is derived."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter_cache.errors import InputError
from hierrouter_cli import console, options, parsing

if TYPE_CHECKING:
    from hierrouter.pricing import Price
    from hierrouter.trees import Selection
    from hierrouter_cache.tree import RouteTree


def select(
    *,
    pool: str | None = None,
    models: str | None = None,
    hops: int | None = None,
    datasets: str | None = None,
    limit: int | None = None,
    encoder: str | None = None,
    state: str | None = None,
    scorer: str = options.DEFAULT_SCORER,
    allow_incomplete: bool = False,
    prices: list[Path] | None = None,
    price: list[str] | None = None,
) -> Selection:
    """The part of a cache that the flags of a command name.

    Raises:
        InputError: several price files; only a report shows them side by side.
    """
    from hierrouter.collect.encoders import BUILT_IN
    from hierrouter.collect.views import DEFAULT_VIEW
    from hierrouter.price_lists import price_lists
    from hierrouter.trees import Selection

    if ":" in scorer:
        make_importable(Path.cwd())
    if len(prices or []) > 1:
        raise InputError(
            f"{len(prices or [])} price files: --prices; one at a time here, `hierrouter report` "
            "shows several side by side"
        )
    [given] = price_lists(prices or [], price or [])
    return Selection(
        pool=pool,
        models=parsing.split_names(models),
        hops=hops,
        datasets=parsing.split_names(datasets),
        limit=limit,
        encoder=encoder or BUILT_IN,
        view=DEFAULT_VIEW if state is None else state,
        scorer=scorer,
        prices=given.prices,
        allow_incomplete=allow_incomplete,
    )


def make_importable(folder: Path) -> None:
    """Let `module:name` on the command line find a module there, after all that is installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def open_tree(cache: Path, selection: Selection | None = None) -> RouteTree:
    """The tree in `cache`; see `hierrouter.trees.open_tree` for the errors."""
    from hierrouter.trees import Selection

    selection = selection or Selection()
    return open_trees(cache, selection, [selection.prices])[0]


def open_trees(
    cache: Path, selection: Selection, price_lists: Sequence[Mapping[str, Price]]
) -> list[RouteTree]:
    """The tree in `cache` under each price list."""
    from hierrouter.pricing import guesses
    from hierrouter.trees import open_trees as open_selected

    labels = {"embed": "embed states", "score": "score responses"}
    with console.progress_bars() as bars:
        task = bars.add_task("open", total=None, note="")

        def on_done(what: str, done: int, total: int) -> None:
            bars.update(task, description=labels[what], completed=done, total=total)

        # What a user's own scorer prints is no result of ours.
        with contextlib.redirect_stdout(sys.stderr):
            trees = open_selected(cache, selection, price_lists, on_done)
    if trees[0].left_out:
        console.say(f"left out: {trees[0].left_out} queries whose trees are incomplete")
    for line in dict.fromkeys(guesses(tree) for tree in trees):
        if line:
            console.say(line)
    return trees
