"""The best that can be done within a budget, and the hull of a frontier."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hierrouter.evaluation.outcome import Actions, Booleans, Floats, Integers, Outcome, from_endings
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree


@dataclass(frozen=True)
class Hulls:
    """The upper-left hull of each query's points, as steps by falling slope.

    Attributes:
        start: int64[queries], the cheapest point of each query; of these the best, then the first.
        query: int64[steps], whose hull the step is on.
        before, after: int64[steps], the points that it leads from and to.
        cost, quality: float64[steps], how much more `after` costs and how much better it is; both
            above 0.
    """

    start: Integers
    query: Integers
    before: Integers
    after: Integers
    cost: Floats
    quality: Floats

    @property
    def slope(self) -> Floats:
        """float64[steps], falling: the alpha at which both ends of the step are worth the same."""
        return self.quality / self.cost

    @classmethod
    def of(cls, cost: Floats, quality: Floats) -> Hulls:
        """The hulls of some points; -inf as quality and inf as cost leave a point out.

        `cost`: float64[queries, points]; `quality`: float64[queries, points].
        """
        cheapest = cost == cost.min(axis=1, keepdims=True)
        start = np.where(cheapest, quality, -np.inf).argmax(axis=1)
        query, before, after = _climb(cost, quality, start)
        more_cost = cost[query, after] - cost[query, before]
        better = quality[query, after] - quality[query, before]
        # Stable: slopes fall along a hull, so the steps of a query stay in their order.
        order = np.argsort(-better / more_cost, kind="stable")
        query, before, after = query[order], before[order], after[order]
        return cls(start, query, before, after, more_cost[order], better[order])


GROUP_POINTS = 64  # alphas of each size of group


def policy_break_points(tree: RouteTree, allow_stop: bool = False) -> Floats:
    """The alphas at which a policy that does not know the answers may change, ascending.

    Where an oracle sees that a dear call is right, a policy sees that it is right more often, which
    is worth less: it stops paying at alphas far below those of the oracle. So these are the alphas
    at which the best route changes for groups of 1, 2, 4, 8, ... neighbouring queries, each group
    taken as one by its means: as many of each size, from the least to the greatest.

    `allow_stop`: whether routes of fewer than L calls count. Returns float64[n]; empty where cost
    decides nothing.
    """
    endings = Actions(tree.routes, allow_stop).endings
    spread = np.linspace(0, 1, GROUP_POINTS)
    found, size = [np.empty(0)], 1
    while size <= len(tree):
        starts = np.arange(0, len(tree) - size + 1, size)
        cost, quality = (
            np.add.reduceat(values[: len(starts) * size], starts) / size
            for values in (tree.cost, tree.score)
        )
        slopes = Hulls.of(cost[:, endings], quality[:, endings]).slope[::-1]  # ascending
        if len(slopes):
            found.append(np.quantile(slopes, spread))
        size *= 2
    return np.sort(np.concatenate(found))


def _climb(cost: Floats, quality: Floats, start: Integers) -> tuple[Integers, Integers, Integers]:
    """The steps up all hulls: query, point before and point after, int64[steps] each."""
    query, here = np.arange(len(start)), start
    found = [(query[:0], here[:0], here[:0])]
    while len(query):
        after, climbs = _next(cost[query], quality[query], here)
        query, before, here = query[climbs], here[climbs], after[climbs]
        found.append((query, before, here))
    queries, befores, afters = zip(*found, strict=True)
    return np.concatenate(queries), np.concatenate(befores), np.concatenate(afters)


def _next(cost: Floats, quality: Floats, here: Integers) -> tuple[Integers, Booleans]:
    """The next point up the hull of each query, int64[queries], and whether there is one."""
    rows = np.arange(len(here))
    more_cost = cost - cost[rows, here][:, None]
    better = quality - quality[rows, here][:, None]
    # A better point that is not dearer was taken before, but for rounding.
    climbs: Booleans = (better > 0) & (more_cost > 0)
    slope = np.full(cost.shape, -np.inf)
    np.divide(better, more_cost, out=slope, where=climbs)
    steepest = slope == slope.max(axis=1, keepdims=True)
    # Points on an edge are left out: of equal slopes the longest.
    after: Integers = np.where(steepest, better, -np.inf).argmax(axis=1)
    return after, np.any(climbs, axis=1)


# Costs are rounded sums: what exceeds a budget by less than this share of it is within it.
ROUNDING = 1e-9


def within_budget(cost: Floats, budget: float) -> Booleans:
    """Whether costs are at most the budget, up to rounding; shapes as given."""
    return cost <= budget * (1 + ROUNDING)


def optimum_at_mean_cost(tree: RouteTree, budget: float, allow_stop: bool = False) -> Outcome:
    """The highest mean quality of any policy whose mean cost is at most `budget`, exactly.

    A linear programme over mixtures of routes. Its constraint couples the queries only by the sum
    of their costs, so it is a fractional knapsack: all queries start at their cheapest route, and
    the steps up their hulls are taken in the order of quality gained per cost, the last one in
    part. No policy does better, because this one knows all answers. Raises InputError: not even the
    cheapest route of every query is within the budget.

    `budget`: greatest mean of C over the queries, in money; `allow_stop`: whether an episode may
    end before L calls. Returns what it does on each query; at most one query mixes two routes.
    """
    endings = Actions(tree.routes, allow_stop).endings
    step = Hulls.of(tree.cost[:, endings], tree.score[:, endings])
    node, after = endings.start + step.start, endings.start + step.after
    cheapest = tree.cost[np.arange(len(tree)), node]
    if not within_budget(cheapest.mean(), budget):
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
    return from_endings(tree, reached, f"oracle at mean cost {budget:g}", "oracle")
