"""Our rollouts and returns against Tianshou's own, transition by transition."""

from typing import Any

import numpy as np
import pytest
from gymnasium import Env, spaces
from hypothesis import given
from hypothesis import strategies as st
from tianshou.algorithm.algorithm_base import Algorithm, Policy
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv

from hierrouter.learn.algorithm import EpisodePPO
from hierrouter.replay.bridge import to_buffer
from hierrouter.replay.env import ReplayEnv
from hierrouter.replay.rollouts import QueryStream, walk
from tests.hierrouter.trees import planted_tree

ALPHA = 0.005
TREE = planted_tree(per_family=(6, 2, 2), dim=16, hops=3)
# A fixed policy: one action for each state of the tree.
ACTIONS = np.random.default_rng(0).integers(3, size=len(TREE) * TREE.routes.states)


class NumberedEnv(Env[Any, Any]):
    """`ReplayEnv` seen through state numbers, with queries in order."""

    def __init__(self, first: int, stride: int) -> None:
        self.env = ReplayEnv(TREE, ALPHA)
        self.action_space = self.env.action_space
        self.observation_space = spaces.Box(-1, len(ACTIONS), (), np.int64)
        self.next, self.stride = first, stride

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        info = self.env.reset(options={"query": self.next % len(TREE)})[1]
        self.next += self.stride
        return np.int64(info["state"]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, reward, ended, truncated, info = self.env.step(action)
        return np.int64(info["state"]), float(reward), ended, truncated, {}


class TablePolicy(Policy):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(action_space=spaces.Discrete(3))

    def forward(self, batch: Any, state: Any = None, **_: Any) -> Any:
        return Batch(act=ACTIONS[np.asarray(batch.obs, dtype=np.int64).ravel()], state=state)


def test_the_same_transitions_as_tianshous_collector() -> None:
    envs, episodes = 5, 30
    vector = DummyVectorEnv([lambda first=first: NumberedEnv(first, envs) for first in range(envs)])
    buffer = VectorReplayBuffer(envs * 64, envs)
    Collector(TablePolicy(), vector, buffer).collect(n_episode=episodes, reset_before_collect=True)
    stock = buffer.sample(0)[0]
    found = {
        (int(obs), int(act), float(rew), bool(end))
        for obs, act, rew, end in zip(
            stock.obs, stock.act, stock.rew, stock.terminated, strict=True
        )
    }
    ours = to_buffer(
        walk(TREE.routes, TREE.reward(ALPHA), np.arange(episodes), lambda state: ACTIONS[state])
    )
    made = {
        (int(obs), int(act), float(rew), bool(end))
        for obs, act, rew, end in zip(ours.obs, ours.act, ours.rew, ours.terminated, strict=True)
    }
    assert len(made) == len(ours) == episodes * TREE.hops
    assert found == made


@given(st.integers(0, 2**32), st.sampled_from([0.9, 1.0]), st.sampled_from([0.0, 0.95, 1.0]))
def test_returns_and_advantages_are_tianshous(seed: int, gamma: float, lam: float) -> None:
    rng = np.random.default_rng(seed)
    query = rng.integers(len(TREE), size=8)
    buffer = to_buffer(walk(TREE.routes, TREE.reward(ALPHA), query, lambda state: ACTIONS[state]))
    batch, indices = buffer.sample(0)
    value, following = rng.normal(size=(2, len(indices)))
    wanted = Algorithm.compute_episodic_return(
        batch, buffer, indices, following, value, gamma=gamma, gae_lambda=lam
    )
    ours = EpisodePPO.compute_episodic_return.__get__(type("Three", (), {"hops": TREE.hops})())(
        batch, buffer, indices, following, value, gamma=gamma, gae_lambda=lam
    )
    assert ours[0] == pytest.approx(wanted[0])
    assert ours[1] == pytest.approx(wanted[1])


@given(st.integers(1, 20), st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_no_query_comes_twice_before_all_have_come_once(queries: int, draws: list[int]) -> None:
    stream = QueryStream(queries, np.random.default_rng(0))
    drawn = np.concatenate([stream.draw(count) for count in draws])
    assert len(drawn) == sum(draws)
    for start in range(0, len(drawn) - queries + 1, queries):
        assert sorted(drawn[start : start + queries]) == list(range(queries))
