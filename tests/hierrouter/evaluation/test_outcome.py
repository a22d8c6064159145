"""Outcomes and actions, exact against enumeration by hand."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.outcome import (
    Actions,
    Outcome,
    ending_probabilities,
    fixed_routes,
    greedy,
    policy_outcome,
    single_calls,
)
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import random_tree

shapes = st.builds(Layout.full, st.integers(1, 4), st.integers(1, 3))
trees = st.builds(random_tree, shapes, st.integers(1, 5), st.integers(0, 2**16))
all_actions = st.builds(Actions, shapes, st.booleans())


def random_table(
    tree: RouteTree, seed: int, *, allow_stop: bool = False, legal: bool = True
) -> np.ndarray:
    """Some policy, that chooses among what is legal, or among all."""
    actions = Actions(tree.layout, allow_stop)
    shape = (len(tree), tree.layout.inner, actions.count)
    weight = np.random.default_rng(seed).gamma(1.0, size=shape)
    weight *= actions.legal() if legal else 1
    return weight / weight.sum(axis=2, keepdims=True)


def every_episode(actions: Actions) -> Iterator[tuple[list[int], int]]:
    """The actions of each episode that can be, legal or not, and the node where it ends."""
    begun = [([], 0)]
    while begun:
        made, node = begun.pop()
        for action in range(actions.count):
            child, _, over = actions.transition(node, action)
            if over:
                yield [*made, action], child
            else:
                begun.append(([*made, action], child))


@given(trees, st.booleans(), st.booleans(), st.integers(0, 2**16))
def test_an_ending_is_the_product_of_the_decisions_on_the_way(
    tree: RouteTree, allow_stop: bool, legal: bool, seed: int
) -> None:
    routes, actions = tree.layout, Actions(tree.layout, allow_stop)
    table = random_table(tree, seed, allow_stop=allow_stop, legal=legal)
    ends = ending_probabilities(actions, table)
    np.testing.assert_allclose(ends.sum(axis=1), 1)
    expected = np.zeros_like(ends)
    for made, node in every_episode(actions):
        path = routes.path(node)
        decisions = [table[:, routes.node(path[:hop]), action] for hop, action in enumerate(made)]
        expected[:, node] += np.prod(decisions, axis=0)
    np.testing.assert_allclose(ends, expected)


@given(trees, st.booleans())
def test_always_taking_a_route_is_worth_that_route(tree: RouteTree, allow_stop: bool) -> None:
    actions = Actions(tree.layout, allow_stop)
    tree = replace(tree, seconds=0.01 * tree.tokens_out)
    depth = tree.layout.depth()[: tree.layout.inner]
    for outcome in fixed_routes(tree, allow_stop):
        route = [tree.models.index(name) for name in outcome.name.removeprefix(">").split(">")]
        if len(route) < tree.hops:
            route[-1] += len(tree.models)  # and stop
        table = np.eye(actions.count)[np.resize(route, tree.hops)[depth]]
        followed = policy_outcome(tree, actions, np.tile(table, (len(tree), 1, 1)), "x", "router")
        np.testing.assert_array_equal(followed.quality, outcome.quality)
        np.testing.assert_array_equal(followed.cost, outcome.cost)
        np.testing.assert_array_equal(followed.accuracy, outcome.accuracy)
        np.testing.assert_array_equal(followed.seconds, outcome.seconds)


@pytest.mark.parametrize(
    ("probabilities", "base_rate", "expected"),
    [
        pytest.param((0.2, 0.5, 0.3), (1, 1, 1), 1, id="the most probable"),
        pytest.param((0.4, 0.4, 0.2), (2, 1, 0.1), 1, id="a tie goes to the cheaper"),
        pytest.param((0.4, 0.2, 0.4), (1, 0.1, 1), 0, id="then to the lower number"),
        pytest.param((0.3, 0.2, 0.3, 0.2), (2, 1), 2, id="with stop, to stopping"),
        pytest.param((0.3, 0.3, 0.3, 0.1), (2, 1), 1, id="but first to the cheaper"),
        pytest.param((0.4, 0.1, 0.1, 0.4), (1, 1), 3, id="stopping goes before the lower number"),
        pytest.param((0.2, 0.2, 0.3, 0.3), (1, 1), 2, id="which comes last"),
    ],
)
def test_greedy(
    probabilities: tuple[float, ...], base_rate: tuple[float, ...], expected: int
) -> None:
    table = greedy(np.array([probabilities]), np.array(base_rate))
    np.testing.assert_array_equal(table, np.eye(len(probabilities))[[expected]])


def test_an_outcome_is_shown_in_one_short_line() -> None:
    one = Outcome("one", "router", np.array([1.0, 0.5]), np.array([1.0, 0]), np.array([2.0, 4]))
    assert repr(one) == "<one on 2 queries: Q 0.7500, C 3.00, right 0.5000>"
    assert repr(fixed_routes(random_tree(Layout.full(1, 1), 0, 0))) == "[<>model-0 on no query>]"


def test_direct_calls_know_their_kind_and_routes_that_stop_early_are_none() -> None:
    tree = random_tree(Layout.full(2, 2), 3, 0)
    direct = [(call.name, call.kind) for call in single_calls(tree)]
    assert direct == [("model-0", "single"), ("model-1", "single"), ("large", "reference")]
    names = [route.name for route in fixed_routes(tree, allow_stop=True)]
    assert names[:3] == [">model-0", ">model-1", "model-0>model-0"]
    assert names[2:] == [route.name for route in fixed_routes(tree)]


@given(all_actions)
def test_there_is_one_legal_way_to_end_at_each_ending(actions: Actions) -> None:
    legal, routes = actions.legal(), actions.layout
    ends = [
        node
        for made, node in every_episode(actions)
        if all(
            legal[routes.node(routes.path(node)[:hop]), action] for hop, action in enumerate(made)
        )
    ]
    assert sorted(ends) == list(range(routes.nodes)[actions.endings])
