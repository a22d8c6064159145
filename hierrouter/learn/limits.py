"""How a router keeps a limit on the cost of each query.

In: a router trained with `Objective.max_cost`, a fold. Out: how often it costs more, beside the
exact bounds. Not covered: the mask it was trained with, see `hierrouter.evaluate.ceilings`.
"""

from __future__ import annotations

from dataclasses import dataclass

from hierrouter.evaluate.budget import masked_optimum, optimum_under_budget, share_over
from hierrouter.evaluate.ceilings import affordable
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class UnderLimit:
    """What a limit on each query does to a router.

    Attributes:
        limit: greatest C of a query, in price * token.
        share_over: share of queries that cost more; the limit rests on the longest answers of the
            train fold, and new ones can be longer.
        bound: mean R of the best routes within the limit, knowing all answers.
        masked: the same among calls that are sure to be within it.
    """

    limit: float
    share_over: float
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
        bound=float(best.reward(alpha).mean()),
        masked=float(masked_optimum(fold, actions, allowed, alpha).reward(alpha).mean()),
    )
