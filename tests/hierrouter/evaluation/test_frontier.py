"""The hull holds every best point, and nothing else."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hierrouter.evaluation.metrics import frontier

# Small whole numbers tie and line up often; sums of products of them are exact.
points = arrays(np.float64, st.tuples(st.integers(1, 12), st.just(2)), elements=st.integers(0, 6))


@given(points, st.integers(0, 8))
def test_the_best_point_at_any_alpha_is_on_the_frontier(cloud: np.ndarray, alpha: int) -> None:
    cost, quality = cloud.T
    hull = frontier(cost, quality)
    reward = quality - alpha * cost
    assert reward[hull].max() == reward.max()


@given(points)
def test_the_frontier_rises_and_flattens(cloud: np.ndarray) -> None:
    cost, quality = cloud.T
    hull = frontier(cost, quality)
    assert (np.diff(cost[hull]) > 0).all()
    assert (np.diff(quality[hull]) > 0).all()
    assert cost[hull[0]] == cost.min()
    assert quality[hull[-1]] == quality.max()
    slopes = np.diff(quality[hull]) / np.diff(cost[hull])
    assert (np.diff(slopes) < 0).all()


def test_the_frontier_is_that_of_an_enumeration() -> None:
    rng = np.random.default_rng(0)
    for roof in [1.0, 0.5] * 60:  # below a line, on which many lie; below a curve, with many steps
        cost = rng.integers(0, 30, 12).astype(float)
        quality = np.floor(30 * (cost / 30) ** roof) - rng.integers(0, 3, 12)
        on_top = [point for point in range(12) if not beaten(point, cost, quality)]
        hull = frontier(cost, quality).tolist()
        assert hull == sorted(on_top, key=lambda point: cost[point])


def beaten(point: int, cost: np.ndarray, quality: np.ndarray) -> bool:
    """By another point, or by what lies between two others."""
    across, up = cost - cost[point], quality - quality[point]
    same = np.flatnonzero((across == 0) & (up == 0))
    if same[0] < point or ((across <= 0) & (up >= 0) & ((across != 0) | (up != 0))).any():
        return True
    left, right = np.flatnonzero(across < 0), np.flatnonzero(across > 0)
    return any(up[a] * across[b] >= up[b] * across[a] for a in left for b in right)


def test_a_hand_made_frontier() -> None:
    cost = np.array([1.0, 2, 3, 4, 2])
    quality = np.array([0.0, 3, 4, 4, 1])
    assert frontier(cost, quality).tolist() == [0, 1, 2]
