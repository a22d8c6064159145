"""Frontiers and call mixes."""

import itertools

import numpy as np
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
