"""The learned router that a command sets beside others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hierrouter_cli import console, options

if TYPE_CHECKING:
    from hierrouter.learn.trained import TrainedRouter
    from hierrouter_cache.tree import RouteTree


def learned_router(
    tree: RouteTree, alpha: float | None, checkpoint: Path | None, command: str
) -> tuple[Path | None, TrainedRouter | None]:
    """The router to compare with, and where it is: that of `report`.

    Args:
        alpha: None is the alpha that the router was trained for.
        checkpoint: the user's choice, instead of the latest run.
        command: that says what is remarkable about it.
    """
    from hierrouter.latest_runs import latest_run
    from hierrouter.learn.checkpoint import router_at
    from hierrouter.learn.sweep import load_sweep

    run = checkpoint or latest_run(tree, "train", alpha)
    trained = router_at(run, alpha) if run else None
    if checkpoint is None and (trained is None or alpha not in (None, trained.alpha)):
        swept = latest_run(tree, "sweep-alpha")
        wanted = options.DEFAULT_ALPHA if alpha is None else alpha
        if swept and (router := load_sweep(swept).like(trained, wanted)):
            run, trained = swept, router
    if trained is None:
        console.say(
            f"{command}: no router trained on this tree; baselines only (`hierrouter train`)"
        )
    elif trained.origin.fingerprint != tree.fingerprint:
        console.say(f"{command}: the router was trained on other data or prices than shown here")
    return run, trained
