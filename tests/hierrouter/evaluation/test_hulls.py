"""Hulls of all queries at once against one by one, and the frontier against all policies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hierrouter.evaluation.bounds import oracle
from hierrouter.evaluation.budget import (
    Hulls,
    exact_frontier,
    optimum_at_mean_cost,
    oracle_break_points,
)
from hierrouter.evaluation.metrics import frontier
from hierrouter.evaluation.outcome import mean_points
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.enumeration import (
    alphas,
    cost,
    mean,
    paths,
    quality,
    seeds,
    unhurried,
)
from tests.hierrouter.evaluation.test_exact import trees
from tests.hierrouter.trees import random_tree

clouds = arrays(
    np.float64,
    st.tuples(st.integers(1, 5), st.integers(1, 8), st.just(2)),
    elements=st.integers(0, 6),
    fill=st.nothing(),
)
tiny_shapes = st.sampled_from([Routes(1, 2), Routes(2, 1), Routes(2, 2), Routes(3, 1)])
tiny_trees = st.builds(random_tree, tiny_shapes, st.integers(1, 3), seeds)


def best_at_most(points: list[tuple[float, float]], budget: float) -> float | None:
    """The best mean quality of one policy, or of two that are mixed, within a mean cost."""
    reached = [worth for spent, worth in points if spent <= budget + 1e-9]
    for (low, poor), (high, good) in itertools.permutations(points, 2):
        if low <= budget < high:
            reached.append(poor + (good - poor) * (budget - low) / (high - low))
    return max(reached, default=None)


def every_policy(tree: RouteTree, stop: bool) -> list[tuple[float, float]]:
    """Mean cost and mean quality of every way to give each query a route."""
    queries = range(len(tree))
    options = [
        {(cost(tree, query, path), quality(tree, query, path)) for path in paths(tree, stop)}
        for query in queries
    ]
    points = {
        (mean([spent for spent, _ in chosen]), mean([worth for _, worth in chosen]))
        for chosen in itertools.product(*options)
    }
    best: dict[float, float] = {}
    for spent, worth in points:
        best[spent] = max(worth, best.get(spent, worth))
    return sorted(best.items())


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


def test_points_on_an_edge_are_left_out() -> None:
    spent, worth = np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([[0.0, 1.0, 2.0, 2.5]])
    assert Hulls.of(spent, worth).after.tolist() == [2, 3]


def test_points_can_be_left_out() -> None:
    spent, worth = np.array([[1.0, np.inf, 3.0]]), np.array([[0.0, -np.inf, 1.0]])
    hulls = Hulls.of(spent, worth)
    assert (hulls.start.tolist(), hulls.after.tolist(), hulls.slope.tolist()) == ([0], [2], [0.5])


@unhurried
@given(tiny_trees, st.booleans(), st.floats(0, 1.2))
def test_the_frontier_and_the_mean_budget_are_those_of_all_policies(
    tree: RouteTree, stop: bool, part: float
) -> None:
    policies = every_policy(tree, stop)
    spent, worth = exact_frontier(tree, stop)
    assert spent[0] == pytest.approx(policies[0][0])
    budget = spent[0] + part * (policies[-1][0] - spent[0])
    expected = best_at_most(policies, budget)
    assert np.interp(budget, spent, worth) == pytest.approx(expected)
    best = optimum_at_mean_cost(tree, budget, stop)
    assert best.quality.mean() == pytest.approx(expected)


@unhurried
@given(trees, st.booleans(), alphas)
def test_the_oracle_at_any_alpha_is_on_the_frontier(
    tree: RouteTree, stop: bool, alpha: float
) -> None:
    spent, worth = exact_frontier(tree, stop)
    best = oracle(tree, alpha, stop).reward(alpha).mean()
    assert (worth - alpha * spent).max() == pytest.approx(best, abs=1e-9)
    slopes = np.diff(worth) / np.diff(spent)
    np.testing.assert_allclose(slopes[::-1], oracle_break_points(tree, stop))


@unhurried
@given(trees, st.booleans())
def test_the_oracle_changes_at_its_break_points_and_nowhere_else(
    tree: RouteTree, stop: bool
) -> None:
    points = oracle_break_points(tree, stop)
    if not stop:  # as where nothing is said
        np.testing.assert_array_equal(oracle_break_points(tree), points)
    turns = np.unique(points.round(9))
    edges = np.concatenate([[0], turns, [turns.max(initial=0) + 1]])
    for low, high in itertools.pairwise(edges):
        early, late = (oracle(tree, low + share * (high - low), stop) for share in (0.25, 0.75))
        np.testing.assert_array_equal(early.cost, late.cost)
    changes = [oracle(tree, (low + high) / 2, stop) for low, high in itertools.pairwise(edges)]
    cost, quality = mean_points(changes)
    assert (np.diff(cost) < 0).all()
    assert (np.diff(quality) < 0).all()
