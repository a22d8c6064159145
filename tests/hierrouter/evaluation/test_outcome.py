"""Outcomes and actions, exact against enumeration by hand."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.outcome import (
    Actions,
    Outcome,
    RouteMeans,
    ending_probabilities,
    fixed_routes,
    greedy,
    policy_outcome,
    single_calls,
    variance_shares,
)
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import lucky_tree, random_tree

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


# Which hop decides.


def shares_by_hand(values: dict[tuple[int, ...], float]) -> list[float]:
    """Main effects and interaction as shares of the variance, from routes and their values."""
    grand = fmean(values.values())
    whole = fmean([(value - grand) ** 2 for value in values.values()])
    shares = []
    for hop in range(len(next(iter(values)))):
        actions = {route[hop] for route in values}
        means = [fmean([values[r] for r in values if r[hop] == action]) for action in actions]
        shares.append(fmean([(mean - grand) ** 2 for mean in means]) / whole)
    return [*shares, 1 - sum(shares)]


def mean_score(tree: RouteTree, query: int, route: tuple[int, ...], node: int = 0) -> float:
    """The mean score of a route over the draws of its calls, by recursion."""
    if not route:
        return float(tree.score[query, node])
    layout = tree.layout
    draws = np.flatnonzero((layout.parent == node) & (layout.action == route[0])).tolist()
    return fmean([mean_score(tree, query, route[1:], draw) for draw in draws])


@pytest.mark.parametrize(
    "tree",
    [
        random_tree(Layout.full(3, 2), 4, 1),
        random_tree(Layout.full(2, 3), 5, 2),
        lucky_tree(3, 6, 2, 3),
    ],
    ids=["3x3", "2x2x2", "draws"],
)
def test_the_shares_of_hops_are_those_of_a_textbook(tree: RouteTree) -> None:
    queries = np.arange(1, len(tree))
    shares = variance_shares(RouteMeans(tree), queries)
    assert shares is not None
    values = {
        route: fmean([mean_score(tree, query, route) for query in queries.tolist()])
        for route in product(range(tree.layout.call_actions), repeat=tree.hops)
    }
    expected = shares_by_hand(values)
    assert [*shares.hops, shares.interaction] == pytest.approx(expected, abs=1e-9)
    assert shares.deviation == pytest.approx(float(np.std(list(values.values()))), abs=1e-9)


def test_planted_effects_of_hops_come_back() -> None:
    """Effects of 3 and 1 on Q at the two hops, and of 1 on their pair: 9/11, 1/11 and 1/11."""
    tree = random_tree(Layout.full(2, 2), 1, 0)
    sign = [-1.0, 1.0]
    score = np.zeros((1, 7))
    for first, second in product((0, 1), repeat=2):
        effect = 3 * sign[first] + sign[second] + sign[first] * sign[second]
        score[0, tree.layout.node((first, second))] = effect
    shares = variance_shares(RouteMeans(replace(tree, score=score)), np.array([0]))
    assert shares is not None
    assert [*shares.hops, shares.interaction] == pytest.approx([9 / 11, 1 / 11, 1 / 11])


@pytest.mark.parametrize(
    "layout",
    [
        Layout.full(3, 1),  # one hop
        Layout.full(1, 3),  # one action
        Layout.grown(3, lambda path: ((0, 1), (2,))[len(path)] if len(path) < 2 else ()),
        Layout.grown(3, lambda path: (0, 1, 2)[len(path) : 3 - path.count(0)]),
        Layout.grown(2, lambda path: (0, 1) if path in ((), (0,)) else ()),  # of two depths
    ],
)
def test_other_routes_have_no_shares_of_hops(layout: Layout) -> None:
    assert variance_shares(RouteMeans(random_tree(layout, 3, 0)), np.arange(3)) is None


def test_equal_routes_have_no_shares_of_hops() -> None:
    tree = random_tree(Layout.full(2, 2), 3, 0)
    equal = replace(tree, score=np.full_like(tree.score, 0.25))
    assert variance_shares(RouteMeans(equal), np.arange(3)) is None
