"""What a model adds, against all orders of joining and every sub-pool walked in plain loops."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation import contribution
from hierrouter.evaluation.contribution import contributions, oracle_reward
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation import enumeration as by_hand
from tests.hierrouter.evaluation.enumeration import alphas, paths, small_trees, unhurried
from tests.hierrouter.trees import random_tree

Worth = Callable[[Sequence[int]], float]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def over_all_orders(models: int, worth: Worth) -> np.ndarray:
    """float64[M]: the mean of what each model adds when it joins, over every order."""
    added = np.zeros(models)
    orders = list(itertools.permutations(range(models)))
    for order in orders:
        for place, model in enumerate(order):
            added[model] += worth(order[: place + 1]) - worth(order[:place])
    return added / len(orders)


def best_rewards(tree: RouteTree, query: int, alpha: float, stop: bool) -> Worth:
    def worth(pool: Sequence[int]) -> float:
        known = [by_hand.reward(tree, query, path, alpha) for path in paths(tree, stop, pool)]
        return max(known, default=0.0)

    return worth


@unhurried
@given(small_trees, alphas, st.booleans())
def test_oracle_reward_is_shared_over_all_orders(tree: RouteTree, alpha: float, stop: bool) -> None:
    models = len(tree.models)
    found = contributions(tree, oracle_reward(alpha, stop), rng=rng())
    assert found.models == tree.models
    assert found.error.tolist() == [0] * models
    for query in range(len(tree)):
        worth = best_rewards(tree, query, alpha, stop)
        np.testing.assert_allclose(
            found.shapley[:, query], over_all_orders(models, worth), atol=1e-12
        )
        everyone = range(models)
        without = [[other for other in everyone if other != model] for model in everyone]
        lost = [worth(everyone) - worth(rest) for rest in without]
        np.testing.assert_allclose(found.leave_one_out[:, query], lost, atol=1e-12)


@unhurried
@given(small_trees, alphas)
def test_the_shares_add_up_to_the_worth_of_the_pool(tree: RouteTree, alpha: float) -> None:
    value = oracle_reward(alpha)
    found = contributions(tree, value, rng=rng())
    np.testing.assert_allclose(found.shapley.sum(axis=0), value(tree), atol=1e-12)


def test_drawn_orders_come_near_all_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = random_tree(Routes(4, 2), 30, 1)
    value = oracle_reward(0.125)
    exact = contributions(tree, value, rng=rng())
    monkeypatch.setattr(contribution, "EXACT", 3)
    drawn = contributions(tree, value, rng=rng(), permutations=400)
    np.testing.assert_array_equal(drawn.leave_one_out, exact.leave_one_out)
    np.testing.assert_allclose(drawn.shapley.sum(axis=0), exact.shapley.sum(axis=0))
    apart = (drawn.shapley - exact.shapley).mean(axis=1)
    assert (drawn.error > 0).all()
    assert (np.abs(apart) < 4 * drawn.error).all()
    assert np.abs(apart).max() > 0
    again = contributions(tree, value, rng=rng(), permutations=400)
    np.testing.assert_array_equal(again.shapley, drawn.shapley)
