"""The sets of arms that a baseline may choose from.

In: a tree, names of sets. Out: their arms: A, one direct call of a model; B, each of the M^L
routes, chosen before any answer is seen; and which of the two a tree has, with the reason where it
has not. Not covered: what an arm is (`arms`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hierrouter.baselines.arms import Answers, Arms, macro_arms, single_models
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

SETS: Mapping[str, Callable[[RouteTree, Answers | None], Arms]] = {
    "A": single_models,
    "B": macro_arms,
}
MOST_ROUTES = 1_000  # arms of set B: more take hours, and have too few queries each


def require_sets(names: Sequence[str]) -> tuple[str, ...]:
    """Names of sets of arms, checked before any work.

    Raises:
        InputError: an unknown one, or one that stands twice.
    """
    for name in names:
        if name not in SETS:
            raise InputError(f"unknown set of arms: {name!r}: --sets; known: {', '.join(SETS)}")
        if names.count(name) > 1:
            raise InputError(f"set of arms given twice: {name}: --sets; names must differ")
    return tuple(names)


def usable_sets(tree: RouteTree, names: Sequence[str]) -> tuple[str, ...]:
    """The sets of these that a tree has arms for.

    Raises:
        InputError: none, with the reason.
    """
    lacking = left_out(tree, names)
    usable = tuple(name for name in names if name not in lacking)
    if not usable:
        why = "; ".join(f"set {name}: {reason}" for name, reason in lacking.items())
        raise InputError(f"no arms to compare: --sets {','.join(names)}; {why or 'name one'}")
    return usable


def left_out(tree: RouteTree, names: Sequence[str]) -> dict[str, str]:
    """Why a set takes no part, by its name; empty where all do."""
    routes = tree.routes.models**tree.hops
    found = {}
    if "A" in names and not set(tree.direct.models) & set(tree.models):
        found["A"] = "no model of the pool was asked directly"
    if "B" in names and routes > MOST_ROUTES:
        found["B"] = f"{routes:,} routes, more than {MOST_ROUTES:,}; take fewer --models or --hops"
    elif "B" in names and "A" in names and _are_direct_calls(tree):
        found["B"] = "its routes are the direct calls of set A"
    return found


def _are_direct_calls(tree: RouteTree) -> bool:
    """Whether a route is a direct call and no more, as in an imported table of one hop."""
    if tree.hops != 1 or not set(tree.models) <= set(tree.direct.models):
        return False
    direct, leaves = tree.direct, tree.routes.leaves
    same = [direct.models.index(model) for model in tree.models]
    return np.array_equal(tree.score[:, leaves], direct.score[:, same]) and np.array_equal(
        tree.cost[:, leaves], direct.cost[:, same]
    )
