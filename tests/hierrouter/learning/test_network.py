"""The network, and exact values of what may be done."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.evaluation.outcome import Actions
from hierrouter.learning import network
from hierrouter.learning.config import TrainConfig
from hierrouter.learning.forward import CHUNK
from hierrouter.learning.network import Router, in_chunks, state_table
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.test_outcome import random_table
from tests.hierrouter.learning.runs import GLIMPSE, OBJECTIVE, small_tree
from tests.hierrouter.trees import random_tree, two_step_tree


def test_chunks_are_put_together_in_order() -> None:
    table = state_table(random_tree(Routes(3, 2), CHUNK // 2, seed=0), OBJECTIVE)
    assert len(table) == 2 * CHUNK
    assert torch.equal(in_chunks(lambda states: states.cost[:, None], table)[:, 0], table.cost)
    some = torch.arange(0, len(table), 3).flip(0)
    assert torch.equal(in_chunks(lambda states: states.cost, table, some), table.cost[some])


def new_router(tree: RouteTree, config: TrainConfig) -> Router:
    torch.manual_seed(0)
    return Router(network.shape_for(tree, Actions(tree.routes), config))


@pytest.mark.parametrize("knows_route", [False, True])
def test_only_a_router_that_knows_the_route_tells_the_nodes_of_a_stage_apart(
    knows_route: bool,
) -> None:
    tree = small_tree()
    router = new_router(tree, replace(GLIMPSE, knows_route=knows_route))
    same = torch.ones(4, tree.dim), torch.arange(4), torch.ones(4), torch.ones(4, 3).bool()
    root, *after = router(network.States(*same))[0].tolist()
    assert len({tuple(logits) for logits in after}) == (3 if knows_route else 1)
    assert root not in after


@pytest.mark.parametrize("scaled", [False, True])
def test_a_plain_start_is_as_torch_makes_one_map(scaled: bool) -> None:
    tree = small_tree()
    config = replace(GLIMPSE, hidden=64, scale_embedding=scaled, plain_start=True)
    router = new_router(tree, config)
    inputs = tree.dim + config.stage_dim + 1
    layers = {router.context: inputs, router.progress: inputs, router.policy: 64, router.value: 64}
    for layer, read in layers.items():
        bound = 1 / math.sqrt(read)
        assert 0.9 * bound < layer.weight.abs().max() <= bound
    assert router.policy.bias.any()


def test_a_router_that_sees_no_text_is_made_without_a_word() -> None:
    tree = two_step_tree(view="stage")
    assert tree.dim == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        router = new_router(tree, GLIMPSE)
    states = state_table(tree, OBJECTIVE).rows(slice(0, 8))
    assert states.embedding.shape == (8, 0)
    assert router(states)[0].shape == (8, 3)


PAYS = 0.05  # alpha
shapes = st.builds(Routes, st.integers(1, 3), st.integers(1, 3))
trees = st.builds(random_tree, shapes, st.integers(1, 4), st.integers(0, 2**16))


@given(trees, st.booleans(), st.integers(0, 2**16))
def test_values_of_an_action_are_those_of_all_that_may_follow(
    tree: RouteTree, allow_stop: bool, seed: int
) -> None:
    """By recursion: where a policy's actions are taken afterwards."""
    actions, pays = Actions(tree.routes, allow_stop), tree.node_reward(PAYS)
    table = random_table(tree, seed, allow_stop=allow_stop, legal=False)

    def value(query: int, node: int, action: int) -> float:
        child, _, over = actions.after(node, action)
        if over:
            return float(pays[query, child])
        below = [value(query, child, after) for after in range(actions.count)]
        return float(table[query, child] @ below)

    reward = torch.from_numpy(pays)
    policy = network.action_values(actions, torch.from_numpy(table), reward).numpy()
    for place in np.ndindex(*policy.shape):
        assert policy[place] == pytest.approx(value(*place))
    found = network.expected_return(actions, torch.from_numpy(table), reward)
    assert found.numpy() == pytest.approx((table[:, 0] * policy[:, 0]).sum(axis=1))
