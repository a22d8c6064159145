"""The best that can be done within a budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hierrouter.evaluation.bounds import cheapest_best
from hierrouter.evaluation.outcome import (
    Actions,
    Booleans,
    Floats,
    Integers,
    Outcome,
    at_nodes,
    ending,
    from_endings,
)
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree, cost_of


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
        slopes = _slopes(cost, quality, endings)
        if len(slopes):
            found.append(np.quantile(slopes, spread))
        size *= 2
    return np.sort(np.concatenate(found))


def _slopes(cost: Floats, quality: Floats, endings: slice) -> Floats:
    """The slopes of all hulls, ascending: float64[changes]."""
    return Hulls.of(cost[:, endings], quality[:, endings]).slope[::-1]


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
    """The next point up the hull of each query, int64[queries], and whether there is one.

    `here`: int64[queries], points on the hulls.
    """
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


def within(cost: Floats, budget: float) -> Booleans:
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
    return from_endings(tree, reached, f"oracle at mean cost {budget:g}", "oracle")


def optimum_under_budget(
    tree: RouteTree, budget: float, alpha: float, allow_stop: bool = False
) -> Outcome:
    """The tree oracle among the routes whose cost is within a budget for every query.

    It knows the cost of each route before it takes it. Where no route is within the budget it takes
    the cheapest one.

    `budget`: greatest C of a query, in money; `alpha`: reward lost per unit of cost; `allow_stop`:
    whether an episode may end before L calls.
    """
    endings = np.zeros_like(tree.cost, dtype=np.bool_)
    endings[:, Actions(tree.routes, allow_stop).endings] = True
    lowest = np.where(endings, tree.cost, np.inf).min(axis=1, keepdims=True)
    allowed = endings & (within(tree.cost, budget) | (tree.cost == lowest))
    return _best_of(tree, allowed, alpha, f"oracle within {budget:g}")


def masked_optimum(tree: RouteTree, actions: Actions, allowed: Booleans, alpha: float) -> Outcome:
    """The tree oracle among the routes that a mask leaves: no masked policy does better.

    It can be better than `optimum_under_budget`, where a mask lets a query exceed the budget, and
    worse, where a mask closes routes that would have been within it.

    Args:
        actions: what the columns of the mask mean.
        allowed: bool[queries, states, A], at least one True in each row; see
            `hierrouter.evaluation.budget.affordable`.
        alpha: reward lost per unit of cost.
    """
    reachable = ending(actions, allowed.astype(np.float64)) > 0
    return _best_of(tree, reachable, alpha, "masked oracle")


def share_over(tree: RouteTree, endings: Floats, budget: float) -> float:
    """The share of queries whose cost exceeds a budget under a policy, exactly.

    Args:
        endings: float64[queries, nodes], see `hierrouter.evaluation.outcome.ending`. A query on
            which the policy draws between routes counts with the probability of the dear ones.
        budget: greatest C of a query, in money.
    """
    return float((endings * ~within(tree.cost, budget)).sum(axis=1).mean())


def _best_of(tree: RouteTree, allowed: Booleans, alpha: float, name: str) -> Outcome:
    """The outcome of the best node of each query among those allowed, bool[queries, nodes]."""
    reward = np.where(allowed, tree.node_reward(alpha), -np.inf)
    return at_nodes(tree, cheapest_best(reward, tree.cost), name, "oracle")


@dataclass(frozen=True)
class Ceilings:
    """The largest unknowns of a fold at each node.

    Attributes:
        longest: int64[nodes], tokens of the longest answer.
        growth: int64[nodes], largest number of tokens that a prompt has more than its parent's,
            each counted by the model that is asked.
    """

    longest: Integers
    growth: Integers

    @classmethod
    def of(cls, fold: RouteTree) -> Ceilings:
        """The ceilings of one fold, which is not empty."""
        nodes = np.arange(1, fold.routes.nodes)
        parent = np.concatenate([[0], (nodes - 1) // fold.routes.models])
        growth = (fold.tokens_in - fold.tokens_in[:, parent]).max(axis=0)
        return cls(fold.tokens_out.max(axis=0), growth)


def affordable(ceilings: Ceilings, tree: RouteTree, budget: float, actions: Actions) -> Booleans:
    """What may be called at each state so that the cost of a query stays within a budget.

    Where nothing is affordable, the action with the lowest ceiling stays: an answer is owed, even
    to a query whose bare question costs more than the budget. Returns bool[queries, states, A], at
    least one True in each row.

    `ceilings`: of the training fold; `tree`: queries of any fold, with the same pool and hops;
    `budget`: greatest C of a query, in money; `actions`: what may be chosen at all.
    """
    routes = tree.routes
    ahead = [
        _ahead(ceilings, actions, tree.rate, level, tree.tokens_in[:, routes.level(level)])
        for level in range(1, routes.hops + 1)
    ]
    spent = tree.cost[:, : routes.states, None]
    return _fitting(spent + np.concatenate(ahead, axis=1), actions.legal(), budget)


def affordable_at(
    ceilings: Ceilings,
    actions: Actions,
    rate: Floats,
    budget: float,
    path: tuple[int, ...],
    prompts: Integers,
    cost: float,
) -> Booleans:
    """What may be called at one live state: what `affordable` says of that state.

    Raises ValueError: not M prompts. Returns bool[A], at least one True.

    Args:
        ceilings: of the training fold.
        actions: what may be chosen at all.
        rate: float64[M, 2], price of a token in and of a token out.
        budget: greatest C of a query, in money.
        path: the models called so far, by number; fewer than L.
        prompts: int64[M], tokens of the prompt that each model would be asked with next.
        cost: C so far, in money.
    """
    routes, level = actions.routes, len(path) + 1
    if prompts.shape != (routes.models,):
        raise ValueError(f"{routes.models} models need as many prompts, got {prompts.shape}")
    state = routes.node(path)
    place = state - routes.level_start(len(path))  # among the states of its level
    prompt = np.zeros((1, routes.models**level), dtype=np.int64)
    prompt.reshape(-1, routes.models)[place] = prompts
    ahead = _ahead(ceilings, actions, rate, level, prompt)[0, place]
    return _fitting(cost + ahead, actions.legal()[state], budget)


def _ahead(
    ceilings: Ceilings, actions: Actions, rate: Floats, level: int, prompt: Integers
) -> Floats:
    """Ceiling of the actions that lead to a level and of what must follow; inf: illegal.

    `rate`: float64[M, 2]; `prompt`: int64[queries, M^level], tokens, known or bounded. Returns
    float64[queries, M^(level - 1), A].
    """
    routes = actions.routes
    rates = np.tile(rate, (routes.models ** (level - 1), 1))
    call = cost_of(prompt, ceilings.longest[routes.level(level)], rates)
    going_on = call
    if level < routes.hops:
        grown = np.repeat(prompt, routes.models, axis=1)
        grown += ceilings.growth[routes.level(level + 1)]
        going_on = call + _ahead(ceilings, actions, rate, level + 1, grown).min(axis=2)
    choices = [going_on, call] if actions.allow_stop else [going_on]
    shape = (len(prompt), -1, routes.models)
    total = np.concatenate([choice.reshape(shape) for choice in choices], axis=2)
    return np.where(actions.legal()[routes.level(level - 1)], total, np.inf)


def _fitting(total: Floats, legal: Booleans, budget: float) -> Booleans:
    """Which totals, float64[..., A], fit; the lowest one where none does."""
    fits = within(total, budget) & legal
    lowest = np.arange(total.shape[-1]) == total.argmin(axis=-1)[..., None]
    return np.where(fits.any(axis=-1, keepdims=True), fits, lowest)
