"""Handing over when in doubt: exact, between chance and the oracle."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hierrouter.evaluation.deferral import DeferringPolicy, best_point, point_within
from hierrouter.evaluation.outcome import (
    Actions,
    Outcome,
    ending_probabilities,
    policy_outcome,
    single_calls,
)
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluation.test_outcome import random_table, trees

ALPHA = 0.1
seeds = st.integers(0, 2**16)


Drawn = tuple[Actions, NDArray[np.float64], NDArray[np.float64], Outcome]


def drawn_policy(tree: RouteTree, seed: int, allow_stop: bool) -> Drawn:
    """A stochastic policy, confidences that tie often, and the larger model's direct calls."""
    table = random_table(tree, seed, allow_stop=allow_stop)
    confidence = np.random.default_rng(seed).integers(0, 5, table.shape[:2]) / 4
    return Actions(tree.layout, allow_stop), table, confidence, single_calls(tree)[-1]


def deferred(tree: RouteTree, policy: Drawn) -> DeferringPolicy:
    actions, table, confidence, stronger = policy
    return DeferringPolicy(tree, ending_probabilities(actions, table), confidence, stronger)


def walked(
    tree: RouteTree, query: int, policy: Drawn, threshold: float, node: int = 0
) -> tuple[float, float, float]:
    """Expected share handed over, Q and C from a node on, one decision after the other."""
    actions, table, confidence, stronger = policy
    if confidence[query, node] < threshold:
        return 1.0, stronger.quality[query], tree.cost[query, node] + stronger.cost[query]
    total = np.zeros(3)
    for action in range(actions.count):
        child, _, over = actions.transition(node, action)
        found: tuple[float, float, float] = (0.0, tree.score[query, child], tree.cost[query, child])
        if table[query, node, action] and not over:
            found = walked(tree, query, policy, threshold, child)
        total += table[query, node, action] * np.array(found)
    share, quality, cost = total
    return share, quality, cost


@given(trees, seeds, st.booleans(), st.sampled_from([-np.inf, 0.1, 0.25, 0.6, 1.0, np.inf]))
def test_it_is_what_walking_every_episode_gives(
    tree: RouteTree, seed: int, allow_stop: bool, threshold: float
) -> None:
    policy = drawn_policy(tree, seed, allow_stop)
    deferrable = deferred(tree, policy)
    outcome = deferrable.outcome(threshold)
    expected = np.array([walked(tree, query, policy, threshold) for query in range(len(tree))])
    assert outcome.quality == pytest.approx(expected[:, 1])
    assert outcome.cost == pytest.approx(expected[:, 2])
    assert deferrable.share(threshold) == pytest.approx(expected[:, 0].mean())


@given(trees, seeds, st.booleans())
def test_the_curve_goes_from_the_policy_to_the_stronger_model(
    tree: RouteTree, seed: int, allow_stop: bool
) -> None:
    policy = drawn_policy(tree, seed, allow_stop)
    curve = deferred(tree, policy).curve(ALPHA)
    kept = policy_outcome(tree, *policy[:2], "x", "router").reward(ALPHA).mean()
    handed = policy[-1].reward(ALPHA).mean()
    first, last = curve[0], curve[-1]
    assert (first.share, last.share) == pytest.approx((0, 1))
    assert (first.reward, first.chance, first.oracle) == pytest.approx((kept,) * 3)
    assert (last.reward, last.chance, last.oracle) == pytest.approx((handed,) * 3)
    shares = [point.share for point in curve]
    assert all(late >= early - 1e-12 for early, late in itertools.pairwise(shares))


@given(trees, seeds, st.booleans())
def test_the_oracle_hands_over_one_episode_after_the_other_and_nothing_beats_it(
    tree: RouteTree, seed: int, allow_stop: bool
) -> None:
    deferrable = deferred(tree, drawn_policy(tree, seed, allow_stop))
    endings, stronger = deferrable.endings, deferrable.stronger
    gain = stronger.reward(ALPHA)[:, None] - tree.node_reward(ALPHA)
    episodes = sorted(zip(gain.ravel(), endings.ravel() / len(tree), strict=True))[::-1]
    for point in (*deferrable.curve(ALPHA), deferrable.point(0.6, ALPHA)):
        expected, left = float((endings * tree.node_reward(ALPHA)).sum() / len(tree)), point.share
        for gained, weight in episodes:
            expected += gained * min(weight, left)
            left -= min(weight, left)
        assert point.oracle == pytest.approx(expected)
        assert max(point.reward, point.chance) <= point.oracle + 1e-9


@given(trees, seeds, st.floats(0, 1))
def test_a_point_is_chosen_by_share_or_by_reward(tree: RouteTree, seed: int, share: float) -> None:
    curve = deferred(tree, drawn_policy(tree, seed, False)).curve(ALPHA)
    point = point_within(curve, share)
    assert point.share <= share + 1e-9
    assert all(other.share <= point.share or other.share > share for other in curve)
    best = best_point(curve)
    assert best.reward == max(other.reward for other in curve)
    assert all(other.share >= best.share for other in curve if other.reward == best.reward)
