"""The split of a regret against episodes walked one decision after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.bounds import best_ahead, oracle, split_regret
from hierrouter.evaluation.outcome import Actions, called, ending, going_on, policy_outcome
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.enumeration import (
    Path,
    alphas,
    node,
    paths,
    reward,
    seeds,
    small_trees,
    unhurried,
)
from tests.hierrouter.evaluation.test_exact import random_table
from tests.hierrouter.trees import planted_tree, random_tree, two_step_tree

Table = np.ndarray


def helped(
    tree: RouteTree, query: int, table: Table, alpha: float, choices: int, path: Path = ()
) -> float:
    """Expected R of who makes the next `choices` choices of a policy, then the best ones."""
    stop = table.shape[2] > len(tree.models)
    if choices == 0:
        ahead = [route for route in paths(tree, stop) if route[: len(path)] == path != route]
        return max(reward(tree, query, route, alpha) for route in ahead)
    total = 0.0
    for action, probability in enumerate(table[query, node(tree, path)]):
        model = action % len(tree.models)
        further = (*path, model)
        if action >= len(tree.models) or len(further) == tree.hops:
            total += probability * reward(tree, query, further, alpha)
        else:
            total += probability * helped(tree, query, table, alpha, choices - 1, further)
    return total


@unhurried
@given(small_trees, seeds, alphas, st.booleans())
def test_each_part_is_what_walking_the_choices_gives(
    tree: RouteTree, seed: int, alpha: float, stop: bool
) -> None:
    table = random_table(tree, seed, allow_stop=stop)
    parts = split_regret(tree, alpha, ending(Actions(tree.routes, stop), table), stop).parts
    assert parts.shape == (len(tree), tree.hops)
    for query in range(len(tree)):
        worth = [helped(tree, query, table, alpha, made) for made in range(tree.hops + 1)]
        np.testing.assert_allclose(parts[query], -np.diff(worth), atol=1e-12)


@unhurried
@given(small_trees, seeds, st.floats(0, 5), st.booleans())
def test_the_parts_add_up_to_the_regret_and_none_is_a_gain(
    tree: RouteTree, seed: int, alpha: float, stop: bool
) -> None:
    actions, table = Actions(tree.routes, stop), random_table(tree, seed, allow_stop=stop)
    split = split_regret(tree, alpha, ending(actions, table), stop)
    policy = policy_outcome(tree, actions, table, "x", "router")
    lost = oracle(tree, alpha, stop).reward(alpha) - policy.reward(alpha)
    np.testing.assert_allclose(split.total, lost, atol=1e-12)
    np.testing.assert_allclose(split.plan + split.adaptivity, lost, atol=1e-12)
    assert (split.parts >= -1e-12).all()


@unhurried
@given(small_trees, seeds, st.booleans())
def test_visits_are_the_sums_of_the_endings_below(tree: RouteTree, seed: int, stop: bool) -> None:
    table = random_table(tree, seed, allow_stop=stop)
    endings = ending(Actions(tree.routes, stop), table)
    visits, deciding = called(tree.routes, endings), going_on(tree.routes, endings)
    for path in [(), *paths(tree, True)]:
        below = [node(tree, route) for route in paths(tree, True) if route[: len(path)] == path]
        here = node(tree, path)
        np.testing.assert_allclose(visits[:, here], endings[:, below].sum(axis=1))
        if len(path) < tree.hops:
            further = [column for column in below if column != here]
            np.testing.assert_allclose(deciding[:, here], endings[:, further].sum(axis=1))


def test_who_sees_the_question_only_loses_by_adaptivity_alone() -> None:
    """The right first model is known; the second one is guessed, right in 2 of 4 cases."""
    tree = two_step_tree().split("train")
    asked = np.array([int(name[-1]) for name in tree.datasets])
    table, rows = np.zeros((len(tree), tree.routes.states, 3)), np.arange(len(tree))
    table[rows, 0, asked] = 1
    table[rows, 1:, (asked + 1) % 3] = 1
    split = split_regret(tree, 0.0, ending(Actions(tree.routes), table))
    assert split.plan.max() == 0
    assert split.adaptivity.mean() == pytest.approx(0.5)


def test_an_oracle_that_may_not_stop_is_no_measure_of_a_policy_that_does() -> None:
    tree = planted_tree()
    endings = np.zeros((len(tree), tree.routes.nodes))
    endings[:, 1] = 1
    with pytest.raises(ValueError, match="end before L calls"):
        split_regret(tree, 0.1, endings)
    assert split_regret(tree, 0.1, endings, allow_stop=True).parts[:, 1].max() == 0


def test_who_may_stop_has_more_ahead_and_who_says_nothing_may_not() -> None:
    tree = random_tree(Routes(2, 3), 5, 0)
    bound, free = (best_ahead(tree, 1.0, stop) for stop in (False, True))
    assert (free >= bound).all()
    assert (free > bound).any()
    np.testing.assert_array_equal(best_ahead(tree, 1.0), bound)
