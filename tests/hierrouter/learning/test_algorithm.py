"""Our wiring of Tianshou's PPO computes what Tianshou's own would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tianshou.algorithm import PPO, algorithm_base
from tianshou.data import Batch
from tianshou.utils.torch_utils import policy_within_training_step

from hierrouter.evaluation.outcome import Actions
from hierrouter.learning.network import NoisyTable, Router, shape_for, state_table
from hierrouter.learning.ppo import EpisodePPO, SharedTrunk, build_algorithm, to_buffer
from hierrouter.replay.env import walk
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.learning.runs import GLIMPSE, OBJECTIVE
from tests.hierrouter.trees import random_tree

ALPHA = 0.05


@pytest.fixture(params=[Routes(3, 2), Routes(2, 3), Routes(4, 1)], ids=str)
def tree(request: pytest.FixtureRequest) -> RouteTree:
    return random_tree(request.param, 10, seed=0)


@pytest.fixture
def algorithm(tree: RouteTree) -> EpisodePPO:
    """PPO of a new router that has visited every state once."""
    torch.manual_seed(0)
    router = Router(shape_for(tree, Actions(tree.routes), GLIMPSE))
    table = state_table(tree, OBJECTIVE)
    seen = NoisyTable(table, GLIMPSE.embedding_noise, np.random.default_rng(0))
    seen.visit(torch.arange(len(table)))
    shuffle = np.random.RandomState(0)
    return build_algorithm(SharedTrunk(router, seen), GLIMPSE, steps=100, shuffle=shuffle)


def some_buffer(tree: RouteTree) -> Any:
    rng = np.random.default_rng(0)
    query = rng.integers(0, len(tree), 20)
    return to_buffer(
        walk(
            Actions(tree.routes),
            tree.node_reward(ALPHA),
            query,
            lambda s: rng.integers(0, len(tree.models), s.shape),
        )
    )


def test_advantages_and_returns_are_tianshous(
    tree: RouteTree, algorithm: EpisodePPO, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loop as the Python it is written in: its compiler takes seconds to start.
    monkeypatch.setattr(algorithm_base, "_gae", algorithm_base._gae.py_func)
    buffer = some_buffer(tree)
    batch, indices = buffer.sample(0)
    rng = np.random.default_rng(1)
    value, following = rng.normal(size=(2, len(indices)))
    expected = PPO.compute_episodic_return(
        batch, buffer, indices, following.copy(), value, gamma=0.9, gae_lambda=0.7
    )
    ours = algorithm.compute_episodic_return(batch, buffer, indices, following, value, 0.9, 0.7)
    np.testing.assert_allclose(ours[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(ours[1], expected[1], rtol=1e-12)


def test_the_shared_trunk_changes_no_answer(tree: RouteTree, algorithm: EpisodePPO) -> None:
    trunk = algorithm.critic.trunk
    state = np.arange(len(tree))
    with torch.no_grad():
        logits, _ = algorithm.policy.actor(state)
        value = algorithm.critic(state)
        expected = trunk.router(trunk.table.rows(torch.from_numpy(state)))
    torch.testing.assert_close(logits, expected[0])
    torch.testing.assert_close(value[:, 0], expected[1])


def test_the_policy_takes_logits_for_logits(algorithm: EpisodePPO) -> None:
    router = algorithm.critic.router
    with torch.no_grad():
        router.policy.bias[0] = 50.0
        chances = algorithm.policy(Batch(obs=np.arange(4), info=Batch())).dist.probs
    torch.testing.assert_close(chances[:, 0], torch.ones(4))


def test_the_optimiser_holds_every_weight_once(algorithm: EpisodePPO) -> None:
    held = [id(p) for group in algorithm.optim._optim.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in algorithm.critic.router.parameters())


def test_an_update_makes_every_planned_gradient_step(
    tree: RouteTree, algorithm: EpisodePPO
) -> None:
    with policy_within_training_step(algorithm.policy):
        statistics = algorithm.update(some_buffer(tree), 5, repeat=2)
    assert statistics.gradient_steps == 2 * 20 * tree.hops // 5
