"""What a router has to beat, and what it cannot.

In: trees. Out: the outcomes of the best direct call, the best fixed route, the best route per
dataset, chance, and the oracles over direct calls and over the tree. Whatever is chosen is chosen
on one tree (the training fold) and applied to another.
Ties in reward are broken by cost, then by the lower node number, everywhere. With `allow_stop`
routes of fewer than L calls are in the choice too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import Actions
from hierrouter.evaluate.outcome import (
    Outcome,
    at_nodes,
    fixed_route,
    from_endings,
    single_calls,
)
from hierrouter_cache.tree import RouteTree

# The share of a smaller gap is the quotient of two noises.
SMALLEST_GAP = 0.005
ONE_HOP = "one-hop oracle"


def cheapest_best(reward: NDArray[np.float64], cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """Column of the highest reward in each row; ties: lower cost, then lower column.

    Args:
        reward: float64[rows, columns].
        cost: float64[rows, columns].

    Returns:
        int64[rows].
    """
    best = reward.max(axis=1, keepdims=True)
    column: NDArray[np.int64] = np.where(reward == best, cost, np.inf).argmin(axis=1)
    return column


def best_ending(tree: RouteTree, alpha: float, allow_stop: bool = False) -> int:
    """Node number at the end of the fixed route with the highest mean reward on `tree`."""
    endings = Actions(tree.routes, allow_stop).endings
    reward = tree.node_reward(alpha)[:, endings].mean(axis=0, keepdims=True)
    cost = tree.cost[:, endings].mean(axis=0, keepdims=True)
    return int(endings.start + cheapest_best(reward, cost)[0])


def best_direct_call(chosen_on: RouteTree, alpha: float, tree: RouteTree) -> Outcome | None:
    """The pool's direct call that is best on `chosen_on`, made on `tree`; None if there is none."""
    direct, columns = chosen_on.direct, _pool_columns(chosen_on)
    if not len(columns):
        return None
    cost = direct.cost[:, columns].mean(axis=0, keepdims=True)
    quality = direct.score[:, columns].mean(axis=0, keepdims=True)
    best = int(columns[cheapest_best(quality - alpha * cost, cost)[0]])
    return single_calls(tree)[best]


def best_fixed_route(
    chosen_on: RouteTree, alpha: float, tree: RouteTree, allow_stop: bool = False
) -> Outcome:
    """The fixed route that is best on `chosen_on`, taken on `tree`."""
    return fixed_route(tree, best_ending(chosen_on, alpha, allow_stop))


def best_route_per_dataset(
    chosen_on: RouteTree, alpha: float, tree: RouteTree, allow_stop: bool = False
) -> Outcome:
    """The best route of each dataset of `chosen_on`, taken on `tree`: a perfect classifier.

    Queries of a dataset that `chosen_on` does not have take its best route over all.
    """
    overall = best_ending(chosen_on, alpha, allow_stop)
    datasets = np.array(chosen_on.datasets)
    choice = {
        name: best_ending(chosen_on.select(np.flatnonzero(datasets == name)), alpha, allow_stop)
        for name in set(chosen_on.datasets)
    }
    node = np.array([choice.get(name, overall) for name in tree.datasets], dtype=np.int64)
    return at_nodes(tree, node, "best route per dataset", "baseline")


def oracle(tree: RouteTree, alpha: float, allow_stop: bool = False) -> Outcome:
    """The best route of every query, chosen knowing all answers: no policy does better."""
    return at_nodes(tree, best_nodes(tree, alpha, allow_stop), "oracle", "oracle")


def best_nodes(tree: RouteTree, alpha: float, allow_stop: bool = False) -> NDArray[np.int64]:
    """int64[queries]: the node at which the best route of each query ends, in hindsight."""
    endings = Actions(tree.routes, allow_stop).endings
    best = cheapest_best(tree.node_reward(alpha)[:, endings], tree.cost[:, endings])
    return best + np.int64(endings.start)


def direct_oracle(tree: RouteTree, alpha: float) -> Outcome | None:
    """The best direct call of every query among the pool's, chosen knowing all answers.

    None where no model of the pool was called directly. Larger reference models are not in the
    choice. Direct calls are no routes of the tree, so this is no lower bound of `oracle`.
    """
    direct, columns, rows = tree.direct, _pool_columns(tree), np.arange(len(tree))
    if not len(columns):
        return None
    cost = direct.cost[:, columns]
    choice = columns[cheapest_best(direct.score[:, columns] - alpha * cost, cost)]
    return Outcome(
        name=ONE_HOP,
        kind="oracle",
        quality=direct.score[rows, choice],
        accuracy=direct.accuracy[rows, choice],
        cost=direct.cost[rows, choice],
    )


def random_policy(tree: RouteTree, allow_stop: bool = False) -> Outcome:
    """Every route with the same probability; with stop, the shorter ones too."""
    endings = Actions(tree.routes, allow_stop).endings
    probability = np.zeros((len(tree), tree.routes.nodes))
    probability[:, endings] = 1 / (endings.stop - endings.start)
    return from_endings(tree, probability, "random", "baseline")


def gap_closed(router: float, fixed: float, best: float) -> float | None:
    """(R(router) - R(best fixed route)) / (R(oracle) - R(best fixed route)).

    Args:
        router: mean reward of the router.
        fixed: mean reward of the best fixed route.
        best: mean reward of the tree oracle.

    Returns:
        1 where the router is as good as the oracle, below 0 where it is worse than the fixed
        route, None where the gap is below `SMALLEST_GAP`.
    """
    gap = best - fixed
    return (router - fixed) / gap if gap >= SMALLEST_GAP else None


def _pool_columns(tree: RouteTree) -> NDArray[np.int64]:
    """Columns of the direct calls of models that a router may call."""
    called = [column for column, name in enumerate(tree.direct.models) if name in tree.models]
    return np.array(called, dtype=np.int64)
