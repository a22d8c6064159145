"""The network reads tables and single states alike."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from hierrouter.evaluation.outcome import Actions
from hierrouter.learning.network import (
    CHUNK,
    Router,
    action_probabilities,
    cost_scale,
    in_chunks,
    shape_for,
    state_table,
)
from hierrouter_cache.tree import Routes
from tests.hierrouter.learning.runs import GLIMPSE, OBJECTIVE, glimpse, small_tree
from tests.hierrouter.trees import random_tree, two_step_tree


def test_a_table_holds_the_states_in_the_order_of_their_numbers() -> None:
    tree = random_tree(Routes(3, 2), 5, seed=0)
    table = state_table(tree, OBJECTIVE)
    query, node = 3, 2
    states = table.rows(torch.tensor([query * tree.routes.states + node]))
    embedding, stage, cost, legal = states
    np.testing.assert_array_equal(embedding[0], tree.embedding[query, node])
    assert stage.tolist() == [1]
    np.testing.assert_allclose(cost, tree.cost[query, [node]])
    assert legal.tolist() == [[True] * 3]


def test_the_states_of_a_query_stand_together() -> None:
    tree = random_tree(Routes(3, 2), 5, seed=0)
    table = state_table(tree, OBJECTIVE)
    found = table.trees(torch.tensor([3, 1]))
    expected = table.rows(torch.tensor([12, 13, 14, 15, 4, 5, 6, 7]))
    assert all(torch.equal(*columns) for columns in zip(found, expected, strict=True))


def test_chunks_are_put_together_in_order() -> None:
    table = state_table(random_tree(Routes(3, 2), CHUNK // 2, seed=0), OBJECTIVE)
    assert len(table) == 2 * CHUNK
    found = in_chunks(lambda states: states.cost[:, None], table)
    assert torch.equal(found[:, 0], table.cost)
    some = torch.arange(0, len(table), 3).flip(0)
    assert torch.equal(in_chunks(lambda states: states.cost, table, some), table.cost[some])


def test_a_live_state_gets_the_answer_of_the_table() -> None:
    tree = small_tree()
    trained = glimpse(tree)
    table = trained.probabilities(tree)
    for query, node in [(0, 0), (4, 2), (10, 3)]:
        live = tree.embedding[query, node], tree.routes.path(node), float(tree.cost[query, node])
        np.testing.assert_allclose(trained.decide(*live), table[query, node], atol=1e-6)
        assert trained.choose(*live) == table[query, node].argmax()


def test_the_first_layer_is_one_map_of_the_concatenation() -> None:
    tree = small_tree()
    torch.manual_seed(0)
    router = Router(shape_for(tree, Actions(tree.routes), GLIMPSE))
    states = state_table(tree, OBJECTIVE).rows(slice(0, 7))
    embedding, stage, cost, _ = states
    scale, per_cost = router.shape.embedding_scale, router.shape.cost_scale
    joined = torch.cat([embedding * scale, router.stage(stage), cost[:, None] / per_cost], dim=1)
    weight = torch.cat([router.context.weight, router.progress.weight], dim=1)
    first = torch.tanh(joined @ weight.T + router.progress.bias)
    expected = router.policy(torch.tanh(router.second(first)))
    torch.testing.assert_close(router(states)[0], expected)


def test_a_new_router_has_no_favourite() -> None:
    tree = small_tree()
    torch.manual_seed(0)
    probabilities = action_probabilities(
        Router(shape_for(tree, Actions(tree.routes), GLIMPSE)), state_table(tree, OBJECTIVE)
    )
    np.testing.assert_allclose(probabilities, 1 / 3, atol=0.02)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_plain_start_is_as_torch_makes_one_map(scaled: bool) -> None:
    tree = small_tree()
    config = replace(GLIMPSE, hidden=64, scale_embedding=scaled, plain_start=True)
    torch.manual_seed(0)
    router = Router(shape_for(tree, Actions(tree.routes), config))
    inputs = tree.dim + config.stage_dim + 1
    layers = {router.context: inputs, router.progress: inputs, router.policy: 64, router.value: 64}
    for layer, read in layers.items():
        bound = 1 / math.sqrt(read)
        assert 0.9 * bound < layer.weight.abs().max() <= bound
    assert router.policy.bias.any()


def test_without_a_plain_start_the_heads_start_orthogonal() -> None:
    tree = small_tree()
    config = replace(GLIMPSE, scale_embedding=False)
    router = Router(shape_for(tree, Actions(tree.routes), config))
    weight = router.policy.weight
    torch.testing.assert_close(weight @ weight.T, 1e-4 * torch.eye(3))
    assert not router.policy.bias.any()


def test_a_tree_without_costs_is_not_divided_by_zero() -> None:
    assert cost_scale(random_tree(Routes(2, 1), 3, seed=0)) == 1.0


def test_a_router_that_sees_no_text_is_made_without_a_word() -> None:
    tree = two_step_tree(view="stage")
    assert tree.dim == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        router = Router(shape_for(tree, Actions(tree.routes), GLIMPSE))
    states = state_table(tree, OBJECTIVE).rows(slice(0, 8))
    assert states.embedding.shape == (8, 0)
    assert router(states)[0].shape == (8, 3)
