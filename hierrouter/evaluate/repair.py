"""When a further call helps, and when it hurts.

In: a tree. Out: for each later hop and each ordered pair of models how often the second one turns
a wrong answer of the first into a right one, or a right one into a wrong one, and at what cost.
A property of the models, not of a policy: every route counts alike. Not covered: whether a router
makes the calls that help.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Repair:
    """What the calls at one hop do to the answers before them.

    Row i, column j of a query: model j is called after model i; a mean over all routes whose last
    call but one is i's, M^(hop - 2) of them. Repair less damage is the change in accuracy.

    Attributes:
        hop: 2 to L.
        right: float64[queries, M], probability that the answer of model i before was right.
        repair: float64[queries, M, M], probability that wrong became right.
        damage: float64[queries, M, M], probability that right became wrong.
        quality: float64[queries, M, M], change in Q.
        cost: float64[queries, M, M], cost of the call of j, in price * token.
    """

    hop: int
    right: NDArray[np.float64]
    repair: NDArray[np.float64]
    damage: NDArray[np.float64]
    quality: NDArray[np.float64]
    cost: NDArray[np.float64]


def repair_matrices(tree: RouteTree) -> list[Repair]:
    """One entry for each hop from the second on; none where L is 1.

    Where accuracies are 0 or 1, a call repairs, damages or does neither. Where they are fractions,
    say the means of several verdicts, both answers are taken to be right with these probabilities,
    independently of each other: repair is (1 - before) * after, damage before * (1 - after).
    """
    return [_repair(tree, hop) for hop in range(2, tree.hops + 1)]


def _repair(tree: RouteTree, hop: int) -> Repair:
    routes = tree.routes

    def around(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Before and after the call: [queries, routes, M, 1] and [queries, routes, M, M]."""
        shape = (len(tree), -1, routes.models)
        before = values[:, routes.level(hop - 1)].reshape(*shape, 1)
        return before, values[:, routes.level(hop)].reshape(*shape, routes.models)

    def mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
        over_routes: NDArray[np.float64] = values.mean(axis=1)
        return over_routes

    before, after = around(tree.accuracy)
    quality_before, quality_after = around(tree.score)
    cost_before, cost_after = around(tree.cost)
    return Repair(
        hop=hop,
        right=mean(before)[..., 0],
        repair=mean((1 - before) * after),
        damage=mean(before * (1 - after)),
        quality=mean(quality_after - quality_before),
        cost=mean(cost_after - cost_before),
    )
