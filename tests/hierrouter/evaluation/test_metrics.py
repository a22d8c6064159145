"""Frontiers, their figures, and the figures of a pair."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hierrouter.evaluation import metrics
from hierrouter.evaluation.outcome import Actions, ending
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluation.enumeration import node, paths, seeds, small_trees, unhurried
from tests.hierrouter.evaluation.test_outcome import random_table

# Small whole numbers tie and line up often; sums of products of them are exact.
clouds = arrays(np.float64, st.tuples(st.integers(1, 12), st.just(2)), elements=st.integers(0, 6))


@given(clouds, st.integers(0, 8))
def test_the_best_point_at_any_alpha_is_on_the_frontier(cloud: np.ndarray, alpha: int) -> None:
    cost, quality = cloud.T
    hull = metrics.frontier(cost, quality)
    reward = quality - alpha * cost
    assert reward[hull].max() == reward.max()
    assert (cost[hull[0]], quality[hull[-1]]) == (cost.min(), quality.max())
    assert (np.diff(cost[hull]) > 0).all()
    assert (np.diff(np.diff(quality[hull]) / np.diff(cost[hull])) < 0).all()


def test_the_frontier_is_that_of_an_enumeration() -> None:
    rng = np.random.default_rng(0)
    for roof in [1.0, 0.5] * 60:  # below a line, on which many lie; below a curve, with many steps
        cost = rng.integers(0, 30, 12).astype(float)
        quality = np.floor(30 * (cost / 30) ** roof) - rng.integers(0, 3, 12)
        on_top = [point for point in range(12) if not beaten(point, cost, quality)]
        hull = metrics.frontier(cost, quality).tolist()
        assert hull == sorted(on_top, key=lambda point: cost[point])


def beaten(point: int, cost: np.ndarray, quality: np.ndarray) -> bool:
    """By another point, or by what lies between two others."""
    across, up = cost - cost[point], quality - quality[point]
    same = np.flatnonzero((across == 0) & (up == 0))
    if same[0] < point or ((across <= 0) & (up >= 0) & ((across != 0) | (up != 0))).any():
        return True
    left, right = np.flatnonzero(across < 0), np.flatnonzero(across > 0)
    return any(up[a] * across[b] >= up[b] * across[a] for a in left for b in right)


points = arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.just(2)),
    elements=st.integers(0, 6),
    fill=st.nothing(),
)
TWO = np.array([1.0, 3.0]), np.array([0.2, 0.8])


def best_at_most(points: list[tuple[float, float]], budget: float) -> float | None:
    """The best mean quality of one policy, or of two that are mixed, within a mean cost."""
    reached = [worth for spent, worth in points if spent <= budget + 1e-9]
    for (low, poor), (high, good) in itertools.permutations(points, 2):
        if low <= budget < high:
            reached.append(poor + (good - poor) * (budget - low) / (high - low))
    return max(reached, default=None)


@unhurried
@given(points, st.integers(0, 6), st.integers(1, 4))
def test_the_area_integrates_what_each_budget_buys(cloud: np.ndarray, low: int, width: int) -> None:
    """Corners lie at whole costs and the best is linear between them: midpoints are exact."""
    bought = 0.0
    known = sorted({(float(spent), float(worth)) for spent, worth in cloud})
    for budget in range(low, low + width):
        bought += best_at_most(known, budget + 0.5) or 0.0
    assert metrics.area_under(
        *cloud[metrics.frontier(*cloud.T)].T, low, low + width
    ) == pytest.approx(bought)


def test_an_area_by_hand() -> None:
    """0 below cost 1, then from 0.2 to 0.8, then 0.8."""
    assert metrics.area_under(*TWO, 0, 4) == pytest.approx(2 * 0.5 + 0.8)
    assert metrics.area_under(*TWO, 2, 3) == pytest.approx(0.65)
    assert metrics.area_under(*TWO, 0, 1) == 0
    for low in (2, 3):
        with pytest.raises(ValueError, match=f"range of costs, got {low} to 2"):
            metrics.area_under(*TWO, low, 2)


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        pytest.param((4, 0.5), 0.5, id="half the cost"),
        pytest.param((1.5, 0.5), 1 - 2 / 1.5, id="dearer"),
        pytest.param((4, 0.1), 0.75, id="the cheapest will do"),
        pytest.param((4, 0.9), None, id="never as good"),
        pytest.param((3, 0.8), 0, id="the arm itself"),
        pytest.param((0, 0.5), None, id="nothing to save"),
        pytest.param((0.5, 0.1), -1, id="an arm that is cheaper than all"),
    ],
)
def test_cost_saved_at_equal_quality(static: tuple[float, float], expected: float | None) -> None:
    assert metrics.cost_save(*TWO, *static) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("static", "expected"),
    [((2, 0.3), 0.2), ((2, 0.6), -0.1), ((9, 0.5), 0.3), ((0.5, 0.1), None), ((1, 0.2), 0)],
    ids=["better", "worse", "with money left", "nothing is as cheap", "the arm itself"],
)
def test_quality_gained_at_equal_cost(static: tuple[float, float], expected: float | None) -> None:
    assert metrics.perf_gain(*TWO, *static) == pytest.approx(expected)


def test_a_frontier_of_one_point_and_the_second_edge_of_another() -> None:
    one = np.array([1.0]), np.array([0.5])
    assert metrics.cost_save(*one, 4, 0.4) == pytest.approx(0.75)
    assert metrics.cost_save(*one, 4, 0.6) is None
    assert metrics.perf_gain(*one, 2, 0.1) == pytest.approx(0.4)
    assert metrics.perf_gain(*one, 0.5, 0.1) is None
    assert metrics.pareto_distance(4, 0.1, *one, 10) == pytest.approx(0.5)
    three = np.array([0.0, 1.0, 3.0]), np.array([0.0, 0.5, 0.7])
    assert metrics.pareto_distance(2, 0.5, *three, 1) == pytest.approx(0.2 / np.hypot(2, 0.2))


@pytest.mark.parametrize(
    ("policy", "scale", "expected"),
    [
        pytest.param((2, 0.5), 1, 0, id="on it"),
        pytest.param((2, 0.9), 1, 0, id="above it"),
        pytest.param((9, 0.9), 1, 0, id="beyond it, and better"),
        pytest.param((3, 0.7), 1e-9, 0.1, id="straight up where cost counts most"),
        pytest.param((9, 0.8), 2, 3, id="as good, three units dearer"),
        pytest.param((0, 0.1), 1, 0, id="cheaper than the cheapest"),
        pytest.param((1, 0.0), 1, 0.2, id="as cheap, worse"),
        pytest.param((3, 0.2), 1, 2 * 0.6 / np.hypot(2, 0.6), id="across an edge"),
    ],
)
def test_distance_to_a_frontier(policy: tuple[float, float], scale: float, expected: float) -> None:
    assert metrics.pareto_distance(*policy, *TWO, scale) == pytest.approx(expected)


@unhurried
@given(small_trees, seeds, st.booleans())
def test_a_call_mix_is_what_counting_routes_gives(tree: RouteTree, seed: int, stop: bool) -> None:
    endings = ending(Actions(tree.routes, stop), random_table(tree, seed, allow_stop=stop))
    expected = np.zeros((len(tree), tree.hops, len(tree.models)))
    for query, path in itertools.product(range(len(tree)), paths(tree, stop)):
        for hop, model in enumerate(path):
            expected[query, hop, model] += endings[query, node(tree, path)]
    mix = metrics.call_mix(tree.routes, endings)
    np.testing.assert_allclose(mix, expected)
    np.testing.assert_allclose(mix[:, 0].sum(axis=1), 1)


STEP = np.array([0, 0.5, 1]), np.array([0.2, 0.6, 0.6])


@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_a_router_without_an_opinion_is_chance(share: float) -> None:
    chance = np.array([0.0, 1]), np.array([0.2, 0.9])
    assert metrics.apgr(*chance) == pytest.approx(0.5)
    assert metrics.call_performance_threshold(*chance, share) == pytest.approx(share)


def test_a_step_by_hand() -> None:
    """All of the gap with half of the calls: the triangle and the square."""
    assert metrics.apgr(*STEP) == pytest.approx(0.25 + 0.5)
    assert metrics.call_performance_threshold(*STEP, 0.5) == pytest.approx(0.25)
    assert metrics.call_performance_threshold(*STEP, 0.8) == pytest.approx(0.4)
    assert metrics.call_performance_threshold(*STEP, 1.0) == pytest.approx(0.5)


def test_the_least_share_counts_where_more_calls_do_harm() -> None:
    share, quality = np.array([0, 0.25, 0.5, 1]), np.array([0.2, 0.7, 0.4, 0.6])
    assert metrics.call_performance_threshold(share, quality, 1.0) == pytest.approx(0.2)
    late = np.array([0.2, 0.1, 0.3, 0.15, 0.6])
    found = metrics.call_performance_threshold(np.linspace(0, 1, 5), late, 0.5)
    assert found == pytest.approx(0.75 + 0.25 * 0.25 / 0.45)
    assert metrics.apgr(np.array([0.0, 1]), np.array([0, 0.005])) == pytest.approx(
        0.5
    )  # just a gap
    recovered = metrics.gap_recovered(quality)
    assert recovered is not None
    assert recovered.tolist() == pytest.approx([0, 1.25, 0.5, 1])


@pytest.mark.parametrize("strong", [0.2, 0.1, 0.204], ids=["equal", "worse", "hardly better"])
def test_without_a_gap_nothing_is_defined(strong: float) -> None:
    curve = np.array([0.0, 1]), np.array([0.2, strong])
    assert metrics.apgr(*curve) is None
    assert metrics.call_performance_threshold(*curve, 0.5) is None
