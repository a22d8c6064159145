"""What a reader must know beside the figures of a contest.

In: the tree, the sets of arms, the learned router. Out: sentences. Not covered: the figures
(`contest`).
"""

from __future__ import annotations

from collections.abc import Sequence

from hierrouter.baselines.sets import left_out
from hierrouter.data_notes import data_notes
from hierrouter.learn.trained import TrainedRouter
from hierrouter.shown import differences_of
from hierrouter_cache.tree import RouteTree


def fold_notes(tree: RouteTree, split: str) -> list[str]:
    """What is odd about the data, and what the fold that is shown was used for."""
    notes = data_notes(tree)
    if "validation" not in tree.splits:
        notes.append("No validation fold: baselines take the first of their settings.")
    if split == "train":
        notes.append("Shown on the fold that everybody was fitted on: this is memory, not skill.")
    if split == "validation":
        notes.append("Shown on the fold that chose the settings: all that is tuned looks better.")
    return notes


def set_notes(tree: RouteTree, sets: Sequence[str]) -> list[str]:
    """Which of the sets asked for take no part."""
    return [f"Set {name} is left out: {why}." for name, why in left_out(tree, sets).items()]


def answer_notes(left_out: Sequence[str]) -> list[str]:
    """Which baselines did not take part."""
    if not left_out:
        return []
    return [f"Left out, because nobody loaded the texts of answers: {', '.join(left_out)}."]


def router_notes(trained: TrainedRouter | None, tree: RouteTree, alpha: float) -> list[str]:
    """What the learned router learned, or may do, and the baselines not, or the other way round."""
    if trained is None:
        return ["No learned router: the baselines are compared among themselves."]
    said = differences_of(trained, alpha, tree)
    notes = [f"{one[:1].upper()}{one[1:]}." for one in said]
    if trained.objective.allow_stop:
        notes.append(
            "HierRouter may stop early and the routes of set B may not: what stopping saves "
            "counts as adaptivity here."
        )
    if trained.objective.max_cost is not None:
        notes.append(
            f"HierRouter is limited to a cost of {trained.objective.max_cost:g} a query, "
            "baselines are not."
        )
    return notes
