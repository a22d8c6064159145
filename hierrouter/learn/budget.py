"""The router that meets a budget for the mean cost of a query.

In: routers for every alpha, a budget. Out: the smallest alpha whose router keeps within it on the
validation fold, and that router. Not covered: a limit for every single query, which is part of
the `Objective`; what the best policy could do (`hierrouter.evaluate.budget`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hierrouter.evaluate.budget import within
from hierrouter.evaluate.hulls import oracle_break_points
from hierrouter.learn.alpha_router import TrainedSweep
from hierrouter.learn.folds import training_folds
from hierrouter.learn.objective import MAX_ALPHA
from hierrouter.learn.trained import TrainedRouter
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

CANDIDATES = 512  # alphas looked at; a router's cost changes in steps anyway
BEYOND = 2.0  # above the last alpha at which the oracle changes, a router may still change


def meet_budget(sweep: TrainedSweep, tree: RouteTree, budget: float) -> TrainedRouter:
    """The router at the smallest alpha whose mean cost on validation is within the budget.

    A greater alpha makes a good router cheaper, so the alpha is found by bisection; what is
    returned has been valued and is within the budget.

    Args:
        sweep: trained on `tree`.
        tree: all folds; the train fold gives the alphas to look at. Without a validation fold the
            train fold is valued.
        budget: greatest mean of C over the queries, in price * token.

    Raises:
        InputError: not even the router at the greatest alpha is within the budget.
    """
    learn_from, choose_on = training_folds(tree)
    break_points = oracle_break_points(learn_from, sweep.objective.allow_stop)
    knots = np.concatenate([[0.0], break_points, BEYOND * break_points[-1:]])
    candidates = np.quantile(knots, np.linspace(0, 1, CANDIDATES))
    alphas = np.unique(np.minimum(candidates, MAX_ALPHA))

    def cost(place: int) -> float:
        return float(sweep.at(alphas[place]).outcome(choose_on).cost.mean())

    def is_met(place: int) -> bool:
        return bool(within(np.array(cost(place)), budget))

    low, high = 0, len(alphas) - 1
    if not is_met(high):
        raise InputError(
            f"no router is that cheap: --budget {budget:g}; at the greatest alpha it costs "
            f"{cost(high):.4g} per query, allow at least that"
        )
    while low < high:
        middle = (low + high) // 2
        if is_met(middle):
            high = middle
        else:
            low = middle + 1
    return replace(sweep.at(float(alphas[high])), budget=budget)
