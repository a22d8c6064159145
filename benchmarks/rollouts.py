"""Steps per second of every way to roll out, and what a state costs in a buffer.

    OMP_NUM_THREADS=1 python benchmarks/rollouts.py

With a router of the paper's size: Tianshou's `Collector` on one `ReplayEnv` and on 128,
Stable-Baselines3's rollouts on 128 and on our vectorised environment, a plain loop over that
environment, the batched walk, and the bare forward passes that any way has to make. Without a
policy: the vectorised environment, and the look-ups that any way has to make. One process, one
thread, CPU seconds, interleaved rounds, medians.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import tianshou
import torch
from gymnasium.spaces import Discrete
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "cache")]

from hierrouter.actions import Actions  # noqa: E402
from hierrouter.learn.config import preset  # noqa: E402
from hierrouter.learn.objective import Objective  # noqa: E402
from hierrouter.learn.router import Router, shape_for  # noqa: E402
from hierrouter.learn.states import States, StateTable, state_table  # noqa: E402
from hierrouter.replay.bridge import to_buffer  # noqa: E402
from hierrouter.replay.env import ReplayEnv  # noqa: E402
from hierrouter.replay.rollouts import QueryStream, Rollouts, walk  # noqa: E402
from hierrouter.replay.stable_baselines import StableBaselinesEnv  # noqa: E402
from hierrouter.replay.vector import ReplayVectorEnv  # noqa: E402
from hierrouter_cache.tree import RouteTree  # noqa: E402
from tests.hierrouter.trees import planted_tree  # noqa: E402

ALPHA = 0.005
ENVS = 128
BATCHES = (128, 1024)
STEPPED = (1024, 4096, 16384)
ROUNDS = 15
DIM = 768

Way = Callable[[], int]  # does the work once; returns the steps made


class DictActor(nn.Module):
    """The router on the environment's observations."""

    def __init__(self, router: Router) -> None:
        super().__init__()
        self.router = router

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
        stage = torch.from_numpy(obs.stage)
        legal = torch.ones(len(stage), self.router.shape.actions, dtype=torch.bool)
        cost = torch.from_numpy(obs.cost)[:, 0]
        return self.router(States(torch.from_numpy(obs.embedding), stage, cost, legal))[0], state


def stock(tree: RouteTree, router: Router, envs: int, episodes: int) -> tuple[Way, Any]:
    """Tianshou's collector, and the buffer it fills."""
    policy = DiscreteActorPolicy(actor=DictActor(router), action_space=Discrete(len(tree.models)))
    vector = DummyVectorEnv([lambda: ReplayEnv(tree, ALPHA)] * envs)
    vector.seed(0)
    buffer = VectorReplayBuffer(2 * episodes * tree.hops + envs, envs)
    collector = Collector(policy, vector, buffer)
    collector.reset()

    def collect() -> int:
        collector.reset_buffer()
        with torch.no_grad():
            return int(collector.collect(n_episode=episodes).n_collected_steps)

    return collect, buffer


def stable(tree: RouteTree, hidden: int, env: VecEnv) -> Way:
    """Stable-Baselines3's rollouts, with a network that computes as much as the router does."""
    shape = {"net_arch": {"pi": [hidden, hidden], "vf": []}}
    model = PPO(
        "MultiInputPolicy", env, n_steps=tree.hops, policy_kwargs=shape, seed=0, device="cpu"
    )
    _, callback = model._setup_learn(1)

    def collect() -> int:
        model.collect_rollouts(env, callback, model.rollout_buffer, tree.hops)
        return env.num_envs * tree.hops

    return collect


def sampler(
    router: Router, table: StateTable, rng: np.random.Generator
) -> Callable[[np.ndarray], np.ndarray]:
    """Draws actions for state numbers."""

    @torch.no_grad()
    def act(state: np.ndarray) -> np.ndarray:
        logits = router(table.rows(torch.from_numpy(state)))[0].numpy()
        return (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)

    return act


def loop(tree: RouteTree, router: Router, table: StateTable, episodes: int) -> Way:
    """A loop over the vectorised environment that keeps what a learner would keep."""
    envs = ReplayVectorEnv(tree, ALPHA, episodes)
    act = sampler(router, table, np.random.default_rng(0))
    state, _ = envs.reset(seed=0)

    def collect() -> int:
        nonlocal state
        kept = []
        for _ in range(tree.hops):
            action = act(state)
            following, reward, ended, _, _ = envs.step(action)
            kept.append((state, action, reward, ended))
            state = following
        columns = [np.stack(column) for column in zip(*kept, strict=True)]
        return columns[0].size

    return collect


def ours(tree: RouteTree, router: Router, table: StateTable, episodes: int) -> Way:
    """All episodes walk together and the buffer is handed over."""
    rng = np.random.default_rng(0)
    reward, queries = tree.node_reward(ALPHA), QueryStream(len(tree), rng)
    act, actions = sampler(router, table, rng), Actions(tree.routes)
    return lambda: len(to_buffer(walk(actions, reward, queries.draw(episodes), act)))


def limit(tree: RouteTree, router: Router, table: StateTable, episodes: int) -> Way:
    """L forward passes on random states, and nothing else."""
    rng = np.random.default_rng(0)

    @torch.no_grad()
    def collect() -> int:
        for _ in range(tree.hops):
            router(table.rows(torch.from_numpy(rng.integers(0, len(table), episodes))))
        return episodes * tree.hops

    return collect


def stepping(tree: RouteTree, num_envs: int) -> Way:
    """The vectorised environment under actions drawn beforehand."""
    envs = ReplayVectorEnv(tree, ALPHA, num_envs)
    envs.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, len(tree.models), (tree.hops, num_envs))

    def step() -> int:
        for action in actions:
            envs.step(action)
        return actions.size

    return step


def gathering(tree: RouteTree, num_envs: int) -> Way:
    """Two integers and a float looked up for each step, and nothing else."""
    rng = np.random.default_rng(0)
    table, reward = np.arange(tree.score.size), tree.node_reward(ALPHA).ravel()
    rows = rng.integers(0, table.size, num_envs)

    def gather() -> int:
        for _ in range(tree.hops):
            table[rows], table[rows], reward[rows]
        return tree.hops * num_envs

    return gather


def measure(ways: dict[str, Way]) -> dict[str, float]:
    """Steps a CPU second of each way; the first round is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name, work in ways.items():
            start = time.process_time()
            steps = work()
            if turn:
                rates[name].append(steps / (time.process_time() - start))
    return {name: statistics.median(values) for name, values in rates.items()}


def with_policy(tree: RouteTree) -> None:
    """Rollouts with a policy, and the bytes of an observation."""
    settings, actions = preset("paper"), Actions(tree.routes)
    router = Router(shape_for(tree, actions, settings))
    table = state_table(tree, Objective(ALPHA))
    alone, _ = stock(tree, router, 1, 32)
    dummy, buffer = stock(tree, router, ENVS, ENVS)
    features = ReplayVectorEnv(tree, ALPHA, ENVS, observation="features")
    ways = {
        "Collector, 1 env": alone,
        f"Collector, DummyVectorEnv({ENVS})": dummy,
        f"Stable-Baselines3, DummyVecEnv({ENVS})": stable(
            tree, settings.hidden, DummyVecEnv([lambda: ReplayEnv(tree, ALPHA)] * ENVS)
        ),
        f"Stable-Baselines3, our environment ({ENVS})": stable(
            tree, settings.hidden, StableBaselinesEnv(features)
        ),
    }
    for size in BATCHES:
        ways |= {
            f"loop over our environment, {size} episodes": loop(tree, router, table, size),
            f"batched walk, {size} episodes": ours(tree, router, table, size),
            f"forward passes alone, {size} episodes": limit(tree, router, table, size),
        }
    rates = measure(ways)
    for name, rate in rates.items():
        times = rate / rates["Collector, 1 env"]
        print(f"{name:45s}{rate:10,.0f} steps/s{times:8.1f} x Collector, 1 env")
    for size in BATCHES:
        walked = rates[f"batched walk, {size} episodes"]
        share = walked / rates[f"forward passes alone, {size} episodes"]
        print(f"batched walk / forward passes alone, {size} episodes: {share:.2f}")
    copied = sum(value.nbytes for value in buffer.obs.values()) / len(buffer.rew)
    state = np.zeros((1, tree.hops), dtype=np.int64)
    numbered = to_buffer(Rollouts(state, state, np.zeros(state.shape), np.array([tree.hops])))
    print(f"an observation in the buffer: Collector {copied:,.0f} bytes, batched walk", end=" ")
    print(f"{numbered.obs.itemsize} bytes")


def without_policy(tree: RouteTree) -> None:
    """The vectorised environment alone."""
    ways = {f"look-ups alone, {size} episodes": gathering(tree, size) for size in STEPPED}
    ways |= {f"our environment, {size} episodes": stepping(tree, size) for size in STEPPED}
    print("without a policy:")
    for name, rate in measure(ways).items():
        print(f"{name:45s}{rate / 1e6:10,.1f} M steps/s")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tree = planted_tree(families=10, per_family=(126, 0, 0), dim=DIM)
    print(f"{len(tree)} queries, {len(tree.models)} models, {tree.hops} hops, {DIM} dimensions")
    versions = (tianshou, stable_baselines3, gymnasium, torch, np)
    print(*(f"{module.__name__} {module.__version__}" for module in versions), sep=", ", end=", ")
    print(f"python {platform.python_version()}, {platform.machine()}, one thread")
    with_policy(tree)
    without_policy(tree)


if __name__ == "__main__":
    main()
