"""Frontiers, hulls, and optima within budgets."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog
from scipy.sparse import identity, kron

from hierrouter.evaluation import budget as budgets
from hierrouter.evaluation.budget import Hulls
from hierrouter.evaluation.outcome import Actions
from hierrouter_cache.errors import InputError
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluation.enumeration import oracle_break_points, unhurried
from tests.hierrouter.evaluation.test_outcome import trees
from tests.hierrouter.trees import random_tree

clouds = arrays(
    np.float64,
    st.tuples(st.integers(1, 5), st.integers(1, 8), st.just(2)),
    elements=st.integers(0, 6),
    fill=st.nothing(),
)


def frontier(cost: np.ndarray, quality: np.ndarray) -> np.ndarray:
    """Positions of the points on the hull, from the cheapest to the best, one after the other."""

    def slope(left: int, right: int) -> float:
        return float((quality[right] - quality[left]) / (cost[right] - cost[left]))

    hull: list[int] = []
    for point in np.lexsort((-quality, cost)).tolist():
        if hull and quality[point] <= quality[hull[-1]]:
            continue
        while len(hull) > 1 and slope(*hull[-2:]) <= slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return np.array(hull, dtype=np.int64)


@given(clouds)
def test_the_best_point_at_any_alpha_is_on_the_frontier(cloud: np.ndarray) -> None:
    cost, quality = cloud[0].T
    hull = frontier(cost, quality)
    reward = quality - np.linspace(0, 8, 400)[:, None] * cost
    assert (reward[:, hull].max(axis=1) >= reward.max(axis=1) - 1e-9).all()
    assert (cost[hull[0]], quality[hull[-1]]) == (cost.min(), quality.max())
    assert (np.diff(cost[hull]) > 0).all()
    assert (np.diff(np.diff(quality[hull]) / np.diff(cost[hull])) < 0).all()


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
    endings, slopes = Actions(tree.layout, stop).endings, []
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
        random_tree(Layout.full(2, 1), 8, 0),
        score=score,
        tokens_in=ones,
        tokens_out=ones,
        rate=rate,
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
    cost = tree.cost[:, Actions(tree.layout, stop).endings]
    return cost.min(axis=1).mean(), cost.max(axis=1).mean()


def programme(tree: RouteTree, budget: float, stop: bool) -> float:
    """The greatest mean quality, by a general solver: one probability for each query and node."""
    endings = Actions(tree.layout, stop).endings
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
    low, high = extremes(tree, stop)
    budget = low + share * (high - low)
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


def test_a_route_that_costs_the_budget_itself_is_within_it() -> None:
    tree = replace(random_tree(Layout.full(1, 3), 1, 0), rate=np.full((1, 2), 0.1))
    tree = replace(tree, tokens_in=np.ones((1, 4), int), tokens_out=np.zeros((1, 4), int))
    assert tree.cost[0, 3] > 0.3  # 0.1 + 0.1 + 0.1 in floating point
    assert budgets.within_budget(tree.cost[0, 3], 0.3) and not budgets.within_budget(
        tree.cost[0, 3], 0.29
    )
