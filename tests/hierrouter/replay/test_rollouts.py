"""Batched rollouts play the very episodes that environments one by one would."""

from functools import partial
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

from hierrouter.evaluation.outcome import Actions
from hierrouter.learning.collector import to_buffer
from hierrouter.replay.env import QueryStream, ReplayEnv, walk
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.evaluation.test_outcome import all_actions
from tests.hierrouter.trees import random_tree

ALPHA = 0.05
QUERIES = 12


def scripted(models: int, state: np.ndarray) -> np.ndarray:
    """Some fixed function from states to actions."""
    return (7919 * state + state // 3) % models


@given(all_actions, st.integers(0, 2**16))
def test_walking_together_is_walking_alone(actions: Actions, seed: int) -> None:
    tree = random_tree(actions.routes, 4, seed)
    query = np.random.default_rng(seed).integers(0, 4, 9)
    rollouts = walk(actions, tree.node_reward(ALPHA), query, partial(scripted, actions.count))
    env = ReplayEnv(tree, ALPHA, actions.allow_stop)
    for episode, position in enumerate(query):
        _, info = env.reset(options={"query": position})
        terminated, hop = False, 0
        while not terminated:
            assert rollouts.alive[episode, hop]
            assert rollouts.state[episode, hop] == info["state"]
            _, reward, terminated, _, info = env.step(rollouts.action[episode, hop])
            assert rollouts.reward[episode, hop] == reward
            assert rollouts.last[episode, hop] == terminated
            hop += 1
        assert rollouts.length[episode] == hop
        assert not rollouts.alive[episode, hop:].any()
        assert not rollouts.reward[episode, hop:].any()


def test_the_policy_is_asked_about_episodes_that_go_on_and_no_others() -> None:
    actions, asked = Actions(Routes(2, 3), allow_stop=True), []

    def act(state: np.ndarray) -> np.ndarray:
        asked.append(state // actions.routes.states)
        return np.where(asked[-1] % 2, 2, 0)  # odd queries stop at once

    tree = random_tree(actions.routes, 4, 0)
    rollouts = walk(actions, tree.node_reward(ALPHA), np.arange(4), act)
    assert [queries.tolist() for queries in asked] == [[0, 1, 2, 3], [0, 2], [0, 2]]
    assert rollouts.length.tolist() == [3, 1, 3, 1]


@given(st.integers(1, 30), st.lists(st.integers(0, 40), max_size=8), st.integers(0, 99))
def test_no_query_comes_twice_before_all_have_come_once_however_many_are_drawn(
    queries: int, draws: list[int], seed: int
) -> None:
    stream, alone = (QueryStream(queries, np.random.default_rng(seed)) for _ in range(2))
    drawn = [query for count in draws for query in stream.draw(count).tolist()]
    assert drawn == [int(alone.draw(1)[0]) for _ in range(sum(draws))]
    for start in range(0, len(drawn), queries):
        epoch = drawn[start : start + queries]
        assert len(set(epoch)) == len(epoch)


def test_there_must_be_a_query_to_draw() -> None:
    with pytest.raises(ValueError, match="no queries"):
        QueryStream(0, np.random.default_rng(0))


class NumberedEnv(gymnasium.Env):  # type: ignore[misc]
    """`ReplayEnv` on one query, its observation the state number, 0 after the end."""

    def __init__(self, tree: RouteTree, allow_stop: bool, query: int) -> None:
        self.env = ReplayEnv(tree, ALPHA, allow_stop)
        self.query = query
        self.action_space = self.env.action_space
        self.observation_space = spaces.Discrete(len(tree) * tree.routes.states)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        _, info = self.env.reset(seed=seed, options={"query": self.query})
        return info["state"], {}

    def step(self, action: np.int64) -> tuple[int, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = self.env.step(action)
        return info["state"] * (not terminated), reward, terminated, truncated, {}


class ScriptedPolicy(Policy):  # type: ignore[misc]
    """Tianshou's view of `scripted`."""

    @staticmethod
    def _compile() -> None:
        """Nothing: a compiler takes longer to start than this file's tests take."""

    def forward(self, batch: Any, state: Any = None, **_: Any) -> Batch:
        return Batch(act=scripted(self.action_space.n, batch.obs), state=None)


@pytest.mark.parametrize("allow_stop", [False, True])
@pytest.mark.parametrize("routes", [Routes(3, 2), Routes(2, 3)])
def test_the_buffer_is_the_one_that_the_stock_collector_fills(
    routes: Routes, allow_stop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_prev_index", "_next_index"):  # compiled loops as the Python they are written in
        monkeypatch.setattr(manager, name, getattr(loop := getattr(manager, name), "py_func", loop))
    tree, actions = random_tree(routes, QUERIES, seed=1), Actions(routes, allow_stop)
    query, act = np.arange(QUERIES), partial(scripted, actions.count)
    envs = DummyVectorEnv([lambda q=q: NumberedEnv(tree, allow_stop, q) for q in query])
    stock = VectorReplayBuffer(QUERIES * routes.hops, QUERIES)
    collector = Collector(ScriptedPolicy(action_space=envs.action_space[0]), envs, stock)
    collector.reset()
    collector.collect(n_episode=QUERIES)
    rollouts = walk(actions, tree.node_reward(ALPHA), query, act)
    assert (len(set(rollouts.length)) > 1) == allow_stop
    ours = to_buffer(rollouts)
    theirs, batch = stock.sample(0)[0], ours.sample(0)[0]
    for key in ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next"):
        np.testing.assert_array_equal(batch[key], theirs[key], err_msg=key)
    assert ours.unfinished_index().size == stock.unfinished_index().size == 0
    assert ours.obs.itemsize * ours.obs[0].size == 8  # bytes an observation
