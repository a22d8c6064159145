"""The best that can be done within a budget.

In: a tree and a budget for the cost C, on average over queries or for every single one. Out: the
exact optimum under it, and how often a policy exceeds it. Not covered: which calls a router should
not make because they might exceed it; see `ceilings`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import Actions
from hierrouter.evaluate.bounds import cheapest_best
from hierrouter.evaluate.exact import ending
from hierrouter.evaluate.hulls import Hulls
from hierrouter.evaluate.outcome import Outcome, at_nodes, from_endings
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

# Costs are rounded sums: what exceeds a budget by less than this share of it is within it.
ROUNDING = 1e-9


@dataclass(frozen=True)
class MeanCostOptimum:
    """The oracle under a budget for the mean cost.

    Attributes:
        outcome: what it does on each query; at most one query mixes two routes.
        alpha: quality that one more unit of mean cost would buy; the tree oracle at this alpha
            spends the budget. 0 where there is more than can be used.
    """

    outcome: Outcome
    alpha: float


def within(cost: NDArray[np.float64], budget: float) -> NDArray[np.bool_]:
    """Whether costs are at most the budget, up to rounding; shapes as given."""
    return cost <= budget * (1 + ROUNDING)


def optimum_at_mean_cost(
    tree: RouteTree, budget: float, allow_stop: bool = False
) -> MeanCostOptimum:
    """The highest mean quality of any policy whose mean cost is at most `budget`, exactly.

    A linear programme over mixtures of routes. Its constraint couples the queries only by the sum
    of their costs, so it is a fractional knapsack: all queries start at their cheapest route, and
    the steps up their hulls are taken in the order of quality gained per cost, the last one in
    part. No policy does better, because this one knows all answers.

    Args:
        budget: greatest mean of C over the queries, in price * token.
        allow_stop: whether an episode may end before L calls.

    Raises:
        InputError: not even the cheapest route of every query is within the budget.
    """
    endings = Actions(tree.routes, allow_stop).endings
    step = Hulls.of(tree.cost[:, endings], tree.score[:, endings])
    node, after = endings.start + step.start, endings.start + step.after
    cheapest = tree.cost[np.arange(len(tree)), node]
    if not within(cheapest.mean(), budget):
        raise InputError(
            f"no policy is that cheap: a mean cost of {budget:g} per query; "
            f"the cheapest routes cost {cheapest.mean():.6g}, allow at least that"
        )
    spent = cheapest.sum() + np.cumsum(step.cost)
    taken = int(np.searchsorted(spent, budget * len(tree), side="right"))
    node[step.query[:taken]] = after[:taken]  # of several steps of a query the last one stays
    reached = np.eye(tree.routes.nodes)[node]
    if taken < len(spent):
        query, part = step.query[taken], 1 - (spent[taken] - budget * len(tree)) / step.cost[taken]
        reached[query] *= 1 - max(part, 0.0)
        reached[query, after[taken]] = max(part, 0.0)
    outcome = from_endings(tree, reached, f"oracle at mean cost {budget:g}", "oracle")
    return MeanCostOptimum(outcome, float(step.slope[taken]) if taken < len(spent) else 0.0)


def optimum_under_budget(
    tree: RouteTree, budget: float, alpha: float, allow_stop: bool = False
) -> Outcome:
    """The tree oracle among the routes whose cost is within a budget for every query.

    It knows the cost of each route before it takes it. Where no route is within the budget it takes
    the cheapest one.

    Args:
        budget: greatest C of a query, in price * token.
        alpha: reward lost per unit of cost.
        allow_stop: whether an episode may end before L calls.
    """
    endings = np.zeros_like(tree.cost, dtype=np.bool_)
    endings[:, Actions(tree.routes, allow_stop).endings] = True
    lowest = np.where(endings, tree.cost, np.inf).min(axis=1, keepdims=True)
    allowed = endings & (within(tree.cost, budget) | (tree.cost == lowest))
    return _best_of(tree, allowed, alpha, f"oracle within {budget:g}")


def masked_optimum(
    tree: RouteTree, actions: Actions, allowed: NDArray[np.bool_], alpha: float
) -> Outcome:
    """The tree oracle among the routes that a mask leaves: no masked policy does better.

    It can be better than `optimum_under_budget`, where a mask lets a query exceed the budget, and
    worse, where a mask closes routes that would have been within it.

    Args:
        actions: what the columns of the mask mean.
        allowed: bool[queries, states, A], at least one True in each row; see
            `hierrouter.evaluate.ceilings.affordable`.
        alpha: reward lost per unit of cost.
    """
    reachable = ending(actions, allowed.astype(np.float64)) > 0
    return _best_of(tree, reachable, alpha, "masked oracle")


def share_over(tree: RouteTree, endings: NDArray[np.float64], budget: float) -> float:
    """The share of queries whose cost exceeds a budget under a policy, exactly.

    Args:
        endings: float64[queries, nodes], see `hierrouter.evaluate.exact.ending`. A query on which
            the policy draws between routes counts with the probability of the dear ones.
        budget: greatest C of a query, in price * token.
    """
    return float((endings * ~within(tree.cost, budget)).sum(axis=1).mean())


def _best_of(tree: RouteTree, allowed: NDArray[np.bool_], alpha: float, name: str) -> Outcome:
    """The outcome of the best node of each query among those allowed, bool[queries, nodes]."""
    reward = np.where(allowed, tree.node_reward(alpha), -np.inf)
    return at_nodes(tree, cheapest_best(reward, tree.cost), name, "oracle")
