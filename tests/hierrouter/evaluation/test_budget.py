"""Hulls, optima within budgets, and ceilings."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog
from scipy.sparse import identity, kron

from hierrouter.evaluation import budget as budgets
from hierrouter.evaluation.budget import Ceilings, Hulls, affordable
from hierrouter.evaluation.metrics import frontier
from hierrouter.evaluation.outcome import Actions, ending
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.enumeration import oracle_break_points, seeds, unhurried
from tests.hierrouter.evaluation.test_outcome import every_episode, random_table, shapes, trees
from tests.hierrouter.trees import random_tree

clouds = arrays(
    np.float64,
    st.tuples(st.integers(1, 5), st.integers(1, 8), st.just(2)),
    elements=st.integers(0, 6),
    fill=st.nothing(),
)


@unhurried
@given(clouds)
def test_each_hull_is_that_of_its_own_points(cloud: np.ndarray) -> None:
    spent, worth = cloud[..., 0], cloud[..., 1]
    hulls = Hulls.of(spent, worth)
    assert (np.diff(hulls.slope) <= 0).all()
    for query, (row_cost, row_quality) in enumerate(zip(spent, worth, strict=True)):
        mine = hulls.query == query
        hull = [hulls.start[query], *hulls.after[mine]]
        assert hull == frontier(row_cost, row_quality).tolist()
        assert hulls.before[mine].tolist() == hull[:-1]
        np.testing.assert_array_equal(hulls.cost[mine], np.diff(row_cost[hull]))
        np.testing.assert_array_equal(hulls.quality[mine], np.diff(row_quality[hull]))


def test_points_can_be_left_out() -> None:
    spent, worth = np.array([[1.0, np.inf, 3.0]]), np.array([[0.0, -np.inf, 1.0]])
    hulls = Hulls.of(spent, worth)
    assert (hulls.start.tolist(), hulls.after.tolist(), hulls.slope.tolist()) == ([0], [2], [0.5])


@unhurried
@given(trees, st.booleans())
def test_the_oracle_changes_at_the_slopes_of_the_hulls(tree: RouteTree, stop: bool) -> None:
    endings, slopes = Actions(tree.routes, stop).endings, []
    for spent, worth in zip(tree.cost[:, endings], tree.score[:, endings], strict=True):
        hull = frontier(spent, worth)
        slopes += (np.diff(worth[hull]) / np.diff(spent[hull])).tolist()
    turns = oracle_break_points(tree, stop)
    np.testing.assert_allclose(turns, sorted(slopes))
    if not stop:  # as where nothing is said
        np.testing.assert_array_equal(oracle_break_points(tree), turns)


def test_a_policy_changes_where_groups_of_queries_do() -> None:
    """A dear call is right once in eight: an oracle pays eight times as much as one who hopes."""
    score = np.column_stack([np.zeros(8), np.zeros(8), np.arange(8) == 0]).astype(np.float64)
    ones, rate = np.ones((8, 3), dtype=np.int64), np.array([[0.5, 0.5], [1.0, 1.0]])
    tree = replace(
        random_tree(Routes(2, 1), 8, 0), score=score, tokens_in=ones, tokens_out=ones, rate=rate
    )
    assert oracle_break_points(tree).tolist() == [1.0]
    found = budgets.policy_break_points(tree)
    assert sorted(set(found)) == [1 / 8, 1 / 4, 1 / 2, 1.0]
    assert len(found) == 4 * budgets.GROUP_POINTS
    free = replace(tree, rate=np.zeros_like(rate))
    assert not len(budgets.policy_break_points(free))


@given(trees, st.booleans())
def test_break_points_lie_between_those_of_the_oracle_and_nothing(
    tree: RouteTree, stop: bool
) -> None:
    turns, found = oracle_break_points(tree, stop), budgets.policy_break_points(tree, stop)
    assert (np.diff(found) >= 0).all() and (found > 0).all()
    assert bool(len(found)) >= bool(len(turns))
    assert len(turns) == 0 or found[-1] >= turns[-1]


ROUNDING = 1e-9
shares = st.floats(0, 1.2)


def extremes(tree: RouteTree, stop: bool) -> tuple[float, float]:
    """Least mean cost of any policy, and the mean cost of the dearest routes."""
    cost = tree.cost[:, Actions(tree.routes, stop).endings]
    return cost.min(axis=1).mean(), cost.max(axis=1).mean()


def between(tree: RouteTree, stop: bool, share: float) -> float:
    low, high = extremes(tree, stop)
    return low + share * (high - low)


def programme(tree: RouteTree, budget: float, stop: bool) -> float:
    """The greatest mean quality, by a general solver: one probability for each query and node."""
    endings = Actions(tree.routes, stop).endings
    quality, cost = tree.score[:, endings], tree.cost[:, endings]
    solution = linprog(
        -quality.ravel(),
        A_ub=cost.ravel()[None],
        b_ub=[budget * len(tree) + ROUNDING],
        A_eq=kron(identity(len(tree)), np.ones((1, quality.shape[1]))),
        b_eq=np.ones(len(tree)),
        method="highs",
    )
    assert solution.status == 0
    return -solution.fun / len(tree)


@given(trees, st.booleans(), shares)
def test_the_optimum_at_a_mean_cost_is_that_of_the_linear_programme(
    tree: RouteTree, stop: bool, share: float
) -> None:
    budget = between(tree, stop, share)
    best, expected = budgets.optimum_at_mean_cost(tree, budget, stop), programme(tree, budget, stop)
    assert best.cost.mean() <= budget + ROUNDING
    assert best.quality.mean() == pytest.approx(expected, abs=1e-7)


@given(trees, st.booleans())
def test_a_budget_below_the_cheapest_routes_is_refused(tree: RouteTree, stop: bool) -> None:
    lowest, _ = extremes(tree, stop)
    with pytest.raises(InputError, match="no policy is that cheap") as refused:
        budgets.optimum_at_mean_cost(tree, 0.99 * lowest, stop)
    assert len(str(refused.value)) <= 300
    assert budgets.optimum_at_mean_cost(tree, lowest, stop).cost.mean() == pytest.approx(lowest)


@given(trees, st.booleans(), shares, st.floats(0, 0.5))
def test_the_oracle_within_a_budget_is_that_of_an_enumeration(
    tree: RouteTree, stop: bool, share: float, alpha: float
) -> None:
    budget = between(tree, stop, share)
    best = budgets.optimum_under_budget(tree, budget, alpha, stop)
    endings = range(tree.routes.nodes)[Actions(tree.routes, stop).endings]
    for query in range(len(tree)):
        routes = [(tree.cost[query, node], tree.score[query, node]) for node in endings]
        fitting = [route for route in routes if route[0] <= budget + ROUNDING]
        allowed = fitting or [route for route in routes if route[0] == min(routes)[0]]
        reward = max(quality - alpha * cost for cost, quality in allowed)
        assert best.reward(alpha)[query] == pytest.approx(reward)
        assert best.cost[query] <= max(budget, min(routes)[0]) + ROUNDING


@given(trees, st.booleans(), st.floats(0, 0.5), st.integers(0, 2**16))
def test_the_masked_oracle_is_the_best_route_that_the_mask_leaves(
    tree: RouteTree, stop: bool, alpha: float, seed: int
) -> None:
    actions = Actions(tree.routes, stop)
    rng = np.random.default_rng(seed)
    allowed = rng.random((len(tree), tree.routes.states, actions.count)) < 0.5
    allowed[:, :, rng.integers(tree.routes.models)] = True
    allowed &= actions.legal()
    best = budgets.masked_optimum(tree, actions, allowed, alpha).reward(alpha)
    left = np.zeros((len(tree), tree.routes.nodes), dtype=bool)
    for made, end in every_episode(actions):
        states = [tree.routes.node(tree.routes.path(end)[:hop]) for hop in range(len(made))]
        left[:, end] |= allowed[:, states, made].all(axis=1)
    rewards = np.where(left, tree.node_reward(alpha), -np.inf)
    np.testing.assert_array_equal(best, rewards.max(axis=1))


@given(trees, shares, st.integers(0, 2**16))
def test_a_share_over_a_budget_is_of_taken_routes(tree: RouteTree, share: float, seed: int) -> None:
    budget = between(tree, False, share)
    endings = ending(Actions(tree.routes), random_table(tree, seed))
    over = sum(
        endings[query, node]
        for query in range(len(tree))
        for node in range(tree.routes.nodes)
        if tree.cost[query, node] > budget + ROUNDING
    )
    assert budgets.share_over(tree, endings, budget) == pytest.approx(over / len(tree))


def test_a_route_that_costs_the_budget_itself_is_within_it() -> None:
    tree = replace(random_tree(Routes(1, 3), 1, 0), rate=np.full((1, 2), 0.1))
    tree = replace(tree, tokens_in=np.ones((1, 4), int), tokens_out=np.zeros((1, 4), int))
    assert tree.cost[0, 3] > 0.3  # 0.1 + 0.1 + 0.1 in floating point
    at_the_end = np.array([[0, 0, 0, 1.0]])
    assert budgets.share_over(tree, at_the_end, 0.3) == 0
    assert budgets.share_over(tree, at_the_end, 0.29) == 1


def fold(routes: Routes, queries: int, seed: int) -> RouteTree:
    """A random tree whose prompts grow; a token out costs more than a token in."""
    tree = random_tree(routes, queries, seed)
    rng = np.random.default_rng(seed)
    tokens_in = rng.integers(1, 9, tree.tokens_in.shape) + 6 * routes.depth()
    return replace(tree, tokens_in=tokens_in, rate=0.25 * rng.integers(1, 4, tree.rate.shape))


folds = st.builds(fold, shapes, st.integers(1, 5), seeds)


def to_the_end(
    chosen_on: RouteTree, tree: RouteTree, actions: Actions, node: int, stop: bool, prompt: int
) -> float:
    """Ceiling of the call that leads to a node and of the cheapest calls that must follow."""
    rate_in, rate_out = tree.rate[tree.routes.action(node)]
    total = rate_in * prompt + rate_out * chosen_on.tokens_out[:, node].max()
    if stop or node >= tree.routes.states:
        return total
    options = []
    for model in range(tree.routes.models):
        child = tree.routes.child(node, model)
        growth = (chosen_on.tokens_in[:, child] - chosen_on.tokens_in[:, node]).max()
        for last in {False, actions.allow_stop}:
            options.append(to_the_end(chosen_on, tree, actions, child, last, prompt + growth))
    return total + min(options)


def totals(chosen_on: RouteTree, tree: RouteTree, actions: Actions) -> np.ndarray:
    """What was spent and the ceiling of the rest, for each action one by one; inf: illegal."""
    total = np.full((len(tree), tree.routes.states, actions.count), np.inf)
    for query, state, action in np.ndindex(*total.shape):
        if actions.legal()[state, action]:
            node = int(tree.routes.child(state, actions.model(action)))
            total[query, state, action] = tree.cost[query, state] + to_the_end(
                chosen_on, tree, actions, node, actions.stops(action), tree.tokens_in[query, node]
            )
    return total


@given(shapes, st.integers(1, 3), st.integers(1, 3), st.booleans(), shares, seeds)
def test_what_is_affordable_in_a_tree_or_live_is_what_an_enumeration_of_ceilings_says(
    routes: Routes, trained: int, queries: int, stop: bool, share: float, seed: int
) -> None:
    chosen_on, tree = fold(routes, trained, seed), fold(routes, queries, seed + 1)
    actions, budget = Actions(routes, stop), share * tree.cost.max()
    ceilings, total = Ceilings.of(chosen_on), totals(chosen_on, tree, actions)
    allowed = affordable(ceilings, tree, budget, actions)
    for query, state in np.ndindex(*allowed.shape[:2]):
        fits = total[query, state] <= budget + ROUNDING
        if not fits.any():
            fits[total[query, state].argmin()] = True
        np.testing.assert_array_equal(allowed[query, state], fits)
        prompts = tree.tokens_in[query, routes.child(state, np.arange(routes.models))]
        spent = float(tree.cost[query, state])
        path = routes.path(state)
        live = budgets.affordable_at(ceilings, actions, tree.rate, budget, path, prompts, spent)
        np.testing.assert_array_equal(live, fits)


@given(folds, st.booleans(), shares)
def test_a_query_that_could_start_stays_within_while_the_ceilings_hold(
    tree: RouteTree, stop: bool, share: float
) -> None:
    actions, budget = Actions(tree.routes, stop), share * tree.cost.max()
    allowed = affordable(Ceilings.of(tree), tree, budget, actions)
    could_start = (totals(tree, tree, actions)[:, 0] <= budget).any(axis=1)
    reached = ending(actions, allowed.astype(float)) > 0
    assert (reached & (tree.cost > budget + ROUNDING))[could_start].sum() == 0


def test_a_live_state_needs_the_prompt_of_every_model() -> None:
    tree = fold(Routes(3, 2), 2, seed=0)
    ceilings, actions = Ceilings.of(tree), Actions(tree.routes)
    with pytest.raises(ValueError, match="3 models need as many prompts"):
        budgets.affordable_at(ceilings, actions, tree.rate, 1.0, (), np.array([5]), 0.0)
