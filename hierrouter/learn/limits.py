"""How a router keeps a limit on the cost of each query.

In: a router trained with `Objective.max_cost`, a fold. Out: how often it costs more, beside the
exact bounds. Not covered: the mask it was trained with, see `hierrouter.evaluate.ceilings`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hierrouter.actions import Actions
from hierrouter.evaluate.budget import masked_optimum, optimum_under_budget, share_over, within
from hierrouter.evaluate.ceilings import affordable
from hierrouter.learn.objective import Objective
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class UnderLimit:
    """What a limit on each query does to a router.

    Attributes:
        limit: greatest C of a query, in price * token.
        share_over: share of queries that cost more; the limit rests on the longest answers of the
            train fold, and new ones can be longer.
        impossible: share of queries without any route within it.
        bound: mean R of the best routes within the limit, knowing all answers; of the cheapest
            route where none is.
        masked: the same among the calls that the mask leaves, which are not within the limit where
            no call is sure to be.
    """

    limit: float
    share_over: float
    impossible: float
    bound: float
    masked: float


def under_limit(trained: TrainedRouter, fold: RouteTree) -> UnderLimit:
    """Value a limited router on a fold, exactly.

    Args:
        trained: its objective has a `max_cost`.
    """
    objective, actions, ceilings = trained.objective, trained.actions, trained.ceilings
    if objective.max_cost is None or ceilings is None:
        raise ValueError("the router was trained without a limit on the cost of a query")
    limit, alpha = objective.max_cost, objective.alpha
    allowed = affordable(ceilings, fold, limit, actions)
    best = optimum_under_budget(fold, limit, alpha, objective.allow_stop)
    return UnderLimit(
        limit=limit,
        share_over=share_over(fold, trained.endings(fold), limit),
        impossible=float((~within(fold.cost[:, actions.endings], limit).any(axis=1)).mean()),
        bound=float(best.reward(alpha).mean()),
        masked=float(masked_optimum(fold, actions, allowed, alpha).reward(alpha).mean()),
    )


def require_reachable(fold: RouteTree, objective: Objective) -> None:
    """Refuse a limit that no query of a fold can be answered within.

    Raises:
        InputError: there is no such query.
    """
    if objective.max_cost is None:
        return
    cost = fold.cost[:, Actions(fold.routes, objective.allow_stop).endings]
    if not within(cost, objective.max_cost).any():
        raise InputError(
            f"no query can be answered that cheaply: a limit of {objective.max_cost:g}; "
            f"the cheapest route of all costs {cost.min():.4g}"
        )
