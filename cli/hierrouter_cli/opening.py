"""Open the cache a command was pointed at, with a bar while something is derived."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter_cli import console

if TYPE_CHECKING:
    from hierrouter.evaluate.policies import OwnPolicy
    from hierrouter.pricing import Price
    from hierrouter.replay.tree import Tree
    from hierrouter.trees import Selection


def make_importable(folder: Path) -> None:
    """Let `module:name` on the command line find a module there, after all that is installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def own_policies(paths: Sequence[str] | None) -> tuple[OwnPolicy, ...]:
    """The policies of the user's own at these import paths."""
    from hierrouter.evaluate.policies import own_policies as own

    if paths:
        make_importable(Path.cwd())
    with contextlib.redirect_stdout(sys.stderr):  # what a user's module prints is no result
        return own(paths or ())


def open_trees(
    cache: Path, selection: Selection, price_lists: Sequence[Mapping[str, Price]]
) -> list[Tree]:
    """The tree in `cache` under each price list."""
    from hierrouter.pricing import guesses
    from hierrouter.trees import open_trees as open_selected

    labels = {"embed": "embed states", "score": "score responses"}
    # What a user's own scorer prints is no result of ours.
    with console.bar("open") as show, contextlib.redirect_stdout(sys.stderr):
        trees = open_selected(
            cache,
            selection,
            price_lists,
            lambda what, done, total: show(done, total, label=labels[what]),
        )
    if trees[0].left_out:
        console.say(f"left out: {trees[0].left_out} queries whose trees are incomplete")
    for line in dict.fromkeys(guesses(tree) for tree in trees):
        if line:
            console.say(line)
    return trees
