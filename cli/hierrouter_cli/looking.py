"""Looks at the test fold: logged, and said.

In: what a command is about to show. Out: a line in the log of each run, and on stderr how often
the fold was looked at. Not covered: what a look is (`hierrouter.looks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierrouter_cli import console

if TYPE_CHECKING:
    from hierrouter_cache.tree import RouteTree

TEST = "test"


def log_looks(
    command: str,
    tree: RouteTree,
    split: str,
    runs: Iterable[Path | None],
    look: Mapping[str, Any],
) -> None:
    """Log that routers are looked at on the test fold; nothing for other folds, or without runs.

    Args:
        tree: all folds, under the prices shown.
        runs: of the routers, that of the main one first.
        look: what is looked at beside the tree, JSON values.
    """
    from hierrouter.looks import count_looks, log_look

    shown = [run for run in runs if run]
    if split != TEST or not shown or TEST not in tree.splits:
        return
    for line in log_look(shown, command, {"tree": tree.fingerprint, **look}):
        console.say(f"{command}: {line}")
    found = count_looks(tree, shown[0])
    if found["all_routers"] > 1:
        console.say(
            f"{command}: the test fold was looked at {found['all_routers']} times, "
            f"{found['this_router']} of them for this router"
        )


def warn_of_test(command: str, split: str) -> None:
    """What a look at single queries of the test fold means."""
    if split == TEST:
        console.say(f"{command}: the test fold; what is changed after a look at it is tuned on it")
