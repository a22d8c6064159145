"""Values by enumeration against values by definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluate.bounds import random_policy
from hierrouter.evaluate.exact import greedy, policy_outcome, reach
from hierrouter.evaluate.outcome import fixed_routes, single_calls
from hierrouter_cache.routes import Routes
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import random_tree

shapes = st.builds(Routes, st.integers(1, 4), st.integers(1, 3))
trees = st.builds(random_tree, shapes, st.integers(1, 5), st.integers(0, 2**16))


def random_table(tree: RouteTree, seed: int) -> np.ndarray:
    shape = (len(tree), tree.routes.states)
    return np.random.default_rng(seed).dirichlet(np.ones(len(tree.models)), shape)


@given(trees, st.integers(0, 2**16))
def test_reach_is_the_product_of_the_decisions_on_the_way(tree: RouteTree, seed: int) -> None:
    routes, table = tree.routes, random_table(tree, seed)
    arriving = reach(routes, table)
    np.testing.assert_allclose(arriving.sum(axis=1), 1)
    for path in itertools.product(range(routes.models), repeat=routes.hops):
        leaf = routes.node(path) - routes.states
        decisions = [table[:, routes.node(path[:hop]), action] for hop, action in enumerate(path)]
        np.testing.assert_allclose(arriving[:, leaf], np.prod(decisions, axis=0))


@given(trees)
def test_always_taking_a_route_is_worth_that_route(tree: RouteTree) -> None:
    for outcome in fixed_routes(tree):
        actions = [tree.models.index(name) for name in outcome.name.split(">")]
        depth = tree.routes.depth()[: tree.routes.states]
        table = np.eye(len(tree.models))[np.array(actions)[depth]]
        followed = policy_outcome(tree, np.tile(table, (len(tree), 1, 1)), "x", "router")
        np.testing.assert_array_equal(followed.quality, outcome.quality)
        np.testing.assert_array_equal(followed.cost, outcome.cost)
        np.testing.assert_array_equal(followed.accuracy, outcome.accuracy)


@given(trees, st.floats(0, 10))
def test_the_uniform_policy_is_worth_the_mean_of_all_routes(tree: RouteTree, alpha: float) -> None:
    table = np.full((len(tree), tree.routes.states, len(tree.models)), 1 / len(tree.models))
    uniform = policy_outcome(tree, table, "x", "baseline")
    np.testing.assert_allclose(uniform.reward(alpha), tree.reward(alpha).mean(axis=1), atol=1e-9)
    np.testing.assert_allclose(uniform.reward(alpha), random_policy(tree).reward(alpha), atol=1e-9)


@pytest.mark.parametrize(
    ("probabilities", "base_rate", "expected"),
    [
        ((0.2, 0.5, 0.3), (1.0, 1.0, 1.0), 1),
        ((0.4, 0.4, 0.2), (2.0, 1.0, 0.1), 1),
        ((0.4, 0.2, 0.4), (1.0, 0.1, 1.0), 0),
    ],
    ids=["the most probable", "a tie goes to the cheaper", "then to the lower number"],
)
def test_greedy(probabilities: tuple[float], base_rate: tuple[float], expected: int) -> None:
    table = greedy(np.array([probabilities]), np.array(base_rate))
    np.testing.assert_array_equal(table, np.eye(3)[[expected]])


def test_direct_calls_know_which_models_are_in_the_pool() -> None:
    tree = random_tree(Routes(2, 1), 3, 0)
    assert [call.kind for call in single_calls(tree)] == ["single", "single", "reference"]
    assert [call.name for call in single_calls(tree)] == ["model-0", "model-1", "large"]
