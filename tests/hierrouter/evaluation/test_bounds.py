"""No policy beats the oracle, and ties cost as little as they can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.bounds import (
    best_direct_call,
    best_fixed_route,
    best_route_per_dataset,
    direct_oracle,
    gap_closed,
    oracle,
    random_policy,
)
from hierrouter.evaluation.outcome import (
    Actions,
    Outcome,
    fixed_routes,
    mean_outcome,
    policy_outcome,
    single_calls,
)
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.test_exact import random_table, trees
from tests.hierrouter.trees import random_tree

alphas = st.floats(0, 5)
ROUNDING = 1e-9


@given(trees, st.booleans(), alphas, st.integers(0, 2**16))
def test_nothing_beats_the_oracle_or_loses_to_the_worst_route(
    tree: RouteTree, stop: bool, alpha: float, seed: int
) -> None:
    actions = Actions(tree.routes, stop)
    best = oracle(tree, alpha, stop).reward(alpha)
    worst = tree.node_reward(alpha)[:, actions.endings].min(axis=1)
    table = random_table(tree, seed, allow_stop=stop)
    anything = policy_outcome(tree, actions, table, "x", "router")
    for outcome in [*fixed_routes(tree, stop), anything, random_policy(tree, stop)]:
        assert (outcome.reward(alpha) <= best + ROUNDING).all()
        assert (outcome.reward(alpha) >= worst - ROUNDING).all()


@given(trees, st.booleans(), alphas)
def test_the_best_fixed_route_is_best_where_it_was_chosen(
    tree: RouteTree, stop: bool, alpha: float
) -> None:
    chosen = best_fixed_route(tree, alpha, tree, stop).reward(alpha).mean()
    routes = fixed_routes(tree, stop)
    assert chosen >= max(route.reward(alpha).mean() for route in routes) - ROUNDING
    informed = best_route_per_dataset(tree, alpha, tree, stop).reward(alpha).mean()
    best = oracle(tree, alpha, stop).reward(alpha).mean()
    assert chosen - ROUNDING <= informed <= best + ROUNDING


@given(trees, alphas)
def test_being_allowed_to_stop_costs_the_oracle_nothing(tree: RouteTree, alpha: float) -> None:
    free, bound = (oracle(tree, alpha, stop).reward(alpha) for stop in (True, False))
    assert (free >= bound).all()


@given(trees, st.booleans())
def test_the_oracle_breaks_ties_by_cost(tree: RouteTree, stop: bool) -> None:
    endings = Actions(tree.routes, stop).endings
    quality, cost = tree.score[:, endings], tree.cost[:, endings]
    cheapest = np.where(quality == quality.max(axis=1, keepdims=True), cost, np.inf).min(axis=1)
    np.testing.assert_array_equal(oracle(tree, 0.0, stop).cost, cheapest)


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


def test_each_dataset_takes_its_own_best_route() -> None:
    tree = replace(random_tree(Routes(2, 2), 12, 3), datasets=("a", "b", "c") * 4)
    taken = best_route_per_dataset(tree, 0.1, tree)
    for first in range(3):
        part = tree.select(np.arange(first, 12, 3))
        alone = best_fixed_route(part, 0.1, part)
        np.testing.assert_array_equal(taken.quality[first::3], alone.quality)
        np.testing.assert_array_equal(taken.cost[first::3], alone.cost)


@given(trees, st.sampled_from([0.0, 0.002, 0.01, 0.1]))
def test_direct_calls_are_chosen_by_what_they_are_worth(tree: RouteTree, alpha: float) -> None:
    called = [call for call in single_calls(tree) if call.kind == "single"]
    worth = np.array([call.reward(alpha) for call in called])
    best, each = best_direct_call(tree, alpha, tree), direct_oracle(tree, alpha)
    assert best is not None
    assert each is not None
    assert best.reward(alpha).mean() >= worth.mean(axis=1).max() - ROUNDING
    np.testing.assert_allclose(each.reward(alpha), worth.max(axis=0))


def test_gap_closed() -> None:
    assert gap_closed(router=0.75, fixed=0.5, best=1.0) == 0.5
    assert gap_closed(router=0.9, fixed=0.5, best=0.9) == 1
    assert gap_closed(router=0.5, fixed=0.5, best=0.5) is None
    assert gap_closed(router=0.4, fixed=0.5, best=0.504) is None
    assert gap_closed(router=0.0025, fixed=0.0, best=0.005) == 0.5


def test_the_mean_of_policies_is_that_of_each_query() -> None:
    one = Outcome("one", "router", np.array([1.0, 0.0, 0.5]), np.array([1.0, 0, 0]), np.arange(3.0))
    other = Outcome("two", "route", np.array([0.0, 0.0, 1.0]), np.ones(3), np.array([2.0, 5, 0]))
    mean = mean_outcome([one, other])
    assert (mean.name, mean.kind) == ("one", "router")
    assert mean.quality.tolist() == [0.5, 0.0, 0.75]
    assert mean.accuracy.tolist() == [1.0, 0.5, 0.5]
    assert mean.cost.tolist() == [1.0, 3.0, 1.0]
