"""Metrics against their definitions, on points that can be worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hierrouter.evaluation.metrics import call_mix, cost_save, hull_area, pareto_distance, perf_gain
from hierrouter.evaluation.outcome import Actions, ending
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluation.enumeration import (
    node,
    paths,
    seeds,
    small_trees,
    unhurried,
)
from tests.hierrouter.evaluation.test_exact import random_table
from tests.hierrouter.evaluation.test_hulls import best_at_most

points = arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.just(2)),
    elements=st.integers(0, 6),
    fill=st.nothing(),
)
TWO = np.array([1.0, 3.0]), np.array([0.2, 0.8])


@unhurried
@given(points, st.integers(0, 6), st.integers(1, 4))
def test_the_area_is_the_integral_of_what_each_budget_buys(
    cloud: np.ndarray, low: int, width: int
) -> None:
    """Corners lie at whole costs and the best is linear between them: midpoints are exact."""
    bought = 0.0
    known = sorted({(float(spent), float(worth)) for spent, worth in cloud})
    for budget in range(low, low + width):
        bought += best_at_most(known, budget + 0.5) or 0.0
    assert hull_area(*cloud.T, low, low + width) == pytest.approx(bought)


def test_an_area_by_hand() -> None:
    """0 below cost 1, then from 0.2 to 0.8, then 0.8."""
    assert hull_area(*TWO, 0, 4) == pytest.approx(2 * 0.5 + 0.8)
    assert hull_area(*TWO, 2, 3) == pytest.approx(0.65)
    assert hull_area(*TWO, 0, 1) == 0


def test_an_area_without_a_range_is_refused() -> None:
    with pytest.raises(ValueError, match="range of costs, got 2 to 2"):
        hull_area(*TWO, 2, 2)


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        pytest.param((4, 0.5), 0.5, id="half the cost"),
        pytest.param((1.5, 0.5), 1 - 2 / 1.5, id="dearer"),
        pytest.param((4, 0.1), 0.75, id="the cheapest will do"),
        pytest.param((4, 0.9), None, id="never as good"),
        pytest.param((3, 0.8), 0, id="the arm itself"),
        pytest.param((0, 0.5), None, id="nothing to save"),
    ],
)
def test_cost_saved_at_equal_quality(static: tuple[float, float], expected: float | None) -> None:
    assert cost_save(*TWO, *static) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("static", "expected"),
    [((2, 0.3), 0.2), ((2, 0.6), -0.1), ((9, 0.5), 0.3), ((0.5, 0.1), None), ((1, 0.2), 0)],
    ids=["better", "worse", "with money left", "nothing is as cheap", "the arm itself"],
)
def test_quality_gained_at_equal_cost(static: tuple[float, float], expected: float | None) -> None:
    assert perf_gain(*TWO, *static) == pytest.approx(expected)


def test_a_frontier_of_one_point_saves_and_gains() -> None:
    one = np.array([1.0]), np.array([0.5])
    assert cost_save(*one, 4, 0.4) == pytest.approx(0.75)
    assert cost_save(*one, 4, 0.6) is None
    assert perf_gain(*one, 2, 0.1) == pytest.approx(0.4)
    assert perf_gain(*one, 0.5, 0.1) is None


@pytest.mark.parametrize(
    ("policy", "scale", "expected"),
    [
        ((2, 0.5), 1, 0),
        ((2, 0.9), 1, 0),
        ((9, 0.9), 1, 0),
        ((3, 0.7), 1e-9, 0.1),
        ((9, 0.8), 2, 3),
        ((0, 0.1), 1, 0),
        ((1, 0.0), 1, 0.2),
        ((3, 0.2), 1, 2 * 0.6 / np.hypot(2, 0.6)),
    ],
    ids=[
        "on it",
        "above it",
        "beyond it, and better",
        "straight up where cost counts most",
        "as good, three units dearer",
        "cheaper than the cheapest",
        "as cheap, worse",
        "across an edge",
    ],
)
def test_distance_to_the_frontier(
    policy: tuple[float, float], scale: float, expected: float
) -> None:
    assert pareto_distance(*policy, *TWO, scale) == pytest.approx(expected)


def test_distance_to_a_frontier_of_one_point() -> None:
    one = np.array([1.0]), np.array([0.5])
    assert pareto_distance(4, 0.1, *one, 10) == pytest.approx(0.5)


@unhurried
@given(small_trees, seeds, st.booleans())
def test_the_call_mix_is_what_counting_along_the_routes_gives(
    tree: RouteTree, seed: int, stop: bool
) -> None:
    endings = ending(Actions(tree.routes, stop), random_table(tree, seed, allow_stop=stop))
    expected = np.zeros((len(tree), tree.hops, len(tree.models)))
    for query, path in itertools.product(range(len(tree)), paths(tree, stop)):
        for hop, model in enumerate(path):
            expected[query, hop, model] += endings[query, node(tree, path)]
    mix = call_mix(tree.routes, endings)
    np.testing.assert_allclose(mix, expected)
    np.testing.assert_allclose(mix[:, 0].sum(axis=1), 1)
