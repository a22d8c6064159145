"""Bounds on what a router can earn, and the regret of a policy, split by decision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation import outcome
from hierrouter_cache.layout import NOT_OFFERED, Layout, Level
from hierrouter_cache.tree import RouteTree, net_reward

# Below this gap, the share of the gap that is closed would be a quotient of two noises.
SMALLEST_GAP = 0.005
LUCK_SPLITS = 8  # random splits of the draws, for the oracles without luck
LUCK_SEED = 0
MAX_RUNS = 128  # of a call, that weights of draws may be shares of
RUNS_TOLERANCE = 1e-6
CLAIRVOYANT_CELLS = 2**22  # numbers in memory at once for the distribution of the best end
UNJUDGED_REWARD = -1e12  # below that of any answer: of ending with one that nothing judges
REWARD_ROUNDING = 1e-9  # differences of R up to this are rounding errors of a sum
RANK_DIGITS = 12  # of R: routes that differ by less are equally good
OUTCOME_MEASURES = ("quality", "accuracy", "cost", "seconds")

# Names of bounds, as reports and comparisons show them.
ONE_HOP_ORACLE = "one-hop oracle"
TREE_ORACLE = "tree oracle"
ANYTIME_ORACLE = "anytime oracle"
SPLIT_ORACLE = "split oracle"
SPLIT_PLAN_ORACLE = "split plan oracle"
BEST_ROUTE_PER_DATASET = "best route per dataset"

SURE_PROBABILITY = 0.9  # from here on a policy counts as sure of its choice
# Lower edges of the groups of decisions, by their probability; the last one is open above.
RELIABILITY_EDGES = (0.0, 0.5, 0.7, SURE_PROBABILITY, np.inf)


def cheapest_best(reward: outcome.Floats, cost: outcome.Floats) -> outcome.Integers:
    """Find the column of the highest reward in each row.

    Ties go to the lower cost, then to the lower column.

    Args:
        reward: float64[rows, columns].
        cost: float64[rows, columns].

    Returns:
        int64[rows], the columns.
    """
    best = reward.max(axis=1, keepdims=True)
    return np.where(reward == best, cost, np.inf).argmin(axis=1)


def best_ending(tree: RouteTree, alpha: float, allow_stop: bool = False) -> int:
    """Find the fixed route with the highest mean reward on a tree.

    Args:
        tree: the queries that the mean is taken over.
        alpha: cost penalty of R = Q - alpha * C.
        allow_stop: whether routes of fewer than L calls count.

    Returns:
        The number of the node at which that route ends.
    """
    return rank_routes(tree, alpha, allow_stop)[0]


def rank_routes(tree: RouteTree, alpha: float, allow_stop: bool = False) -> tuple[int, ...]:
    """Rank the fixed routes by their mean reward on a tree.

    Where a query does not offer a route, a step is first taken by chance, which gives a ranking of
    all routes; then the best listed route is found that goes on by this ranking, see
    `outcome.FixedRoutes`. Ties go to the lower cost, and then to the lower number; if not all
    queries offer all routes, to the longer route before that.

    Args:
        tree: the queries that the means are taken over.
        alpha: cost penalty of R = Q - alpha * C.
        allow_stop: whether routes of fewer than L calls count.

    Returns:
        The numbers of the routes: the best one, and after it those that are taken in its place
        where it is not offered. Only the best one if all queries offer all routes.

    Source: docs/metrics.md.
    """
    means = outcome.FixedRoutes(tree, allow_stop)
    if means.is_complete:
        reward = means.reward(alpha).mean(axis=0, keepdims=True)
        cost = means.cost.mean(axis=0, keepdims=True)
        return (int(means.node[cheapest_best(reward, cost)[0]]),)
    ranking = _in_order(means, alpha)
    listed = set(means.node[means.listed].tolist())
    ranked = _in_order(outcome.FixedRoutes(tree, allow_stop, ranking), alpha)
    best = next(node for node in ranked if node in listed)
    return (best, *(node for node in ranking if node != best))


def _in_order(means: outcome.FixedRoutes, alpha: float) -> list[int]:
    """The numbers of the routes by falling mean reward.

    Where few queries offer a route, many routes are the same policy: the longest names it best.
    """
    reward = np.round(means.reward(alpha).mean(axis=0), RANK_DIGITS)
    cost = np.round(means.cost.mean(axis=0), RANK_DIGITS)
    depth = means.tree.layout.depth()[means.node]
    order: list[int] = means.node[np.lexsort((means.node, -depth, cost, -reward))].tolist()
    return order


def best_direct_call(
    selection_tree: RouteTree, alpha: float, tree: RouteTree, references: bool = False
) -> outcome.Outcome | None:
    """Make the best direct call of one fold on another fold; of equal ones the cheapest.

    Args:
        selection_tree: the fold on which the call has the highest mean reward.
        alpha: cost penalty of R = Q - alpha * C.
        tree: the fold on which the call is made.
        references: whether it may be a call of a reference model, which is not of the pool.

    Returns:
        The outcome on `tree`; None if no such model was called directly.
    """
    direct = selection_tree.direct
    columns = np.arange(len(direct.models)) if references else _pool_columns(selection_tree)
    if not len(columns):
        return None
    cost = direct.cost[:, columns].mean(axis=0, keepdims=True)
    quality = direct.score[:, columns].mean(axis=0, keepdims=True)
    best = int(columns[cheapest_best(net_reward(quality, cost, alpha), cost)[0]])
    return outcome.single_calls(tree)[best]


def best_fixed_route(
    selection_tree: RouteTree, alpha: float, tree: RouteTree, allow_stop: bool = False
) -> outcome.Outcome:
    """Take the best fixed route of one fold on every query of another fold.

    Args:
        selection_tree: the fold on which the route has the highest mean reward.
        alpha: cost penalty of R = Q - alpha * C.
        tree: the fold on which the route is taken.
        allow_stop: whether routes of fewer than L calls count.
    """
    best, *others = rank_routes(selection_tree, alpha, allow_stop)
    return outcome.fixed_route(tree, best, others, allow_stop)


def best_route_per_dataset(
    selection_tree: RouteTree, alpha: float, tree: RouteTree, allow_stop: bool = False
) -> outcome.Outcome:
    """Take on each query the best fixed route of its dataset: a perfect classifier of datasets.

    Args:
        selection_tree: the fold on which the routes are selected. Queries of a dataset that it
            lacks take its best route over all datasets.
        alpha: cost penalty of R = Q - alpha * C.
        tree: the fold on which the routes are taken.
        allow_stop: whether routes of fewer than L calls count.
    """
    datasets = np.array(selection_tree.datasets)
    rankings = {
        name: rank_routes(
            selection_tree.select(np.flatnonzero(datasets == name)), alpha, allow_stop
        )
        for name in set(selection_tree.datasets)
    }
    overall = rank_routes(selection_tree, alpha, allow_stop)
    name = BEST_ROUTE_PER_DATASET
    if outcome.is_plain(tree):
        node = np.array([rankings.get(dataset, overall)[0] for dataset in tree.datasets], np.int64)
        return outcome.from_nodes(tree, node, name, "baseline")
    values = {measure: np.zeros(len(tree)) for measure in OUTCOME_MEASURES}
    fold_datasets = np.array(tree.datasets)
    for dataset in set(tree.datasets):
        rows = np.flatnonzero(fold_datasets == dataset)
        best, *others = rankings.get(dataset, overall)
        taken = outcome.fixed_route(tree.select(rows), best, others, allow_stop)
        for measure, array in values.items():
            array[rows] = getattr(taken, measure)
    return outcome.Outcome(name, "baseline", **values)


def oracle(tree: RouteTree, alpha: float, allow_stop: bool = False) -> outcome.Outcome:
    """Take the best route of every query in hindsight: no policy earns more.

    A policy that may return earlier answers is bounded by the oracle with `allow_stop`: in
    hindsight it never pays to call a model after the answer that is returned.

    If calls have several draws, this oracle is clairvoyant: it knows which draw of each call comes.
    The outcome is the expectation over the draws.

    Args:
        tree: the queries.
        alpha: cost penalty of R = Q - alpha * C.
        allow_stop: whether routes of fewer than L calls count.
    """
    if tree.layout.draws > 1:
        endings = clairvoyant_endings(tree, alpha, allow_stop)
        return outcome.from_endings(tree, endings, "oracle", "oracle")
    return outcome.from_nodes(tree, best_nodes(tree, alpha, allow_stop), "oracle", "oracle")


def clairvoyant_endings(tree: RouteTree, alpha: float, allow_stop: bool = False) -> outcome.Floats:
    """Compute how often each node is the best end, over the draws of all calls.

    Let each call have one draw, independent of those of other calls; the best end is that of the
    highest R among the nodes that then exist. Its distribution is computed exactly, from the last
    level up: the best end of several calls is at most of rank k if that of each call is.

    Args:
        tree: the queries.
        alpha: cost penalty of R = Q - alpha * C.
        allow_stop: whether episodes may end before L calls.

    Returns:
        float64[queries, nodes], rows sum to 1.
    """
    layout = tree.layout
    ends = outcome.possible_ends(tree, allow_stop)
    probability = np.zeros(ends.shape)
    rows = max(1, CLAIRVOYANT_CELLS // (layout.nodes * max(int(ends.sum(axis=1).max()), 1)))
    reward = tree.node_reward(alpha)
    for start in range(0, len(tree), rows):
        chunk = slice(start, start + rows)
        ranked, rank = _ranks(ends[chunk], reward[chunk], tree.cost[chunk])
        queries, ranks = ranked.shape
        weight = None if tree.weight is None else np.repeat(tree.weight[chunk], ranks, axis=0)
        offered = None if tree.offered is None else np.repeat(tree.offered[chunk], ranks, axis=0)
        # Row (query, k): the probability that the best end of what follows a node is at most k.
        at_most = (np.tile(np.arange(ranks), queries)[:, None]) >= np.repeat(rank, ranks, axis=0)
        below = at_most.astype(np.float64)
        for level in reversed(layout.levels):
            if not level.calls:
                continue
            called = level.gather(below, 1.0, weight)
            if offered is not None:
                called = np.where(offered[:, level.inner], called, 1.0)
            below[:, level.inner] *= called.prod(axis=2)
        best = np.diff(below[:, 0].reshape(queries, ranks), axis=1, prepend=0.0)
        np.put_along_axis(probability[chunk], ranked, best, axis=1)
    return np.where(ends, probability, 0.0)


def _ranks(
    ends: outcome.Booleans, reward: outcome.Floats, cost: outcome.Floats
) -> tuple[outcome.Integers, outcome.Integers]:
    """Rank the possible ends of each query, from the worst to the best.

    Args:
        ends: bool[queries, nodes].
        reward: float64[queries, nodes].
        cost: float64[queries, nodes], decides between equal rewards.

    Returns:
        int64[queries, n], the nodes by rank, those of the lowest ranks being no ends where a query
        has fewer than n; and int64[queries, nodes], the rank of each node, -1 if it is no end.
    """
    count = max(int(ends.sum(axis=1).max()), 1)
    nodes = np.broadcast_to(-np.arange(ends.shape[1]), ends.shape)
    order = np.lexsort((nodes, -cost, np.where(ends, reward, -np.inf)), axis=1)
    ranked = order[:, -count:]
    rank = np.full(ends.shape, -1)
    np.put_along_axis(rank, ranked, np.broadcast_to(np.arange(count), ranked.shape), axis=1)
    return ranked, np.where(ends, rank, -1)


def best_nodes(tree: RouteTree, alpha: float, allow_stop: bool = False) -> outcome.Integers:
    """Find the node at which the best route of each query ends, in hindsight.

    If calls have several draws, it is the route with the highest expected R over them.

    Args:
        tree: the queries.
        alpha: cost penalty of R = Q - alpha * C.
        allow_stop: whether routes of fewer than L calls count.

    Returns:
        int64[queries], node numbers.
    """
    endings = outcome.route_ends(tree.layout, allow_stop)
    if outcome.is_plain(tree):
        best = cheapest_best(tree.node_reward(alpha)[:, endings], tree.cost[:, endings])
        return best + np.int64(endings.start)
    if tree.layout.draws == 1:
        ends = outcome.possible_ends(tree, allow_stop)
        return cheapest_best(np.where(ends, tree.node_reward(alpha), -np.inf), tree.cost)
    means = outcome.RouteMeans(tree, allow_stop)
    reward = np.where(means.available, means.reward(alpha), -np.inf)
    return means.node[cheapest_best(reward, means.cost)]


def direct_oracle(tree: RouteTree, alpha: float) -> outcome.Outcome | None:
    """Make the best direct call of every query in hindsight, among the models of the pool.

    Larger reference models do not take part. Direct calls are not routes of the tree, so this is
    no lower bound of `oracle`.

    Args:
        tree: the queries.
        alpha: cost penalty of R = Q - alpha * C.

    Returns:
        The outcome; None if no model of the pool was called directly.
    """
    direct = tree.direct
    columns = _pool_columns(tree)
    if not len(columns):
        return None
    rows = np.arange(len(tree))
    cost = direct.cost[:, columns]
    choice = columns[cheapest_best(net_reward(direct.score[:, columns], cost, alpha), cost)]
    return outcome.Outcome(
        name=ONE_HOP_ORACLE,
        kind="oracle",
        quality=direct.score[rows, choice],
        accuracy=direct.accuracy[rows, choice],
        cost=direct.cost[rows, choice],
    )


def random_policy(tree: RouteTree, allow_stop: bool = False) -> outcome.Outcome:
    """Take every route with the same probability.

    See `random_endings` for the arguments.
    """
    endings = random_endings(tree, allow_stop)
    return outcome.from_endings(tree, endings, "random", "baseline")


def random_endings(tree: RouteTree, allow_stop: bool = False) -> outcome.Floats:
    """Compute where the policy ends that takes every route with the same probability.

    If queries differ in their routes, or calls in their draws, each call is made as often as there
    are routes that begin with it on this query, in the mean over its draws.

    Args:
        tree: the queries.
        allow_stop: whether routes of fewer than L calls take part.

    Returns:
        float64[queries, nodes], rows sum to 1.
    """
    probability = np.zeros((len(tree), tree.layout.nodes))
    if outcome.is_plain(tree):
        endings = outcome.route_ends(tree.layout, allow_stop)
        probability[:, endings] = 1 / (endings.stop - endings.start)
        return probability
    layout = tree.layout
    ends = outcome.possible_ends(tree, allow_stop).astype(np.float64)
    routes = ends.copy()  # number of routes that go through a node
    for level in reversed(layout.levels):
        if level.calls:
            routes[:, level.inner] += level.gather(routes, weight=tree.weight).sum(axis=2)
    share = np.divide(1.0, routes, out=np.zeros_like(routes), where=routes > 0)
    reach = np.ones((len(tree), 1))
    for level in layout.levels:
        if not level.calls:
            continue
        per_route = reach[:, : level.inner.stop - level.inner.start] * share[:, level.inner]
        probability[:, level.inner] = per_route * ends[:, level.inner]
        called = level.gather(routes, weight=tree.weight) * per_route[:, :, None]
        for calls in level.calls:
            reached = calls.spread(called)
            if tree.weight is not None:
                reached = reached * tree.weight[:, calls.nodes]
            if calls.is_inner:
                reach = reached
            else:
                probability[:, calls.nodes] = reached
    return probability


def gap_closed(router: float, fixed: float, best: float) -> float | None:
    """Compute (R(router) - R(best fixed route)) / (R(oracle) - R(best fixed route)).

    Args:
        router: mean reward of the router.
        fixed: mean reward of the best fixed route.
        best: mean reward of the tree oracle.

    Returns:
        1 if the router is as good as the oracle, below 0 if it is worse than the fixed route; None
        if the gap is below `SMALLEST_GAP`.
    """
    gap = best - fixed
    return (router - fixed) / gap if gap >= SMALLEST_GAP else None


def _pool_columns(tree: RouteTree) -> outcome.Integers:
    """Columns of the direct calls of models that a router may call."""
    columns = [column for column, name in enumerate(tree.direct.models) if name in tree.callers]
    return np.array(columns, dtype=np.int64)


def ladder(
    selection_tree: RouteTree, alpha: float, tree: RouteTree, allow_stop: bool = False
) -> dict[str, outcome.Outcome]:
    """Compute the bounds from chance to the anytime oracle; docs/metrics.md explains each.

    Their rewards need not rise. A choice made on one fold may do worse on another. Direct calls
    lack the stage instructions, so they are not routes of the tree, and the one-hop oracle can beat
    the tree oracle. The anytime oracle never loses to the tree oracle.

    Args:
        selection_tree: the train fold. If it is empty, the bounds that select on it are omitted.
        alpha: cost penalty of R = Q - alpha * C.
        tree: the fold to evaluate. Bounds of direct calls consider only models of the pool that
            were called directly, and are omitted if there are none.
        allow_stop: whether chance and the fixed routes, too, may end before L calls.

    Returns:
        The outcome of each bound by the bound's name, a split oracle if calls have several draws.
        The outcome's own name is the selected model or route.
    """
    outcomes: dict[str, outcome.Outcome | None] = {"random": random_policy(tree, allow_stop)}
    if len(selection_tree):
        outcomes["best single call"] = best_direct_call(selection_tree, alpha, tree)
        selectors = {
            "best fixed route": best_fixed_route,
            BEST_ROUTE_PER_DATASET: best_route_per_dataset,
        }
        for rung, selector in selectors.items():
            outcomes[rung] = selector(selection_tree, alpha, tree, allow_stop)
    outcomes[ONE_HOP_ORACLE] = direct_oracle(tree, alpha)
    outcomes[TREE_ORACLE] = oracle(tree, alpha)
    outcomes[ANYTIME_ORACLE] = replace(oracle(tree, alpha, True), name=ANYTIME_ORACLE)
    outcomes[SPLIT_ORACLE] = split_oracle(tree, alpha, allow_stop)
    return {name: bound for name, bound in outcomes.items() if bound}


def split_regret(
    tree: RouteTree, alpha: float, endings: outcome.Floats, allow_stop: bool = False
) -> outcome.Floats:
    """Split the regret of a policy by decision.

    Regret is R of the oracle less R of the policy. The oracle may do what the policy may: end
    before L calls, or return an earlier answer. Let W(l) be the expected R of a query if the policy
    makes the first l decisions and the oracle all later ones. W(0) is R of the oracle; W of all
    decisions is R of the policy. The loss of decision l + 1 is W(l) - W(l + 1).

    A decision chooses the next call, perhaps with a stop. If the layout offers to return earlier
    answers, there is a decision after the last call, too: which answer to return.

    Args:
        tree: the queries.
        alpha: cost penalty of R = Q - alpha * C.
        endings: float64[queries, endings], the probability of each ending; rows sum to 1. For a
            stochastic policy all values are expectations; the mean of several seeds is one such
            policy.
        allow_stop: whether policy and oracle may end before L calls.

    Returns:
        float64[queries, steps], L or one more: column 0 is the loss of the first decision, that is
        of the first call; column l that of decision l + 1. Not below 0, up to rounding. The
        sum of a row is the regret on that query.

    Raises:
        ValueError: an episode ends at a node at which none can end.

    Source: docs/metrics.md.
    """
    layout = tree.layout
    possible = outcome.Actions(layout, allow_stop).endings
    is_plain = outcome.is_plain(tree)
    impossible = (
        endings[:, : possible.start]
        if is_plain
        else endings[:, : layout.nodes] * ~outcome.possible_ends(tree, possible.start == 1)
    )
    if impossible.any():
        raise ValueError("episodes end before L calls; allow the oracle to stop, too")
    reward = outcome.ending_reward(tree, alpha)[:, : endings.shape[1]]
    earned = endings * reward if is_plain else np.where(endings > 0, endings * reward, 0.0)
    policy_reward = earned.sum(axis=1)
    earned = outcome.endings_by_node(layout, earned)
    if layout.decides_at_leaves:
        # At each node there is a decision, even after the last call. So every node that is called
        # is a state from which the oracle can go on.
        reach = outcome.call_probability(layout, endings)
    else:
        # A decision is made only where a call follows; endings at a node leave nothing to decide.
        reach = outcome.continuation_probability(layout, endings)
    oracle_reward = reach * best_ahead(tree, alpha, allow_stop)
    depth = layout.depth()
    rewards = [policy_reward]  # W of all decisions; the loop adds W(l) for falling l
    for calls, level in reversed(list(enumerate(layout.levels))):
        # After `calls` decisions of the policy an episode is over, or it is at a node of this
        # level. If leaves are states, an episode that ends at this level is not over yet, because
        # the next decision ends it.
        has_ended = depth < calls if layout.decides_at_leaves else depth <= calls
        ended_reward = earned[:, has_ended].sum(axis=1)
        rewards.append(ended_reward + oracle_reward[:, level.states].sum(axis=1))
    changes: outcome.Floats = np.diff(np.stack(rewards[::-1], axis=1), axis=1)
    return -changes


def best_ahead(tree: RouteTree, alpha: float, allow_stop: bool = False) -> outcome.Floats:
    """Compute the highest expected R from each state on.

    Of a call with several draws it is the mean over them, because a policy decides on before it
    knows which one comes.

    Args:
        tree: the queries.
        alpha: cost penalty of R = Q - alpha * C.
        allow_stop: whether episodes may end before L calls.

    Returns:
        float64[queries, S]. An ending at the state itself counts where the layout offers to return
        an answer there, and not otherwise.
    """
    layout = tree.layout
    reward = outcome.ending_reward(tree, alpha)
    if not outcome.is_plain(tree):
        return _best_ahead_with_draws(tree, reward, allow_stop)
    # Of having reached a node. It replaces the rewards of a level's own endings once they are read.
    value = reward[:, : layout.nodes]
    best = np.full((len(tree), layout.states), -np.inf)
    for level in reversed(layout.levels):
        if level.calls:
            best[:, level.inner] = call_values(tree, level, value).max(axis=2)
        for row, _, ending in level.offers():
            state = level.numbers[row]
            best[:, state] = np.maximum(best[:, state], reward[:, ending])
        ahead = best[:, level.states]
        if allow_stop:
            ahead = np.maximum(ahead, value[:, level.states])
        value[:, level.states] = ahead
    return best


def _best_ahead_with_draws(
    tree: RouteTree, reward: outcome.Floats, allow_stop: bool
) -> outcome.Floats:
    """The result of `best_ahead` where queries lack nodes, or calls have several draws.

    An action that calls and stops is chosen before its draw comes.
    """
    layout = tree.layout
    present = outcome.reach_probability(tree) > 0
    dead = outcome.dead_ends(tree)
    # Nodes that a query lacks have weight 0, which needs a finite value.
    value = np.where(present, reward[:, : layout.nodes], 0.0)
    best = np.full((len(tree), layout.states), -np.inf)
    ends = outcome.possible_ends(tree, allow_stop)
    stopped = np.where(ends, value, UNJUDGED_REWARD)
    can_end = np.ones(tree.score.shape, np.bool_) if tree.can_end is None else tree.can_end
    for level in reversed(layout.levels):
        if level.calls:
            values = call_values(tree, level, value)
            if allow_stop:
                values = np.maximum(values, call_values(tree, level, stopped))
            best[:, level.inner] = values.max(axis=2)
        for row, _, ending in level.offers():
            state = level.numbers[row]
            judged = can_end[:, layout.answer_node[ending]]
            offer = np.where(judged, reward[:, ending], -np.inf)
            best[:, state] = np.maximum(best[:, state], offer)
        ahead = best[:, level.states]
        # Where nothing is offered, the episode ends.
        forced = dead[:, level.states] & ~(ahead > -np.inf)
        ahead = np.where(forced, reward[:, : layout.nodes][:, level.states], ahead)
        ahead = np.where(present[:, level.states], ahead, 0.0)
        best[:, level.states] = ahead
        value[:, level.states] = ahead
    return best


def call_values(tree: RouteTree, level: Level, value: outcome.Floats) -> outcome.Floats:
    """Look up the expected value of each call at the inner nodes of a level.

    Args:
        tree: the queries.
        level: of the tree's layout.
        value: float64[queries, nodes], of having reached a node.

    Returns:
        float64[queries, inner nodes of the level, C], the mean over the draws; minus infinity for a
        call that is not offered.
    """
    values = level.gather(value, -np.inf, tree.weight)
    if tree.offered is None:
        return values
    return np.where(tree.offered[:, level.inner], values, -np.inf)


def greedy_decisions(
    tree: RouteTree,
    actions: outcome.Actions,
    choice: outcome.Integers,
    probability: outcome.Floats,
    alpha: float,
) -> tuple[outcome.Integers, outcome.Floats, outcome.Booleans, outcome.Floats]:
    """List every decision of a policy, with its probability and whether it was the best.

    Only decisions with more than one legal action count. Where a call has several draws, those
    after it are listed for each draw, and each counts by the probability of its draws.

    Args:
        tree: the queries.
        actions: what may be chosen.
        choice: int64[queries, S], the action that the policy takes at each state.
        probability: float64[queries, S], how probable it is said to be that it is the best.
        alpha: cost penalty of R = Q - alpha * C.

    Returns:
        int64[n], the position of the query; float64[n], the probability of the chosen action;
        bool[n], whether no other action would have led to a higher R on this very query if the
        policy decides from there on: exact, up to rounding; and float64[n], the probability that
        the decision is due, 1 if each call has one draw.
    """
    layout = tree.layout
    legal = outcome.LegalActions.of(tree, actions).table
    value = np.zeros((len(tree), layout.nodes))  # R of the policy from each node on
    leaves = layout.leaves
    reward = outcome.ending_reward(tree, alpha)
    stopped = reward[:, : layout.nodes]
    value[:, leaves] = stopped[:, leaves]
    loss = np.zeros(choice.shape)  # R that the best action would have added
    for level in reversed(layout.levels):
        nodes = level.numbers
        values = np.full((len(tree), len(nodes), actions.count), -np.inf)
        if level.calls:
            inner = slice(level.inner.stop - level.inner.start)
            values[:, inner, : layout.call_actions] = level.gather(value, -np.inf, tree.weight)
            if actions.allow_stop:
                stopping = level.gather(stopped, -np.inf, tree.weight)
                values[:, inner, layout.call_actions : actions.calls] = stopping
        for row, column, ending in level.give_backs:
            values[:, row, actions.calls + column] = reward[:, ending]
        is_legal = legal[:, nodes]
        values = np.where(is_legal, values, -np.inf)
        own = np.take_along_axis(values, choice[:, nodes, None], axis=2)[:, :, 0]
        # Where nothing is legal, the episode ends with the newest answer.
        own = np.where(is_legal.any(axis=2), own, stopped[:, nodes])
        value[:, nodes] = own
        best = values.max(axis=2)
        # At a state that is never reached the choice may be illegal, and -inf all that follows.
        loss[:, nodes] = np.subtract(best, own, out=np.zeros(own.shape), where=best > own)

    table = np.eye(actions.count)[choice]
    reach = np.ones((len(tree), 1))
    decisions = []
    due = []
    for level in layout.levels:
        nodes = level.numbers
        has_choice = legal[:, nodes].sum(axis=2) > 1
        query, column = np.nonzero((reach > 0) & has_choice)
        decisions.append(np.stack([query, nodes[column]]))
        due.append(reach[query, column])
        calling = table[:, level.states, : layout.call_actions]
        reach = outcome.states_reached(layout, level, reach[:, :, None] * calling, tree.weight)
    query, node = np.concatenate(decisions, axis=1)
    is_best = loss[query, node] <= REWARD_ROUNDING
    return query, probability[query, node], is_best, np.concatenate(due)


# Luck: bounds of trees whose calls have several draws.


def sampled_actions(tree: RouteTree) -> outcome.Booleans:
    """Find bool[C], the actions whose responses are drawn.

    Where the tree does not say it, all are, if any call has several draws.
    """
    if tree.sampled is not None:
        return np.array(tree.sampled, np.bool_)
    return np.full(tree.layout.call_actions, tree.layout.draws > 1)


def has_several_draws(tree: RouteTree) -> bool:
    """Whether some query has several draws of some call, so that luck can be told from skill."""
    layout = tree.layout
    if layout.draws == 1:
        return False
    if tree.weight is None:
        return True
    drawn = tree.weight > 0
    return any(
        bool((level.gather(drawn.astype(np.int64)) > 1).any())
        for level in layout.levels
        if level.calls
    )


@dataclass(frozen=True)
class _Halves:
    """The draws of all calls of a tree, which a split puts into two halves.

    Attributes:
        layout: of the tree.
        runs: int64[queries, nodes]: how many runs each draw stands for, as its weight says: a log
            that merges equal responses gives shares of runs. 0 where the query lacks the node.
        in_both: bool[queries, nodes]: draws that are in both halves, because they are certain, or
            the only ones of their calls.
        is_single: bool[queries, nodes]: the only draws of calls whose responses are drawn, which no
            chooser may look at.
        same_call: int64[queries, nodes], see `RouteTree`; None if each call is at one node.
    """

    layout: Layout
    runs: outcome.Integers
    in_both: outcome.Booleans
    is_single: outcome.Booleans
    same_call: outcome.Integers | None

    @classmethod
    def of(cls, tree: RouteTree) -> _Halves:
        """Look up the draws of a tree."""
        weight = np.ones(tree.score.shape) if tree.weight is None else tree.weight
        runs = np.zeros(weight.shape, np.int64)
        in_both = np.zeros(weight.shape, np.bool_)
        is_single = np.zeros(weight.shape, np.bool_)
        is_certain = ~sampled_actions(tree)[:, None]
        for table, nodes in _draw_tables(tree.layout):
            drawn = _at_draws(weight, table)
            is_only = (drawn > 0).sum(axis=3, keepdims=True) == 1
            runs[:, nodes] = _runs(drawn)[:, table > 0]
            in_both[:, nodes] = np.broadcast_to(is_only | is_certain, drawn.shape)[:, table > 0]
            is_unseen = np.broadcast_to(is_only & ~is_certain, drawn.shape)
            is_single[:, nodes] = is_unseen[:, table > 0]
        return cls(tree.layout, runs, in_both, is_single, tree.same_call)

    def split(self, rng: np.random.Generator) -> tuple[outcome.Floats, outcome.Floats]:
        """Split the draws of each call at random.

        A call that is at several nodes, because equal answers led there, is split once: else the
        judge would see at one of them what the chooser has seen at another.

        Returns:
            Two arrays float64[queries, nodes], the weights in each half, which sum to 1 over the
            draws of a call.
        """
        first = np.zeros_like(self.runs)
        key = rng.random(self.runs.shape)
        tables = [_several_draws(table) for table, _ in _draw_tables(self.layout)]
        for table in tables:
            nodes = table[table > 0]
            runs = _at_draws(self.runs, table)
            half = runs.sum(axis=2) // 2
            if runs.max(initial=0) <= 1:
                order = np.where(runs > 0, _at_draws(key, table), np.inf).argsort(axis=2)
                drawn = (order.argsort(axis=2) < half[:, :, None]) * runs
            else:
                drawn = _draw_runs(runs, half, rng)
            first[:, nodes] = drawn[:, table > 0]
        if self.same_call is not None:
            first = np.take_along_axis(first, self.same_call, axis=1)
        halves = []
        for runs in (first, self.runs - first):
            # A call of one draw, which is in both halves, has one run.
            weight = np.where(self.in_both, self.runs, runs).astype(np.float64)
            for table in tables:
                drawn = _at_draws(weight, table)
                weight[:, table[table > 0]] = _normalized(drawn)[:, table > 0]
            halves.append(weight)
        return halves[0], halves[1]


def _draw_tables(layout: Layout) -> Iterator[tuple[outcome.Integers, outcome.Integers]]:
    """Yield for each level the draws of its calls, and the nodes in their order.

    Yields:
        int64[states, C, D], the node of each draw, 0 where there is none; and int64[n], those
        above 0.
    """
    for level in layout.levels:
        if level.calls:
            table = np.maximum(layout.draws_of_calls[level.inner], 0)
            yield table, table[table > 0]


def _several_draws(table: outcome.Integers) -> outcome.Integers:
    """Select int64[calls, D], those of some calls that may have several draws.

    Args:
        table: int64[states, C, D], the node of each draw, 0 where there is none.
    """
    return table[(table > 0).sum(axis=2) > 1]


def _at_draws(values: NDArray[Any], table: outcome.Integers) -> NDArray[Any]:
    """Look up [queries, ..., D], the values of each draw; 0 where there is none.

    Args:
        values: [queries, nodes].
        table: int64[..., D], the node of each draw, 0 where there is none.
    """
    return values[:, table] * (table > 0)


def _draw_runs(
    runs: outcome.Integers, half: outcome.Integers, rng: np.random.Generator
) -> outcome.Integers:
    """Draw some of the runs of each call, without putting back.

    Args:
        runs: int64[..., D], runs of each draw.
        half: int64[...], how many are drawn.
        rng: source of the draws.

    Returns:
        int64[..., D], the runs of each draw among those.
    """
    drawn = np.zeros_like(runs)
    left = runs.sum(axis=-1)
    for draw in range(runs.shape[-1]):
        count = runs[..., draw]
        left = left - count
        drawn[..., draw] = rng.hypergeometric(count, left, half)
        half = half - drawn[..., draw]
    return drawn


def _runs(weight: outcome.Floats) -> outcome.Integers:
    """Find the least whole numbers that are in the ratio of weights over the last axis.

    Args:
        weight: float64[..., D], which sum to 1, or are all 0.
    """
    runs = np.ceil(weight).astype(np.int64)
    is_open = np.ones(weight.shape[:-1], np.bool_)
    for total in range(1, MAX_RUNS + 1):
        shares = weight * total
        rounded = np.rint(shares)
        fits = is_open & (np.abs(shares - rounded) < RUNS_TOLERANCE).all(axis=-1)
        runs[fits] = rounded[fits].astype(np.int64)
        is_open &= ~fits
        if not is_open.any():
            break
    return runs


def _normalized(weight: outcome.Floats) -> outcome.Floats:
    """Divide weights by their sum over the last axis, where it is above 0."""
    total = weight.sum(axis=-1, keepdims=True)
    return np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)


def split_oracle(
    tree: RouteTree, alpha: float, allow_stop: bool = False, splits: int = LUCK_SPLITS
) -> outcome.Outcome | None:
    """Choose at each state on one half of the draws, and value the choice on the other half.

    Each split divides the draws of all calls. A rule is chosen from the last level up with the
    means over one half, and valued with those over the other; both ways, and in the mean over some
    random splits. So the value is that of a real rule, without bias: it knows less than the means
    over all draws, and no draw that comes. It is a lower bound, in expectation, of what the best
    rule without luck earns; `oracle` is an upper one.

    An action with one draw, though its responses are drawn, is estimated by the mean of this action
    at this place over the other queries, and valued by its draw.

    Args:
        tree: the queries.
        alpha: cost penalty of R = Q - alpha * C.
        allow_stop: whether episodes may end before L calls. An action that calls and stops is
            chosen before its draw comes.
        splits: number of random splits; their seed is fixed.

    Returns:
        The outcome on each query; None if no call has several draws, so that luck cannot be told.
    """
    if not has_several_draws(tree):
        return None
    rng = np.random.default_rng(LUCK_SEED)
    halves = _Halves.of(tree)
    rule = _SplitRule(tree, alpha, allow_stop, halves.is_single)
    sums = {name: np.zeros(len(tree)) for name in OUTCOME_MEASURES}
    for _ in range(splits):
        pair = halves.split(rng)
        for chooser, judge in (pair, pair[::-1]):
            values = rule.value(chooser, judge)
            for name, total in sums.items():
                total += values[name]
    result = {name: total / (2 * splits) for name, total in sums.items()}
    return outcome.Outcome(SPLIT_ORACLE, "oracle", **result)


class _SplitRule:
    """The rule of `split_oracle`: what is best by some draws, valued on other draws.

    Args:
        tree: the queries.
        alpha: cost penalty.
        allow_stop: whether an episode may end before L calls.
        is_single: bool[queries, nodes], draws that the rule may not look at.
    """

    def __init__(
        self, tree: RouteTree, alpha: float, allow_stop: bool, is_single: outcome.Booleans
    ) -> None:
        self._tree = tree
        self._alpha = alpha
        self._allow_stop = allow_stop
        # By the first state of a level: bool[queries, states, C], calls whose draws the rule may
        # not look at, and what it expects of them instead, if there are any.
        self._unseen: dict[int, tuple[outcome.Booleans, _MeansOfOthers | None]] = {}
        for level in tree.layout.levels:
            if level.calls:
                unseen = level.gather(is_single.astype(np.int64)) > 0
                others = _MeansOfOthers(tree, level) if unseen.any() else None
                self._unseen[level.inner.start] = unseen, others
        self._present = outcome.reach_probability(tree) > 0
        self._ends = outcome.possible_ends(tree, allow_stop)
        self._is_open = self._present & ~outcome.dead_ends(tree)
        self._judged = np.ones(self._ends.shape, np.bool_) if tree.can_end is None else tree.can_end
        measures = (tree.score, tree.accuracy, tree.cost, tree.latency)
        self._ended = {
            name: np.where(self._present, values, 0.0)
            for name, values in zip(OUTCOME_MEASURES, measures, strict=True)
        }

    def value(self, chooser: outcome.Floats, judge: outcome.Floats) -> dict[str, outcome.Floats]:
        """Value the rule.

        Args:
            chooser: float64[queries, nodes], the weights of the draws by which the rule chooses.
            judge: float64[queries, nodes], the weights of those that value it.

        Returns:
            float64[queries] by measure.
        """
        value = {name: values.copy() for name, values in self._ended.items()}
        estimate = {name: self._ended[name].copy() for name in ("quality", "cost")}
        for level in reversed(self._tree.layout.levels):
            if level.calls:
                self._choose(level, estimate, value, chooser, judge)
        return {name: values[:, 0] for name, values in value.items()}

    def _choose(
        self,
        level: Level,
        estimate: dict[str, outcome.Floats],
        value: dict[str, outcome.Floats],
        chooser: outcome.Floats,
        judge: outcome.Floats,
    ) -> None:
        """Choose at the states of a level; set what the rule expects there, and what it is worth.

        Args:
            level: the states.
            estimate: float64[queries, nodes] by measure, what the rule expects of a node.
            value: float64[queries, nodes] by measure, what it is worth there.
            chooser, judge: as for `value`.
        """
        tree = self._tree
        ended = self._ended
        # Side by side: all calls, all calls with a stop, and the end without a call.
        seen = [self._estimates(level, estimate, chooser)]
        true = [value]
        cannot = [~_is_offered(tree, level)]
        if self._allow_stop:
            seen.append(self._estimates(level, ended, chooser))
            true.append(ended)
            endless = level.gather((self._present & ~self._ends).astype(np.int64)) > 0
            cannot.append(cannot[0] | endless)
        own = {name: values[:, level.inner, None] for name, values in ended.items()}
        may_return = _newest_offered(tree.layout, level) & self._judged[:, level.inner]
        quality, cost = (
            np.concatenate([*(option[name] for option in seen), own[name]], axis=2)
            for name in ("quality", "cost")
        )
        reward = net_reward(quality, cost, self._alpha)
        # A call that nobody else has tried is the last choice, before what is not offered.
        reward[np.isnan(reward)] = UNJUDGED_REWARD
        reward[np.concatenate([*cannot, ~may_return[:, :, None]], axis=2)] = -np.inf
        flat = np.round(reward.reshape(-1, reward.shape[2]), RANK_DIGITS)
        flat_cost = np.round(np.nan_to_num(cost).reshape(flat.shape), RANK_DIGITS)
        choice = cheapest_best(flat, flat_cost).reshape(*reward.shape[:2], 1)

        def set_chosen(values: outcome.Floats, every: outcome.Floats) -> None:
            """Set the values of the states by those of all options, float64[queries, states, n]."""
            chosen = np.take_along_axis(every, choice, axis=2)[:, :, 0]
            is_open = self._is_open[:, level.inner]
            values[:, level.inner] = np.where(is_open, chosen, values[:, level.inner])

        for name, values in value.items():
            options = [level.gather(option[name], weight=judge) for option in true]
            set_chosen(values, np.concatenate([*options, own[name]], axis=2))
        set_chosen(estimate["quality"], np.nan_to_num(quality))
        set_chosen(estimate["cost"], np.nan_to_num(cost))

    def _estimates(
        self, level: Level, values: Mapping[str, outcome.Floats], chooser: outcome.Floats
    ) -> dict[str, outcome.Floats]:
        """Estimate Q and C of each call, for the rule.

        Args:
            level: the states.
            values: float64[queries, nodes] by measure, of having reached a node.
            chooser: as for `value`.

        Returns:
            float64[queries, inner states of the level, C] by measure; NaN where no query tells it.
        """
        unseen, mean_of_others = self._unseen[level.inner.start]
        result = {}
        for name in ("quality", "cost"):
            seen = level.gather(values[name], weight=chooser)
            if mean_of_others:
                seen = np.where(unseen, mean_of_others(values[name]), seen)
            result[name] = seen
        return result


def _is_offered(tree: RouteTree, level: Level) -> outcome.Booleans:
    """bool[queries, inner states of the level, C]: the calls that a query has."""
    if tree.offered is not None:
        return tree.offered[:, level.inner]
    return np.broadcast_to(level.offered, (len(tree), *level.offered.shape))


def _newest_offered(layout: Layout, level: Level) -> outcome.Booleans:
    """bool[inner states of the level]: whether the layout offers to end with the newest answer."""
    offered = np.zeros(level.inner.stop - level.inner.start, np.bool_)
    for row, _, ending in level.give_backs:
        node = level.numbers[row]
        offered[node - level.inner.start] |= ending == node
    return offered


class _MeansOfOthers:
    """Means of each call over the other queries, at states of the same route.

    Args:
        tree: the queries.
        level: the states.
    """

    def __init__(self, tree: RouteTree, level: Level) -> None:
        layout = tree.layout
        table = layout.draws_of_calls[level.inner]
        route = np.where(table == NOT_OFFERED, -1, layout.route[table]).max(axis=2)
        self._level = level
        self._shape = (len(tree), *route.shape)
        self._is_there = np.ones((len(tree), layout.nodes), np.bool_)
        if tree.weight is not None:
            self._is_there = tree.weight > 0
        # Calls at states of one route side by side, and where each route begins.
        self._order = np.argsort(route.ravel(), kind="stable")
        _, self._starts, counts = np.unique(
            route.ravel()[self._order], return_index=True, return_counts=True
        )
        self._place = np.empty(route.size, np.int64)
        self._place[self._order] = np.repeat(np.arange(len(counts)), counts)
        count = self._sum_by_route(self._is_there.astype(np.float64))
        self._other_count = count.sum(axis=0) - count

    def __call__(self, values: outcome.Floats) -> outcome.Floats:
        """Compute the means.

        Args:
            values: float64[queries, nodes].

        Returns:
            float64[queries, inner states of the level, C]; NaN where no other query has the call.
        """
        total = self._sum_by_route(np.where(self._is_there, values, 0.0))
        other_total = total.sum(axis=0) - total
        mean = np.full_like(total, np.nan)
        np.divide(other_total, self._other_count, out=mean, where=self._other_count > 0)
        return mean[:, self._place].reshape(self._shape)

    def _sum_by_route(self, values: outcome.Floats) -> outcome.Floats:
        """Sum up the calls at states of one route: float64[queries, routes]."""
        calls = self._level.gather(values).reshape(len(values), -1)
        sums: outcome.Floats = np.add.reduceat(calls[:, self._order], self._starts, axis=1)
        return sums


def split_plan_oracle(
    tree: RouteTree,
    alpha: float,
    allow_stop: bool = False,
    splits: int = LUCK_SPLITS,
    ranking: Sequence[int] = (),
) -> outcome.Outcome | None:
    """Choose a fixed route for each query on one half of the draws, valued on the other half.

    Both ways, and in the mean over some random splits of the draws of each call. Routes with a
    single draw of a call are estimated by their mean over the other queries.

    Args:
        tree: the queries.
        alpha: cost penalty of R = Q - alpha * C.
        allow_stop: whether routes of fewer than L calls count.
        splits: number of random splits; their seed is fixed.
        ranking: which routes are taken where a query does not offer the chosen one, see
            `outcome.FixedRoutes`; not from these queries.

    Returns:
        The outcome on each query; None if no call has several draws.
    """
    if not has_several_draws(tree):
        return None
    rng = np.random.default_rng(LUCK_SEED)
    means = outcome.FixedRoutes(tree, allow_stop, ranking)
    listed = means.listed
    reward = means.reward(alpha)[:, listed]
    others = np.full_like(reward, UNJUDGED_REWARD)
    if len(tree) > 1:
        others = (reward.sum(axis=0) - reward) / (len(tree) - 1)
    halves = _Halves.of(tree)
    sums = {name: np.zeros(len(tree)) for name in OUTCOME_MEASURES}
    rows = np.arange(len(tree))
    for _ in range(splits):
        pair = halves.split(rng)
        for chooser, judge in (pair, pair[::-1]):
            seen = means.with_weight(np.where(halves.is_single, 0.0, chooser))
            is_seen = seen.available[:, listed]
            estimate = np.where(is_seen, seen.reward(alpha)[:, listed], others)
            cost = np.where(is_seen, seen.cost[:, listed], 0.0)
            choice = cheapest_best(estimate.round(RANK_DIGITS), cost.round(RANK_DIGITS))
            valued = means.with_weight(judge)
            for name, total in sums.items():
                total += getattr(valued, name)[rows, listed[choice]]
    result = {name: total / (2 * splits) for name, total in sums.items()}
    return outcome.Outcome(SPLIT_PLAN_ORACLE, "oracle", **result)


def luck_of_regret(
    tree: RouteTree,
    alpha: float,
    router: outcome.Outcome,
    fixed: outcome.Outcome | None,
    allow_stop: bool = False,
    ranking: Sequence[int] = (),
) -> dict[str, outcome.Floats] | None:
    """Split the regret of a policy against the clairvoyant oracle into luck and three losses.

    luck = clairvoyant oracle - split oracle: what only knowing the draws brings.
    adaptivity = split oracle - split plan oracle: what choosing after each answer brings.
    plan = split plan oracle - fixed route: what a route for each query brings.
    generalisation = fixed route - policy: what the policy lacks of the fixed route; below 0 is what
    it has over it.

    Args:
        tree: the queries.
        alpha: cost penalty of R = Q - alpha * C.
        router: the policy's outcome.
        fixed: outcome of the best fixed route, chosen on the train fold; None if there is none.
        allow_stop: whether policy and bounds may end before L calls.
        ranking: of the routes on the train fold, see `rank_routes`.

    Returns:
        float64[queries] by term; they sum to R of the clairvoyant oracle less R of the policy.
        "whole" is that sum. None if no call has several draws, or there is no fixed route.

    Source: docs/metrics.md.
    """
    split = split_oracle(tree, alpha, allow_stop)
    plan = split_plan_oracle(tree, alpha, allow_stop, ranking=ranking)
    if split is None or plan is None or fixed is None:
        return None
    rungs = [oracle(tree, alpha, allow_stop), split, plan, fixed, router]
    rewards = [rung.reward(alpha) for rung in rungs]
    names = ("luck", "adaptivity", "plan", "generalisation")
    terms = dict(zip(names, (upper - lower for upper, lower in pairwise(rewards)), strict=True))
    return {"whole": rewards[0] - rewards[-1], **terms}
