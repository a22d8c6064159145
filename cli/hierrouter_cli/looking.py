"""What is shown of a router; looks at the test fold.

In: what a command is about to show. Out: on stderr which router and how few queries; a line in the
log of each run, and how often the test fold was looked at. Not covered: what a look is
(`hierrouter.looks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hierrouter_cli import console
from hierrouter_cli.routers import say_remarks

if TYPE_CHECKING:
    from hierrouter.evaluate.policies import OwnPolicy
    from hierrouter.shown import Shown
    from hierrouter_cache.tree import RouteTree

TEST = "test"
FEW_QUERIES = 30


def say_shown(
    command: str,
    shown: Shown,
    split: str | None = None,
    with_alpha: bool = False,
    with_sweep: bool = False,
) -> None:
    """Which router is shown, and what is remarkable about it.

    Args:
        split: the fold that it is shown on; None names none.
        with_alpha: name the price of cost.
        with_sweep: name the sweep, too.
    """
    say_remarks(command, shown.remarks)
    found = f"checkpoint {shown.run or 'none'}"
    found += f", sweep {shown.sweep_run or 'none'}" if with_sweep else ""
    alpha = f" at alpha {shown.alpha:g}" if with_alpha else ""
    line = f"{found}{alpha}" if split is None else f"{split} fold{alpha}; {found}"
    console.say(f"{command}: {line}")


def say_if_few(tree: RouteTree, fold: str, role: str) -> None:
    """Warn where a fold is too small to trust what is read off it."""
    found = tree.splits.count(fold)
    if found < FEW_QUERIES:
        console.say(f"note: only {found} {fold} queries, and {role}; collect more to trust it")


def look_at(command: str, tree: RouteTree, split: str, shown: Shown, **what: Any) -> None:
    """Where it is one at the test fold, say what that means and log it.

    Args:
        what: is looked at beside the tree and alpha, JSON values.
    """
    warn_of_test(command, split)
    log_looks(command, tree, split, [shown.run], {"alpha": shown.alpha, **what})


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


def looks_at(policies: Iterable[OwnPolicy]) -> dict[str, Any]:
    """What a look shows of policies of the user's own; nothing where there are none.

    An edit of their module is another look.
    """
    shown = {policy.path: policy.version for policy in policies}
    return {"policies": shown} if shown else {}


def warn_of_test(command: str, split: str) -> None:
    """What a look at single queries of the test fold means."""
    if split == TEST:
        console.say(f"{command}: the test fold; what is changed after a look at it is tuned on it")
