"""Values on whole trees are those of the episodes, one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.outcome import Actions, policy_outcome
from hierrouter.learning.network import action_values, best_and_random_values, expected_return
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.test_exact import every_episode, random_table
from tests.hierrouter.trees import random_tree

PAYS = 0.05  # alpha
shapes = st.builds(Routes, st.integers(1, 3), st.integers(1, 3))
trees = st.builds(random_tree, shapes, st.integers(1, 4), st.integers(0, 2**16))


def after(actions: Actions, table: np.ndarray, reward: np.ndarray, state: int, action: int):
    """float64[queries]: the sum over all episodes that go through this action at this state."""
    routes, value = actions.routes, np.zeros(len(reward))
    begun = (*routes.path(state), action)
    for made, node in every_episode(actions):
        if tuple(made[: len(begun)]) == begun:
            hops = range(len(begun), len(made))
            path = routes.path(node)
            later = [table[:, routes.node(path[:hop]), made[hop]] for hop in hops]
            chance = np.prod(later, axis=0)
            value += chance * reward[:, node]
    return value


@given(trees, st.booleans(), st.integers(0, 2**16))
def test_an_actions_value_is_the_mean_over_all_that_may_follow(
    tree: RouteTree, allow_stop: bool, seed: int
) -> None:
    actions = Actions(tree.routes, allow_stop)
    table = random_table(tree, seed, allow_stop=allow_stop, legal=False)
    reward = tree.node_reward(PAYS)
    found = action_values(actions, torch.from_numpy(table), torch.from_numpy(reward)).numpy()
    assert found.shape == table.shape
    for state in range(tree.routes.states):
        for action in range(actions.count):
            expected = after(actions, table, reward, state, action)
            np.testing.assert_allclose(found[:, state, action], expected, atol=1e-12)


@pytest.mark.parametrize(
    "actions",
    [Actions(Routes(3, 2)), Actions(Routes(2, 3)), Actions(Routes(2, 3), True)],
    ids=["3x2", "2x3", "2x3 stop"],
)
def test_the_expected_return_is_that_of_the_exact_evaluation(actions: Actions) -> None:
    tree = random_tree(actions.routes, 4, seed=2)
    legal = actions.legal()
    chances = np.random.default_rng(0).random((4, *legal.shape)) * legal
    chances /= chances.sum(axis=2, keepdims=True)
    found = expected_return(
        actions, torch.from_numpy(chances), torch.from_numpy(tree.node_reward(PAYS))
    )
    expected = policy_outcome(tree, actions, chances, "", "router").reward(PAYS)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@given(trees, st.booleans())
def test_the_best_and_the_mean_are_those_of_all_that_may_follow(
    tree: RouteTree, allow_stop: bool
) -> None:
    actions = Actions(tree.routes, allow_stop)
    pays = tree.node_reward(PAYS)

    def value(query: int, node: int, action: int) -> tuple[float, float]:
        child = tree.routes.child(node, int(actions.model(action)))
        if actions.ends(child, action):
            return pays[query, child], pays[query, child]
        below = [value(query, child, after) for after in range(actions.count)]
        return max(best for best, _ in below), float(np.mean([mean for _, mean in below]))

    found = best_and_random_values(actions, torch.from_numpy(pays)).numpy()
    for query, node, action in np.ndindex(*found.shape[:3]):
        assert tuple(found[query, node, action]) == pytest.approx(value(query, node, action))
