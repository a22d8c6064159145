"""The best quality within a budget, and the hull of cost and quality that decides it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hierrouter.evaluation.bounds import clairvoyant_endings, rank_routes
from hierrouter.evaluation.outcome import (
    Booleans,
    FixedRoutes,
    Floats,
    Integers,
    Outcome,
    from_endings,
    is_plain,
    possible_ends,
    route_ends,
)
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree, net_reward

GROUP_POINTS = 64  # alphas that `policy_break_points` takes of each size of group
BISECTIONS = 48  # of alpha, for the optimum at a mean cost where calls have several draws
DOUBLINGS = 30  # of alpha, by four, until its oracle is within the budget
# Costs are rounded sums: one that exceeds a budget by less than this share of it is within it.
COST_ROUNDING = 1e-9


@dataclass(frozen=True)
class Hulls:
    """The upper-left hull of each query's points, as steps by falling slope.

    Attributes:
        start: int64[queries], the cheapest point of each query; among several the best, then the
            first.
        query: int64[steps], the query whose hull the step is on.
        before: int64[steps], the point that the step leads from.
        after: int64[steps], the point that the step leads to.
        cost: float64[steps], by how much `after` is more expensive; above 0.
        quality: float64[steps], by how much `after` is better; above 0.
    """

    start: Integers
    query: Integers
    before: Integers
    after: Integers
    cost: Floats
    quality: Floats

    @property
    def slope(self) -> Floats:
        """float64[steps], falling: the alpha at which both ends of the step earn the same."""
        return self.quality / self.cost

    @classmethod
    def of(cls, cost: Floats, quality: Floats) -> Hulls:
        """Compute the hulls of some points.

        Args:
            cost: float64[queries, points]; inf excludes a point.
            quality: float64[queries, points]; -inf excludes a point.
        """
        is_cheapest = cost == cost.min(axis=1, keepdims=True)
        start = np.where(is_cheapest, quality, -np.inf).argmax(axis=1)
        query, before, after = _climb(cost, quality, start)
        cost_step = cost[query, after] - cost[query, before]
        quality_step = quality[query, after] - quality[query, before]
        # Stable: slopes fall along a hull, so the steps of a query stay in their order.
        order = np.argsort(-quality_step / cost_step, kind="stable")
        return cls(
            start=start,
            query=query[order],
            before=before[order],
            after=after[order],
            cost=cost_step[order],
            quality=quality_step[order],
        )


@dataclass(frozen=True)
class RouteHull:
    """The fixed routes that are the best at some alpha, from the one at alpha 0 on.

    Attributes:
        node: the nodes where they end.
        quality: mean Q of each; it falls.
        cost: mean C of each, in money; it falls, too.
    """

    node: tuple[int, ...]
    quality: tuple[float, ...]
    cost: tuple[float, ...]

    @classmethod
    def of(cls, tree: RouteTree, allow_stop: bool = False) -> RouteHull:
        """Find the fixed route with the highest mean reward on a tree, for every alpha >= 0.

        Args:
            tree: the queries that the means are taken over.
            allow_stop: whether routes of fewer than L calls count.

        Where queries do not offer a route, those of the ranking at alpha 0 are taken, see
        `FixedRoutes`.
        """
        means = FixedRoutes(tree, allow_stop)
        if not means.is_complete:
            means = FixedRoutes(tree, allow_stop, rank_routes(tree, 0.0, allow_stop))
        quality = means.quality[:, means.listed].mean(axis=0)
        cost = means.cost[:, means.listed].mean(axis=0)
        hulls = Hulls.of(cost[None], quality[None])
        columns = np.array([*hulls.start, *hulls.after])[::-1]
        return cls(
            node=tuple(means.node[means.listed][columns].tolist()),
            quality=tuple(quality[columns].tolist()),
            cost=tuple(cost[columns].tolist()),
        )

    def best(self, alpha: float) -> int:
        """Return the node where the best route at an alpha ends; of equals that of the cheaper."""
        reward = net_reward(np.array(self.quality), np.array(self.cost), alpha)
        return self.node[int(np.flatnonzero(reward == reward.max())[-1])]

    @property
    def changes(self) -> Floats:
        """float64[n - 1], ascending: the alphas at which another route becomes the best."""
        changes: Floats = np.diff(self.quality) / np.diff(self.cost)
        return changes


def policy_break_points(tree: RouteTree, allow_stop: bool = False) -> Floats:
    """Find the alphas at which a policy that cannot see the answers may change.

    If an oracle sees that an expensive call is right, a policy sees only that it is right more
    often, which is worth less: the call stops paying at alphas far below those of the oracle. So
    these are the alphas at which the best route changes for groups of 1, 2, 4, 8, ... neighbouring
    queries, each group represented by its means. Each size of group gives the same number of
    alphas, from the least to the greatest.

    Args:
        tree: the queries.
        allow_stop: whether routes of fewer than L calls count.

    Returns:
        float64[n], ascending; empty if cost decides nothing.
    """
    if is_plain(tree):
        ends = route_ends(tree.layout, allow_stop)
        costs = tree.cost[:, ends]
        scores = tree.score[:, ends]
    else:
        means = FixedRoutes(tree, allow_stop)
        costs = means.cost[:, means.listed]
        scores = means.quality[:, means.listed]
    quantiles = np.linspace(0, 1, GROUP_POINTS)
    alphas = [np.empty(0)]
    size = 1
    while size <= len(tree):
        # Queries that do not fill a last group are left out.
        starts = np.arange(0, len(tree) - size + 1, size)
        grouped = len(starts) * size
        cost = np.add.reduceat(costs[:grouped], starts) / size
        quality = np.add.reduceat(scores[:grouped], starts) / size
        slopes = Hulls.of(cost, quality).slope[::-1]  # ascending
        if len(slopes):
            alphas.append(np.quantile(slopes, quantiles))
        size *= 2
    return np.sort(np.concatenate(alphas))


def _climb(cost: Floats, quality: Floats, start: Integers) -> tuple[Integers, Integers, Integers]:
    """Climb all hulls from their cheapest points.

    Returns:
        The query, the point before and the point after of each step, int64[steps] each.
    """
    query = np.arange(len(start))
    point = start
    # Empty arrays, so that `concatenate` has something if no hull has a step.
    queries = [query[:0]]
    befores = [point[:0]]
    afters = [point[:0]]
    while len(query):
        next_point, climbs = _next_points(cost[query], quality[query], point)
        query = query[climbs]
        queries.append(query)
        befores.append(point[climbs])
        point = next_point[climbs]
        afters.append(point)
    return np.concatenate(queries), np.concatenate(befores), np.concatenate(afters)


def _next_points(cost: Floats, quality: Floats, point: Integers) -> tuple[Integers, Booleans]:
    """Find the next point up the hull of each query.

    Args:
        cost: float64[queries, points].
        quality: float64[queries, points].
        point: int64[queries], the points to climb from.

    Returns:
        int64[queries], the next points, and bool[queries], whether there is one.
    """
    rows = np.arange(len(point))
    cost_step = cost - cost[rows, point][:, None]
    quality_step = quality - quality[rows, point][:, None]
    # A better point that is no more expensive was taken before, except by rounding.
    climbs: Booleans = (quality_step > 0) & (cost_step > 0)
    slope = np.full(cost.shape, -np.inf)
    np.divide(quality_step, cost_step, out=slope, where=climbs)
    is_steepest = slope == slope.max(axis=1, keepdims=True)
    # Of equal slopes the longest step is taken, which skips points on an edge of the hull.
    next_point: Integers = np.where(is_steepest, quality_step, -np.inf).argmax(axis=1)
    return next_point, np.any(climbs, axis=1)


def within_budget(cost: Floats, budget: float) -> Booleans:
    """Whether each cost is at most the budget, up to rounding; of the shape of `cost`."""
    return cost <= budget * (1 + COST_ROUNDING)


def optimum_at_mean_cost(tree: RouteTree, budget: float, allow_stop: bool = False) -> Outcome:
    """Compute the highest mean quality of any policy whose mean cost is within a budget, exactly.

    This is a linear programme over mixtures of routes. Its constraint couples the queries only by
    the sum of their costs, so it is a fractional knapsack: all queries start at their cheapest
    route, and the steps up their hulls are taken in the order of quality gained per cost, the last
    step partly. No policy does better, because this one knows all answers.

    If calls have several draws, this policy knows which draw of each call comes. Its optimum is
    then a mixture of two oracles of neighbouring alphas, found by bisection.

    Args:
        tree: the queries.
        budget: the greatest mean of C over the queries, in money.
        allow_stop: whether an episode may end before L calls.

    Returns:
        The outcome on each query; at most one query mixes two routes.

    Raises:
        InputError: the cheapest routes of all queries exceed the budget.
    """
    if tree.layout.draws > 1:
        return _clairvoyant_optimum(tree, budget, allow_stop)
    first = route_ends(tree.layout, allow_stop).start
    costs = tree.cost[:, first:]
    scores = tree.score[:, first:]
    if not is_plain(tree):
        first = 0
        ends = possible_ends(tree, allow_stop)
        costs = np.where(ends, tree.cost, np.inf)
        scores = np.where(ends, tree.score, -np.inf)
    steps = Hulls.of(costs, scores)
    node = first + steps.start
    next_node = first + steps.after
    cheapest = tree.cost[np.arange(len(tree)), node]
    if not within_budget(cheapest.mean(), budget):
        raise _too_cheap(budget, cheapest.mean())
    total_budget = budget * len(tree)
    spent = cheapest.sum() + np.cumsum(steps.cost)  # in all, after each step
    taken = int(np.searchsorted(spent, total_budget, side="right"))
    # If a query takes several steps, this assignment keeps the last of them.
    node[steps.query[:taken]] = next_node[:taken]
    probability = np.eye(tree.layout.nodes)[node]
    if taken < len(spent):
        query = steps.query[taken]
        share = max(1 - (spent[taken] - total_budget) / steps.cost[taken], 0.0)
        probability[query] *= 1 - share
        probability[query, next_node[taken]] = share
    return from_endings(tree, probability, f"oracle at mean cost {budget:g}", "oracle")


def _too_cheap(budget: float, cheapest: float) -> InputError:
    """The error for a budget below the mean cost of the cheapest routes."""
    return InputError(
        f"no policy is that cheap: a mean cost of {budget:g} per query; "
        f"the cheapest routes cost {cheapest:.6g}, allow at least that"
    )


def _clairvoyant_optimum(tree: RouteTree, budget: float, allow_stop: bool) -> Outcome:
    """The result of `optimum_at_mean_cost` if calls have several draws."""

    def endings_at(alpha: float) -> tuple[Floats, float]:
        endings = clairvoyant_endings(tree, alpha, allow_stop)
        return endings, float((endings * tree.cost).sum(axis=1).mean())

    name = f"oracle at mean cost {budget:g}"
    limit = budget * (1 + COST_ROUNDING)
    generous, generous_cost = endings_at(0.0)
    if generous_cost <= limit:
        return from_endings(tree, generous, name, "oracle")
    positive = tree.cost[tree.cost > 0]
    # From this alpha on no gain of Q, at most 1, pays for the least difference of cost.
    high = 1.0 / float(positive.min())
    frugal, frugal_cost = endings_at(high)
    for _ in range(DOUBLINGS):
        if frugal_cost <= limit:
            break
        high *= 4
        frugal, frugal_cost = endings_at(high)
    else:
        raise _too_cheap(budget, frugal_cost)
    low = 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        endings, cost = endings_at(middle)
        if cost <= limit:
            high = middle
            frugal = endings
            frugal_cost = cost
        else:
            low = middle
            generous = endings
            generous_cost = cost
    share = (budget - frugal_cost) / (generous_cost - frugal_cost)
    share = min(max(share, 0.0), 1.0)
    return from_endings(tree, share * generous + (1 - share) * frugal, name, "oracle")
