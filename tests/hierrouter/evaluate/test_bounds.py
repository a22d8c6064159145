"""No policy beats the oracle, and ties cost as little as they can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluate.bounds import (
    best_fixed_route,
    best_route_per_dataset,
    gap_closed,
    oracle,
    random_policy,
)
from hierrouter.evaluate.exact import policy_outcome
from hierrouter.evaluate.outcome import fixed_routes
from hierrouter_cache.routes import Routes
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluate.test_exact import random_table, trees
from tests.hierrouter.trees import random_tree

alphas = st.floats(0, 5)
ROUNDING = 1e-9


@given(trees, alphas, st.integers(0, 2**16))
def test_nothing_beats_the_oracle_or_loses_to_the_worst_route(
    tree: RouteTree, alpha: float, seed: int
) -> None:
    best = oracle(tree, alpha).reward(alpha)
    worst = tree.reward(alpha).min(axis=1)
    anything = policy_outcome(tree, random_table(tree, seed), "x", "router")
    for outcome in [*fixed_routes(tree), anything, random_policy(tree)]:
        assert (outcome.reward(alpha) <= best + ROUNDING).all()
        assert (outcome.reward(alpha) >= worst - ROUNDING).all()


@given(trees, alphas)
def test_the_best_fixed_route_is_best_where_it_was_chosen(tree: RouteTree, alpha: float) -> None:
    chosen = best_fixed_route(tree, alpha, tree).reward(alpha).mean()
    assert chosen >= max(route.reward(alpha).mean() for route in fixed_routes(tree)) - ROUNDING
    informed = best_route_per_dataset(tree, alpha, tree).reward(alpha).mean()
    assert chosen - ROUNDING <= informed <= oracle(tree, alpha).reward(alpha).mean() + ROUNDING


@given(trees)
def test_the_oracle_breaks_ties_by_cost(tree: RouteTree) -> None:
    leaves = tree.routes.leaves
    quality, cost = tree.score[:, leaves], tree.cost[:, leaves]
    cheapest = np.where(quality == quality.max(axis=1, keepdims=True), cost, np.inf).min(axis=1)
    np.testing.assert_array_equal(oracle(tree, 0.0).cost, cheapest)


def test_equal_routes_go_to_the_cheaper_then_to_the_lower_number() -> None:
    tree = random_tree(Routes(3, 1), 1, 0)
    tree = replace(
        tree,
        score=np.array([[0.0, 1, 1, 1]]),
        tokens_in=np.array([[0, 9, 1, 1]]),
        tokens_out=np.zeros((1, 4), dtype=np.int64),
        rate=np.ones((3, 2)),
    )
    assert best_fixed_route(tree, 0.0, tree).name == "model-1"
    assert oracle(tree, 0.0).cost.tolist() == [1.0]


def test_a_route_is_chosen_on_one_tree_and_taken_on_another() -> None:
    chosen_on, tree = (random_tree(Routes(2, 2), 4, seed) for seed in (1, 2))
    route = best_fixed_route(chosen_on, 0.1, tree)
    leaf = chosen_on.reward(0.1).mean(axis=0).argmax()
    np.testing.assert_array_equal(route.quality, tree.score[:, tree.routes.states + leaf])


def test_an_unknown_dataset_takes_the_best_route_over_all() -> None:
    chosen_on = random_tree(Routes(2, 2), 4, 1)
    tree = replace(chosen_on, datasets=("new",) * 4)
    taken = best_route_per_dataset(chosen_on, 0.1, tree)
    np.testing.assert_array_equal(taken.quality, best_fixed_route(chosen_on, 0.1, tree).quality)


def test_gap_closed() -> None:
    assert gap_closed(router=0.75, fixed=0.5, best=1.0) == 0.5
    assert gap_closed(router=0.9, fixed=0.5, best=0.9) == 1
    assert gap_closed(router=0.5, fixed=0.5, best=0.5) is None
    assert gap_closed(router=0.4, fixed=0.5, best=0.504) is None
