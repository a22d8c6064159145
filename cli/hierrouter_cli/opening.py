"""Open the cache a command was pointed at, with a bar while something is derived."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter_cli import console

if TYPE_CHECKING:
    from hierrouter.trees import Selection
    from hierrouter_cache.tree import RouteTree


def open_tree(cache: Path, selection: Selection | None = None) -> RouteTree:
    """The tree in `cache`; see `hierrouter.trees.open_tree` for the errors."""
    from hierrouter.trees import open_tree as open_selected

    labels = {"embed": "embed contexts", "score": "score responses"}
    with console.progress_bars() as bars:
        task = bars.add_task("open", total=None, note="")

        def on_done(what: str, done: int, total: int) -> None:
            bars.update(task, description=labels[what], completed=done, total=total)

        tree = open_selected(cache, selection, on_done)
    if tree.left_out:
        console.say(f"left out: {tree.left_out} queries whose trees are incomplete")
    return tree
