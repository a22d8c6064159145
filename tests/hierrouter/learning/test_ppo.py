"""Our wiring of Tianshou's PPO computes what Tianshou's own would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tianshou.algorithm import PPO, algorithm_base
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor

from hierrouter.evaluation.outcome import Actions
from hierrouter.learning.config import Objective, PPOConfig
from hierrouter.learning.network import NoisyTable, Router, shape_for, state_table
from hierrouter.learning.ppo import EpisodePPO, SharedTrunk, build_algorithm, to_buffer
from hierrouter.replay.env import walk
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.trees import random_tree

PAYS = 0.05  # alpha on random trees
CONFIG = PPOConfig(
    hidden=16, embedding_noise=0.0, entropy_coefficient=0.05, value_coefficient=0.3, decay=False
)
Update = Callable[[EpisodePPO, Any, int | None, int], Any]


def algorithm_on(tree: RouteTree, actions: Actions) -> EpisodePPO:
    torch.manual_seed(0)
    table = state_table(tree, Objective(PAYS, actions.allow_stop))
    router = Router(shape_for(tree, actions, CONFIG))
    trunk = SharedTrunk(router, NoisyTable(table, 0.0, np.random.default_rng(0)))
    return build_algorithm(trunk, CONFIG, steps=1000, shuffle=np.random.RandomState(1))


def some_buffer(tree: RouteTree, actions: Actions) -> Any:
    """20 episodes of random legal actions."""
    rng, legal = np.random.default_rng(0), actions.legal()
    query = rng.integers(0, len(tree), 20)

    def act(state: np.ndarray) -> np.ndarray:
        chances = legal[state % actions.routes.states] * rng.random((len(state), actions.count))
        return chances.argmax(axis=1)

    return to_buffer(walk(actions, tree.node_reward(PAYS), query, act))


@pytest.mark.parametrize("routes", [Routes(3, 2), Routes(2, 3), Routes(4, 1)], ids=str)
def test_advantages_and_returns_are_tianshous(
    routes: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The loop as the Python it is written in: its compiler takes seconds to start.
    monkeypatch.setattr(algorithm_base, "_gae", algorithm_base._gae.py_func)
    actions = Actions(routes)
    buffer = some_buffer(random_tree(routes, 10, seed=0), actions)
    batch, indices = buffer.sample(0)
    value, following = np.random.default_rng(1).normal(size=(2, len(indices)))
    expected, ours = (
        algorithm.compute_episodic_return(
            batch, buffer, indices, following.copy(), value, gamma=0.9, gae_lambda=0.7
        )
        for algorithm in (PPO, EpisodePPO)
    )
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


def updated(
    actions: Actions, update: Update, size: int | None
) -> tuple[dict[str, Tensor], Any, dict[str, Tensor]]:
    """Weights before, statistics, weights after three passes."""
    tree = random_tree(actions.routes, 10, seed=0)
    algorithm, buffer = algorithm_on(tree, actions), some_buffer(tree, actions)
    before = {name: w.clone() for name, w in algorithm.critic.router.state_dict().items()}
    batch, indices = buffer.sample(0)
    np.random.seed(1)  # Tianshou's own update shuffles with the global generator
    with policy_within_training_step(algorithm.policy):
        batch = algorithm._preprocess_batch(batch, buffer, indices)
        statistics = update(algorithm, batch, size, 3)
    return before, statistics, algorithm.critic.router.state_dict()


# Parts of equal size, a last part that takes up the rest, and all at once.
@pytest.mark.parametrize("size", [4, 7, None])
@pytest.mark.parametrize("allow_stop", [False, True], ids=["fixed length", "with stop"])
def test_weights_and_statistics_are_those_of_tianshous_update(
    allow_stop: bool, size: int | None
) -> None:
    actions = Actions(Routes(3, 2), allow_stop)
    _, stock, expected = updated(actions, PPO._update_with_batch, size)
    before, ours, found = updated(actions, EpisodePPO._update_with_batch, size)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-6)
    assert not torch.equal(before["context.weight"], found["context.weight"])
    assert ours.gradient_steps == stock.gradient_steps
    for name in ("loss", "actor_loss", "vf_loss", "ent_loss"):
        told, known = getattr(ours, name), getattr(stock, name)
        assert (told.mean, told.max) == pytest.approx((known.mean, known.max), rel=1e-4, abs=1e-6)
