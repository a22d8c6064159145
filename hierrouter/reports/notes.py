"""Lines that come with every evaluation: which router it is, and looks at the test fold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hierrouter.declarations.flags import TEST_FOLD
from hierrouter.evaluation.policies import OwnPolicy
from hierrouter.runs.look_log import record_looks
from hierrouter.runs.selection import SelectedRun
from hierrouter_cache.tree import RouteTree

FEW_QUERIES_ROLE = "every figure rests on them"  # of a small fold, see `few_queries_note`


def selection_notes(
    command: str,
    selected: SelectedRun,
    split: str | None = None,
    *,
    with_alpha: bool = False,
    with_sweep: bool = False,
) -> list[str]:
    """Return lines on which router is evaluated, and what is remarkable about it.

    Args:
        command: name of the command, with which the lines begin.
        selected: the router.
        split: the fold it is evaluated on; None leaves it out.
        with_alpha: name the price of cost.
        with_sweep: name the sweep, too.
    """
    router = f"checkpoint {selected.run or 'none'}"
    if selected.run and selected.why:
        router += f" ({selected.why})"
    if with_sweep:
        router += f", sweep {selected.sweep_run or 'none'}"
        for other in selected.beside:
            if not other.is_other_seed:
                router += f", beside it {other.name} of {other.run}"
    alpha = f" at alpha {selected.alpha:g}" if with_alpha else ""
    summary = f"{split} fold{alpha}; {router}" if split else f"{router}{alpha}"
    return [f"{command}: {line}" for line in (*selected.remarks, summary)]


def warn_of_test_fold(command: str, split: str) -> list[str]:
    """Return a warning that the test fold is for a last look; nothing on other folds."""
    if split != TEST_FOLD:
        return []
    return [f"{command}: the test fold; what is changed after a look at it is tuned on it"]


def describe_policies(policies: Iterable[OwnPolicy]) -> dict[str, Any]:
    """Return the user's policies as part of a look; an edit of their module makes another look."""
    versions = {policy.path: policy.version for policy in policies}
    return {"policies": versions} if versions else {}


def log_looks(
    command: str, tree: RouteTree, split: str, runs: Iterable[Path | None], look: Mapping[str, Any]
) -> list[str]:
    """Log a look at the test fold; return lines that begin with the command's name.

    See `record_looks` for the arguments.
    """
    return [f"{command}: {note}" for note in record_looks(command, tree, split, runs, look)]
