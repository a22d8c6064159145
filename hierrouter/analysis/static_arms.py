"""What one can have without a router, and at what cost.

In: a train fold and the fold that is shown. Out: the static arms, i.e. direct calls of the pool and
fixed routes; the one with the highest mean Q on the train fold; the range of costs they span up to
it. Not covered: choices by R (`evaluate.ladder`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hierrouter.evaluate.bounds import cheapest_best
from hierrouter.evaluate.outcome import Outcome, fixed_routes, mean_points, single_calls
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class StaticArms:
    """The static arms of a fold.

    Attributes:
        arms: each on every query.
        best: the one with the highest mean Q on the train fold; ties go to the cheaper one.
        allow_stop: whether routes of fewer than L calls are among them.
        low, high: mean cost of the cheapest arm and of `best`. These are the budgets that one
            could have spent without a router; equal where the best arm is the cheapest.
    """

    arms: tuple[Outcome, ...]
    best: Outcome
    allow_stop: bool
    low: float
    high: float

    @property
    def width(self) -> float:
        """high - low, in price * token; 0 where there is no range."""
        return self.high - self.low


def static_arms(train: RouteTree, fold: RouteTree, allow_stop: bool) -> StaticArms | None:
    """The arms of a fold; None where there is no train fold to choose on."""
    if not len(train):
        return None
    cost, quality = mean_points(_arms(train, allow_stop))
    arms = _arms(fold, allow_stop)
    best = arms[int(cheapest_best(quality[None], cost[None])[0])]
    low = float(np.min(mean_points(arms)[0]))
    return StaticArms(tuple(arms), best, allow_stop, low, float(best.cost.mean()))


def _arms(tree: RouteTree, allow_stop: bool) -> list[Outcome]:
    direct = [call for call in single_calls(tree) if call.kind == "single"]
    return [*direct, *fixed_routes(tree, allow_stop)]
