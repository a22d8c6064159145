"""The hulls of many queries at once.

In: for each query points (cost, quality), one a route. Out: `Hulls`, the steps from the cheapest
route of each query up to its best one, the exact frontier of the tree oracle over all alphas, and
the alphas at which it turns.
The same hulls as `frontier.frontier` finds one by one. Not covered: hulls of policies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.actions import Actions
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

    start: NDArray[np.int64]
    query: NDArray[np.int64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    cost: NDArray[np.float64]
    quality: NDArray[np.float64]

    @property
    def slope(self) -> NDArray[np.float64]:
        """float64[steps], falling: the alpha at which both ends of the step are worth the same."""
        return self.quality / self.cost

    @classmethod
    def of(cls, cost: NDArray[np.float64], quality: NDArray[np.float64]) -> Hulls:
        """The hulls of some points; -inf as quality and inf as cost leave a point out.

        Args:
            cost: float64[queries, points].
            quality: float64[queries, points].
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


def exact_frontier(
    tree: RouteTree, allow_stop: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where the tree oracle goes over all alphas: the best mean Q at every mean cost.

    Between two of these points lie mixtures, which `budget.optimum_at_mean_cost` describes.

    Returns:
        Mean cost and mean quality, float64[points] each, from the cheapest to the best; slopes
        fall, up to equal ones.
    """
    endings = Actions(tree.routes, allow_stop).endings
    cost, quality = tree.cost[:, endings], tree.score[:, endings]
    hulls, rows = Hulls.of(cost, quality), np.arange(len(tree))

    def along(values: NDArray[np.float64], steps: NDArray[np.float64]) -> NDArray[np.float64]:
        first = values[rows, hulls.start].sum()
        return np.concatenate([[first], first + np.cumsum(steps)]) / len(tree)

    return along(cost, hulls.cost), along(quality, hulls.quality)


def oracle_break_points(tree: RouteTree, allow_stop: bool = False) -> NDArray[np.float64]:
    """The alphas at which the tree oracle takes another route on some query, ascending.

    Args:
        allow_stop: whether the oracle may take routes of fewer than L calls.

    Returns:
        float64[changes], one entry for each change of each query.
    """
    endings = Actions(tree.routes, allow_stop).endings
    return Hulls.of(tree.cost[:, endings], tree.score[:, endings]).slope[::-1]


def _climb(
    cost: NDArray[np.float64], quality: NDArray[np.float64], start: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The steps up all hulls: query, point before and point after, int64[steps] each."""
    query, here = np.arange(len(start)), start
    found = [(query[:0], here[:0], here[:0])]
    while len(query):
        after, climbs = _next(cost[query], quality[query], here)
        query, before, here = query[climbs], here[climbs], after[climbs]
        found.append((query, before, here))
    queries, befores, afters = zip(*found, strict=True)
    return np.concatenate(queries), np.concatenate(befores), np.concatenate(afters)


def _next(
    cost: NDArray[np.float64], quality: NDArray[np.float64], here: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The next point up the hull of each query, int64[queries], and whether there is one.

    Args:
        here: int64[queries], points on the hulls.
    """
    rows = np.arange(len(here))
    more_cost = cost - cost[rows, here][:, None]
    better = quality - quality[rows, here][:, None]
    # A better point that is not dearer was taken before, but for rounding.
    climbs: NDArray[np.bool_] = (better > 0) & (more_cost > 0)
    slope = np.full(cost.shape, -np.inf)
    np.divide(better, more_cost, out=slope, where=climbs)
    steepest = slope == slope.max(axis=1, keepdims=True)
    # Points on an edge are left out: of equal slopes the longest.
    after: NDArray[np.int64] = np.where(steepest, better, -np.inf).argmax(axis=1)
    return after, np.any(climbs, axis=1)
