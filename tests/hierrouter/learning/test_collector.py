"""The collector keeps Tianshou's contract, and PPO is Tianshou's."""

import itertools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import tianshou
import torch
from gymnasium.spaces import Discrete
from tianshou.algorithm import PPO, algorithm_base
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import Batch, Collector, ReplayBuffer, VectorReplayBuffer
from tianshou.data.buffer import manager
from tianshou.data.collector import BaseCollector
from tianshou.env import DummyVectorEnv

from hierrouter.evaluation.outcome import Actions, LegalActions, policy_outcome
from hierrouter.learning.config import Objective, PPOConfig
from hierrouter.learning.network import RouterNetwork, TrainingFold, shape_for
from hierrouter.learning.ppo import PPOLearner, TreeCollector
from hierrouter.replay.env import ReplayEnv
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.replay.test_vector import scripted
from tests.hierrouter.trees import ragged_tree, random_tree

ALPHA = 0.05
KEYS = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next")


@pytest.fixture(autouse=True)
def plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of its buffers as the Python they are written in: a compiler takes seconds."""
    for name in ("_prev_index", "_next_index"):
        monkeypatch.setattr(manager, name, getattr(loop := getattr(manager, name), "py_func", loop))


class NumberedEnv(gymnasium.Env):  # type: ignore[misc]
    """`ReplayEnv` on one query, its observation the state number, 0 after the end."""

    def __init__(self, tree: RouteTree, allow_stop: bool, query: int) -> None:
        self.env = ReplayEnv(tree, ALPHA, allow_stop)
        self.query = query
        self.action_space = self.env.action_space
        self.observation_space = Discrete(len(tree) * tree.layout.inner)

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


def episodes(buffer: ReplayBuffer) -> list[list[tuple[Any, ...]]]:
    """Every transition, by episode; sorted."""
    found: list[list[tuple[Any, ...]]] = [[]]
    batch, _ = buffer.sample(0)
    for row in range(len(batch)):
        found[-1].append(tuple(np.asarray(batch[key][row]).item() for key in KEYS))
        if batch.done[row]:
            found.append([])
    assert found.pop() == []
    return sorted(found)


@pytest.mark.parametrize("allow_stop", [False, True])
@pytest.mark.parametrize("routes", [Layout.full(3, 2), Layout.full(2, 3)], ids=str)
def test_it_collects_what_the_stock_collector_does_on_environments(
    routes: Layout, allow_stop: bool
) -> None:
    tree, count = random_tree(routes, 12, seed=1), 12
    vector = DummyVectorEnv([lambda q=q: NumberedEnv(tree, allow_stop, q) for q in range(count)])
    policy = ScriptedPolicy(action_space=vector.action_space[0])
    stock = Collector(policy, vector, VectorReplayBuffer(count * routes.hops * 4, count))
    ours = TreeCollector(policy, tree, ALPHA, allow_stop, draw=np.arange)
    stock.reset()
    told = [each.collect(n_episode=count) for each in (stock, ours)]
    assert isinstance(ours, BaseCollector)
    assert episodes(ours.buffer) == episodes(stock.buffer)
    assert (len({len(one) for one in episodes(ours.buffer)}) > 1) == allow_stop
    for key in ("n_collected_steps", "n_collected_episodes"):
        assert getattr(told[0], key) == getattr(told[1], key)
    assert told[1].returns_stat.mean == pytest.approx(told[0].returns_stat.mean)
    assert (ours.collect_step, ours.collect_episode) == (stock.collect_step, stock.collect_episode)
    assert ours.buffer.unfinished_index().size == 0


def test_by_steps_no_episode_is_cut_and_random_actions_are_legal() -> None:
    tree, actions = (
        random_tree(Layout.full(2, 3), 5, seed=0),
        Actions(Layout.full(2, 3), allow_stop=True),
    )
    policy = ScriptedPolicy(action_space=Discrete(actions.count))
    collector = TreeCollector(policy, tree, ALPHA, allow_stop=True)
    told = collector.collect(n_step=200, random=True)
    assert 200 <= told.n_collected_steps < 200 + tree.hops
    assert sum(map(len, episodes(collector.buffer))) == told.n_collected_steps
    batch, _ = collector.buffer.sample(0)
    assert actions.legal()[batch.obs % tree.layout.inner, batch.act].all()
    assert len(np.unique(batch.act)) == actions.count
    assert len(np.unique(batch.obs // tree.layout.inner)) == len(tree)


def test_the_algorithm_is_tianshous_and_nothing_is_compiled() -> None:
    loops = algorithm_base._gae, algorithm_base._nstep_return
    compiled = [loop.signatures for loop in loops]
    tree, objective = random_tree(Layout.full(3, 2), 10, seed=0), Objective(ALPHA)
    config = PPOConfig(hidden=16, rollouts=20, minibatches=4, embedding_noise=0.0)
    router = RouterNetwork(shape_for(tree, Actions(tree.layout), config))
    fold, rng = TrainingFold.of(tree, objective), np.random.default_rng(0)
    made = PPOLearner(router, fold, ALPHA, config, rng)
    assert type(made.algorithm) is PPO
    before = {name: value.clone() for name, value in made.router.state_dict().items()}
    made.epoch()
    assert not torch.equal(before["context.weight"], made.router.state_dict()["context.weight"])
    assert [loop.signatures for loop in loops] == compiled
    # What is bound in place of a method is that method's code, from Tianshou's file.
    bound = made.algorithm.compute_episodic_return
    assert bound.__code__ is PPO.compute_episodic_return.__code__
    assert Path(bound.__code__.co_filename).is_relative_to(Path(tianshou.__file__).parent)
    # All that it trains is the router's: nothing else need be kept to take a training up again.
    trained = {id(value) for value in made.algorithm.parameters()}
    assert trained == {id(value) for value in made.router.parameters()}


def test_a_clock_that_is_set_back_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    tree, hours = random_tree(Layout.full(2, 2), 5, seed=1), itertools.count(9e9, -3600.0)
    collector = TreeCollector(ScriptedPolicy(action_space=Discrete(2)), tree, ALPHA)
    monkeypatch.setattr("tianshou.data.collector.time.time", lambda: next(hours))
    assert collector.collect(n_episode=5, reset_before_collect=True).n_collected_episodes == 5


@pytest.mark.parametrize("stop", [False, True])
def test_in_a_log_it_asks_only_where_there_is_a_choice(stop: bool) -> None:
    layout = Layout.grown(
        2, lambda path: (0, 1) if len(path) < 4 else (), lambda action: 1 + action
    )
    tree = ragged_tree(layout, 30, seed=4, missing=0.5)
    asked = []

    class FirstLegal(Policy):  # type: ignore[misc]
        def forward(self, batch: Any, state: Any = None, **_: Any) -> Batch:
            asked.append(batch.obs)
            return Batch(act=collector.legal_at(batch.obs).argmax(axis=1), state=None)

    policy = FirstLegal(action_space=Discrete(Actions(layout, stop).count))
    collector = TreeCollector(policy, tree, ALPHA, stop, draw=np.arange, seed=0)
    stats = collector.collect(n_episode=30)
    legal = LegalActions.of(tree, collector.actions).table
    played = episodes(collector.buffer)
    assert len(played) == len(stats.returns) == 30
    for episode in played:
        states = [step[0] for step in episode]
        query = states[0] // layout.inner
        assert states[0] == query * layout.inner  # it begins at the root
        assert all(legal[divmod(state, layout.inner)].sum() > 1 for state in states[1:])
        assert all(legal[(*divmod(step[0], layout.inner), step[1])] for step in episode)
        assert [step[5] for step in episode] == [False] * (len(episode) - 1) + [True]
        assert [step[6] for step in episode[:-1]] == states[1:]
        # The last step has the reward of the whole episode.
        assert all(step[2] == 0 for step in episode[:-1])
    total = sum(step[2] for episode in played for step in episode)
    assert total == pytest.approx(stats.returns.sum())
    assert set(np.concatenate(asked)) == {step[0] for episode in played for step in episode}
    # First legal actions, and the draws of a call by chance: the exact mean is near.
    everywhere = np.eye(collector.actions.count)[legal.argmax(axis=2)]
    exact = policy_outcome(tree, collector.actions, everywhere, "x", "router").reward(ALPHA)
    means = np.zeros(30)
    for _ in range(200):
        means += collector.collect(n_episode=30, reset_before_collect=False).returns / 200
    np.testing.assert_allclose(means, exact, atol=0.2)
