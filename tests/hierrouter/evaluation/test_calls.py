"""What a policy answers after how many calls."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation import calls
from hierrouter.evaluation.calls import Depth
from hierrouter.evaluation.outcome import Actions, ending, policy_outcome
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.test_outcome import random_table, trees
from tests.hierrouter.trees import random_tree


@given(trees, st.integers(0, 2**16))
def test_depths_add_up(tree: RouteTree, seed: int) -> None:
    actions = Actions(tree.routes, allow_stop=True)
    table = random_table(tree, seed, allow_stop=True)
    outcome = policy_outcome(tree, actions, table, "x", "router")
    depths = calls.by_depth(tree, ending(actions, table))
    assert [depth.calls for depth in depths] == list(range(1, tree.hops + 1))
    assert sum(depth.share for depth in depths) == pytest.approx(1)
    whole = [
        sum(depth.share * (getattr(depth, name) or 0) for depth in depths)
        for name in ("quality", "cost")
    ]
    assert whole == pytest.approx([outcome.quality.mean(), outcome.cost.mean()])


def test_a_hand_made_policy() -> None:
    """One query stops after its first call, the other one draws between stopping and going on."""
    tree = replace(
        random_tree(Routes(1, 2), 2, 0),
        score=np.array([[0, 1.0, 0.5], [0, 0.0, 1.0]]),
        tokens_in=np.ones((2, 3), dtype=np.int64),
        tokens_out=np.zeros((2, 3), dtype=np.int64),
        rate=np.ones((1, 2)),
    )
    endings = np.array([[0, 1, 0], [0, 0.5, 0.5]])
    first, second = calls.by_depth(tree, endings)
    assert first == Depth(calls=1, share=0.75, quality=pytest.approx(2 / 3), cost=1.0)
    assert second == Depth(calls=2, share=0.25, quality=1.0, cost=2.0)


def test_a_depth_without_answers_has_no_means() -> None:
    tree = random_tree(Routes(2, 3), 4, 0)
    first, second, third = calls.by_depth(tree, ending(Actions(tree.routes), random_table(tree, 0)))
    assert first == Depth(1, 0.0, None, None)
    assert second == Depth(2, 0.0, None, None)
    assert third.share == pytest.approx(1)
