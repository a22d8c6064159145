"""Our update moves the weights to where Tianshou's own update moves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tianshou.algorithm import PPO
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor

from hierrouter.evaluation.outcome import Actions
from hierrouter.learning.config import Objective, PPOConfig
from hierrouter.learning.network import NoisyTable, Router, shape_for, state_table
from hierrouter.learning.ppo import EpisodePPO, SharedTrunk, build_algorithm, to_buffer
from hierrouter.replay.env import walk
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.trees import random_tree

ALPHA = 0.05
CONFIG = PPOConfig(
    hidden=16, embedding_noise=0.0, entropy_coefficient=0.05, value_coefficient=0.3, decay=False
)
EPISODES = 20

Update = Callable[[EpisodePPO, Any, int | None, int], Any]


@pytest.fixture(params=[False, True], ids=["fixed length", "with stop"])
def actions(request: pytest.FixtureRequest) -> Actions:
    return Actions(Routes(3, 2), allow_stop=request.param)


@pytest.fixture
def tree(actions: Actions) -> RouteTree:
    return random_tree(actions.routes, 10, seed=0)


def algorithm_on(tree: RouteTree, actions: Actions) -> EpisodePPO:
    torch.manual_seed(0)
    table = state_table(tree, Objective(ALPHA, actions.allow_stop))
    router = Router(shape_for(tree, actions, CONFIG))
    trunk = SharedTrunk(router, NoisyTable(table, 0.0, np.random.default_rng(0)))
    return build_algorithm(trunk, CONFIG, steps=1000, shuffle=np.random.RandomState(1))


def some_buffer(tree: RouteTree, actions: Actions) -> Any:
    rng, legal = np.random.default_rng(0), actions.legal()
    query = rng.integers(0, len(tree), EPISODES)

    def act(state: np.ndarray) -> np.ndarray:
        chances = legal[state % actions.routes.states] * rng.random((len(state), actions.count))
        return chances.argmax(axis=1)

    return to_buffer(walk(actions, tree.node_reward(ALPHA), query, act))


def updated(
    tree: RouteTree, actions: Actions, update: Update, size: int | None
) -> tuple[dict[str, Tensor], Any, dict[str, Tensor]]:
    """Weights before, statistics, weights after three passes."""
    algorithm = algorithm_on(tree, actions)
    buffer = some_buffer(tree, actions)
    before = {name: w.clone() for name, w in algorithm.critic.router.state_dict().items()}
    batch, indices = buffer.sample(0)
    np.random.seed(1)  # Tianshou's own update shuffles with the global generator
    with policy_within_training_step(algorithm.policy):
        batch = algorithm._preprocess_batch(batch, buffer, indices)
        statistics = update(algorithm, batch, size, 3)
    return before, statistics, algorithm.critic.router.state_dict()


# Parts of equal size, a last part that takes up the rest, and all at once.
@pytest.mark.parametrize("size", [4, 7, None])
def test_weights_are_those_of_tianshous_update(
    tree: RouteTree, actions: Actions, size: int | None
) -> None:
    _, stock, expected = updated(tree, actions, PPO._update_with_batch, size)
    before, ours, found = updated(tree, actions, EpisodePPO._update_with_batch, size)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-6)
    assert not torch.equal(before["context.weight"], found["context.weight"])
    assert ours.gradient_steps == stock.gradient_steps


def test_statistics_are_tianshous(tree: RouteTree, actions: Actions) -> None:
    _, stock, _ = updated(tree, actions, PPO._update_with_batch, 4)
    _, ours, _ = updated(tree, actions, EpisodePPO._update_with_batch, 4)
    for name in ("loss", "actor_loss", "vf_loss", "ent_loss"):
        expected, found = getattr(stock, name), getattr(ours, name)
        assert found.mean == pytest.approx(expected.mean, rel=1e-4, abs=1e-6)
        assert found.max == pytest.approx(expected.max, rel=1e-4, abs=1e-6)
