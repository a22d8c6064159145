"""Optima under a budget against a linear programme and against enumeration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import identity, kron

from hierrouter.evaluation.budget import (
    masked_optimum,
    optimum_at_mean_cost,
    optimum_under_budget,
    share_over,
)
from hierrouter.evaluation.outcome import Actions, ending, policy_outcome
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.test_exact import random_table, trees
from tests.hierrouter.trees import random_tree

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
    one_each = kron(identity(len(tree)), np.ones((1, quality.shape[1])))
    solution = linprog(
        -quality.ravel(),
        A_ub=cost.ravel()[None],
        b_ub=[budget * len(tree) + ROUNDING],
        A_eq=one_each,
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
    best = optimum_at_mean_cost(tree, budget, stop)
    assert best.cost.mean() <= budget + ROUNDING
    assert best.quality.mean() == pytest.approx(programme(tree, budget, stop), abs=1e-7)


def test_a_hand_made_mean_budget() -> None:
    """Two queries, costs 1 and 3; the first gains 1 by the dear model, the second one half."""
    tree = random_tree(Routes(2, 1), 2, 0)
    tree = replace(
        tree,
        score=np.array([[0, 0.0, 1.0], [0, 0.0, 0.5]]),
        tokens_in=np.array([[0, 1, 3], [0, 1, 3]]),
        tokens_out=np.zeros((2, 3), dtype=np.int64),
        rate=np.ones((2, 2)),
    )
    for budget, quality in [(1, 0), (1.5, 0.25), (2, 0.5), (2.5, 0.625)]:
        assert optimum_at_mean_cost(tree, budget).quality.mean() == pytest.approx(quality)
    enough = optimum_at_mean_cost(tree, 10)
    assert (enough.quality.mean(), enough.cost.mean()) == (0.75, 3)


@given(trees, st.booleans())
def test_a_budget_below_the_cheapest_routes_is_refused(tree: RouteTree, stop: bool) -> None:
    lowest, _ = extremes(tree, stop)
    with pytest.raises(InputError, match="no policy is that cheap") as refused:
        optimum_at_mean_cost(tree, 0.99 * lowest, stop)
    assert len(str(refused.value)) <= 300
    assert optimum_at_mean_cost(tree, lowest, stop).cost.mean() == pytest.approx(lowest)


@given(trees, st.booleans(), shares, st.floats(0, 0.5))
def test_the_oracle_within_a_budget_is_that_of_an_enumeration(
    tree: RouteTree, stop: bool, share: float, alpha: float
) -> None:
    budget = between(tree, stop, share)
    best = optimum_under_budget(tree, budget, alpha, stop)
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
    best = masked_optimum(tree, actions, allowed, alpha).reward(alpha)
    for query in range(len(tree)):
        rewards, open_states = [], [0]
        while open_states:
            state = open_states.pop()
            for action in np.flatnonzero(allowed[query, state]):
                node = int(tree.routes.child(state, actions.model(action)))
                if actions.ends(node, action):
                    rewards.append(tree.node_reward(alpha)[query, node])
                else:
                    open_states.append(node)
        assert best[query] == max(rewards)


@given(trees, shares, st.floats(0, 0.5), st.integers(0, 2**16))
def test_no_policy_that_keeps_to_a_mask_beats_the_masked_oracle(
    tree: RouteTree, share: float, alpha: float, seed: int
) -> None:
    actions = Actions(tree.routes)
    allowed = random_table(tree, seed) > 1 / (len(tree.models) + 1)
    table = np.where(allowed, random_table(tree, seed + 1), 0)
    table /= table.sum(axis=2, keepdims=True)
    kept = policy_outcome(tree, actions, table, "x", "router").reward(alpha)
    assert (kept <= masked_optimum(tree, actions, allowed, alpha).reward(alpha) + ROUNDING).all()


@given(trees, shares, st.integers(0, 2**16))
def test_the_share_over_a_budget_is_that_of_the_routes_taken(
    tree: RouteTree, share: float, seed: int
) -> None:
    budget = between(tree, False, share)
    endings = ending(Actions(tree.routes), random_table(tree, seed))
    over = sum(
        endings[query, node]
        for query in range(len(tree))
        for node in range(tree.routes.nodes)
        if tree.cost[query, node] > budget + ROUNDING
    )
    assert share_over(tree, endings, budget) == pytest.approx(over / len(tree))


def test_a_route_that_costs_the_budget_itself_is_within_it() -> None:
    tree = replace(random_tree(Routes(1, 3), 1, 0), rate=np.full((1, 2), 0.1))
    tree = replace(tree, tokens_in=np.ones((1, 4), int), tokens_out=np.zeros((1, 4), int))
    assert tree.cost[0, 3] > 0.3  # 0.1 + 0.1 + 0.1 in floating point
    at_the_end = np.array([[0, 0, 0, 1.0]])
    assert share_over(tree, at_the_end, 0.3) == 0
    assert share_over(tree, at_the_end, 0.29) == 1
