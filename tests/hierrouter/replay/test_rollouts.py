"""Batched rollouts play the very episodes that environments one by one would."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.data.buffer import manager
from tianshou.env import DummyVectorEnv

from hierrouter.replay.bridge import to_buffer
from hierrouter.replay.env import ReplayEnv
from hierrouter.replay.rollouts import QueryStream, Rollouts, walk
from hierrouter_cache.routes import Routes
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluate.test_exact import shapes
from tests.hierrouter.trees import random_tree

ALPHA = 0.05
QUERIES = 12


def scripted(models: int, state: np.ndarray) -> np.ndarray:
    """Some fixed function from states to actions."""
    return (7919 * state + state // 3) % models


@given(shapes, st.integers(0, 2**16))
def test_walking_together_is_walking_alone(routes: Routes, seed: int) -> None:
    tree = random_tree(routes, 4, seed)
    query = np.random.default_rng(seed).integers(0, 4, 9)
    rollouts = walk(routes, tree.reward(ALPHA), query, lambda s: scripted(routes.models, s))
    env = ReplayEnv(tree, ALPHA)
    for episode, position in enumerate(query):
        _, info = env.reset(options={"query": position})
        for hop in range(routes.hops):
            assert rollouts.state[episode, hop] == info["state"]
            _, reward, _, _, info = env.step(rollouts.action[episode, hop])
            assert rollouts.reward[episode, hop] == reward


@given(st.integers(1, 30), st.lists(st.integers(0, 40), max_size=8), st.integers(0, 99))
def test_no_query_comes_twice_before_all_have_come_once(
    queries: int, draws: list[int], seed: int
) -> None:
    stream = QueryStream(queries, np.random.default_rng(seed))
    drawn = np.concatenate([np.empty(0, dtype=np.int64), *map(stream.draw, draws)])
    assert len(drawn) == sum(draws)
    for start in range(0, len(drawn), queries):
        epoch = drawn[start : start + queries]
        assert len(set(epoch.tolist())) == len(epoch)


def test_there_must_be_a_query_to_draw() -> None:
    with pytest.raises(ValueError, match="no queries"):
        QueryStream(0, np.random.default_rng(0))


class NumberedEnv(gymnasium.Env):  # type: ignore[misc]
    """`ReplayEnv` on one query, its observation the state number, 0 where the episode has ended."""

    def __init__(self, tree: RouteTree, query: int) -> None:
        self.env = ReplayEnv(tree, ALPHA)
        self.query = query
        self.action_space = self.env.action_space
        self.observation_space = spaces.Discrete(len(tree) * tree.routes.states)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        _, info = self.env.reset(seed=seed, options={"query": self.query})
        return info["state"], {}

    def step(self, action: np.int64) -> tuple[int, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = self.env.step(action)
        return max(info["state"], 0), reward, terminated, truncated, {}


class ScriptedPolicy(Policy):  # type: ignore[misc]
    """Tianshou's view of `scripted`."""

    @staticmethod
    def _compile() -> None:
        """Nothing: a compiler takes longer to start than this file's tests take."""

    def forward(self, batch: Any, state: Any = None, **_: Any) -> Batch:
        return Batch(act=scripted(self.action_space.n, batch.obs), state=None)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tianshou's compiled loops as the Python they are written in."""
    for name in ("_prev_index", "_next_index"):
        monkeypatch.setattr(manager, name, getattr(loop := getattr(manager, name), "py_func", loop))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("routes", [Routes(3, 2), Routes(2, 3)])
def test_the_buffer_is_the_one_that_the_stock_collector_fills(routes: Routes) -> None:
    tree = random_tree(routes, QUERIES, seed=1)
    envs = DummyVectorEnv([lambda q=q: NumberedEnv(tree, q) for q in range(QUERIES)])
    stock = VectorReplayBuffer(QUERIES * routes.hops, QUERIES)
    collector = Collector(ScriptedPolicy(action_space=envs.action_space[0]), envs, stock)
    collector.reset()
    collector.collect(n_episode=QUERIES)
    query = np.arange(QUERIES)
    rollouts = walk(routes, tree.reward(ALPHA), query, lambda s: scripted(routes.models, s))
    ours = to_buffer(rollouts)
    theirs, batch = stock.sample(0)[0], ours.sample(0)[0]
    for key in ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next"):
        np.testing.assert_array_equal(batch[key], theirs[key], err_msg=key)
    assert ours.unfinished_index().size == stock.unfinished_index().size == 0


def test_an_observation_takes_eight_bytes() -> None:
    state = np.arange(6).reshape(3, 2)
    buffer = to_buffer(Rollouts(state, state, state.astype(np.float64)))
    assert len(buffer) == 6
    assert buffer.obs.itemsize * buffer.obs[0].size == 8
