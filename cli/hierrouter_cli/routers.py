"""The learned router that a command shows, said aloud.

In: a tree and what the user named. Out: the router, and on stderr what is remarkable about it, in
the same words whatever the command. Not covered: which router that is (`hierrouter.shown`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter_cli import console

if TYPE_CHECKING:
    from hierrouter.learn.trained import TrainedRouter
    from hierrouter_cache.tree import RouteTree


def learned_router(
    tree: RouteTree, alpha: float | None, checkpoint: Path | None, command: str
) -> tuple[Path | None, TrainedRouter | None]:
    """The router of `hierrouter.shown.shown_router`, and where it is; says what is remarkable.

    Args:
        alpha: None is the alpha that the router was trained for.
        checkpoint: the user's choice, instead of the latest run.
        command: that shows it.
    """
    from hierrouter.shown import shown_router

    shown = shown_router(tree, alpha, checkpoint)
    say_remarks(command, shown.remarks)
    return shown.run, shown.trained


def say_remarks(command: str, remarks: Iterable[str]) -> None:
    """What a reader would not expect of the router shown."""
    for remark in remarks:
        console.say(f"{command}: {remark}")
