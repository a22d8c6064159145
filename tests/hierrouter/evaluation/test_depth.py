"""Where a policy stops, and what going on brings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.calls import Depth, by_depth, depth_curve
from hierrouter.evaluation.outcome import Actions, ending, policy_outcome
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.test_exact import trees
from tests.hierrouter.trees import random_tree


def stopping_table(tree: RouteTree, seed: int) -> tuple[Actions, np.ndarray]:
    actions = Actions(tree.routes, allow_stop=True)
    shape = (len(tree), tree.routes.states)
    table = np.random.default_rng(seed).dirichlet(np.ones(actions.count), shape) * actions.legal()
    return actions, table / table.sum(axis=2, keepdims=True)


@given(trees, st.integers(0, 2**16))
def test_the_depths_add_up_to_the_whole_policy(tree: RouteTree, seed: int) -> None:
    actions, table = stopping_table(tree, seed)
    depths = by_depth(tree, ending(actions, table))
    outcome = policy_outcome(tree, actions, table, "x", "router")
    answered = [depth for depth in depths if depth.share > 0]
    assert [depth.calls for depth in depths] == list(range(1, tree.hops + 1))
    assert sum(depth.share for depth in depths) == pytest.approx(1)
    quality = sum(depth.share * depth.quality for depth in answered)
    assert quality == pytest.approx(outcome.quality.mean())
    assert sum(depth.share * depth.cost for depth in answered) == pytest.approx(outcome.cost.mean())


@given(trees, st.lists(st.integers(0, 2**16), min_size=1, max_size=4, unique=True))
def test_each_point_of_the_curve_is_a_policy(tree: RouteTree, seeds: list[int]) -> None:
    tables = {seed / 1000: stopping_table(tree, seed) for seed in seeds}
    curve = depth_curve(tree, {alpha: ending(*table) for alpha, table in tables.items()})
    assert sorted(point.alpha for point in curve) == sorted(tables)
    assert [point.beyond_first for point in curve] == sorted(point.beyond_first for point in curve)
    for point in curve:
        actions, table = tables[point.alpha]
        outcome = policy_outcome(tree, actions, table, "x", "router")
        depths = by_depth(tree, ending(actions, table))
        assert point.quality == pytest.approx(outcome.quality.mean())
        assert point.cost == pytest.approx(outcome.cost.mean())
        assert point.beyond_first == pytest.approx(sum(depth.share for depth in depths[1:]))
        assert point.calls == pytest.approx(sum(depth.share * depth.calls for depth in depths))


def test_a_hand_made_policy() -> None:
    """One query stops after its first call, the other one draws between stopping and going on."""
    tree = random_tree(Routes(1, 2), 2, 0)
    tree = replace(
        tree,
        score=np.array([[0, 1.0, 0.5], [0, 0.0, 1.0]]),
        tokens_in=np.ones((2, 3), dtype=np.int64),
        tokens_out=np.zeros((2, 3), dtype=np.int64),
        rate=np.ones((1, 2)),
    )
    endings = np.array([[0, 1, 0], [0, 0.5, 0.5]])
    first, second = by_depth(tree, endings)
    assert first == Depth(calls=1, share=0.75, quality=pytest.approx(2 / 3), cost=1.0)
    assert second == Depth(calls=2, share=0.25, quality=1.0, cost=2.0)
    (point,) = depth_curve(tree, {0.1: endings})
    assert (point.beyond_first, point.calls, point.quality, point.cost) == (0.25, 1.25, 0.75, 1.25)


def test_a_depth_without_answers_has_no_means() -> None:
    tree = random_tree(Routes(2, 3), 4, 0)
    table = np.full((4, tree.routes.states, 2), 0.5)
    first, second, third = by_depth(tree, ending(Actions(tree.routes), table))
    assert first == Depth(1, 0.0, None, None)
    assert second == Depth(2, 0.0, None, None)
    assert third.share == pytest.approx(1)
