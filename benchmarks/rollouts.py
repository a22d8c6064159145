"""Steps per second: rollouts of a router, three ways and the limit.

    OMP_NUM_THREADS=1 python benchmarks/rollouts.py

Tianshou's `Collector` on one `ReplayEnv` and on 128 of them, our batched walk, and the bare
forward passes that any way has to make. One thread, one process, interleaved rounds, medians.
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
import tianshou
import torch
from gymnasium.spaces import Discrete
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "cache")]

from hierrouter.learn.config import preset  # noqa: E402
from hierrouter.learn.router import Router, StateTable, shape_for, state_table  # noqa: E402
from hierrouter.replay.bridge import to_buffer  # noqa: E402
from hierrouter.replay.env import ReplayEnv  # noqa: E402
from hierrouter.replay.rollouts import walk  # noqa: E402
from hierrouter_cache.tree import RouteTree  # noqa: E402
from tests.hierrouter.trees import planted_tree  # noqa: E402

ALPHA = 0.005
EPISODES = 128
BATCH = 1024
ROUNDS = 15
DIM = 768


class DictActor(nn.Module):
    """The router on the environment's observations."""

    def __init__(self, router: Router) -> None:
        super().__init__()
        self.router = router

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
        embedding, cost = torch.from_numpy(obs.embedding), torch.from_numpy(obs.cost)[:, 0]
        return self.router(embedding, torch.from_numpy(obs.stage), cost)[0], state


def stock(tree: RouteTree, router: Router, envs: int, episodes: int) -> Callable[[], int]:
    """Collect `episodes` episodes with Tianshou's collector; returns the steps made."""
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

    return collect


def ours(tree: RouteTree, router: Router, table: StateTable, episodes: int) -> Callable[[], int]:
    """Walk all episodes together and hand over the buffer."""
    rng = np.random.default_rng(0)
    reward = tree.reward(ALPHA)

    @torch.no_grad()
    def act(state: np.ndarray) -> np.ndarray:
        logits = router(*table.rows(torch.from_numpy(state)))[0].numpy()
        return (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)

    def collect() -> int:
        query = rng.integers(0, len(tree), episodes)
        return len(to_buffer(walk(tree.routes, reward, query, act)))

    return collect


def limit(tree: RouteTree, router: Router, table: StateTable, episodes: int) -> Callable[[], int]:
    """L forward passes on random states, and nothing else."""
    rng = np.random.default_rng(0)

    @torch.no_grad()
    def collect() -> int:
        for _ in range(tree.hops):
            router(*table.rows(torch.from_numpy(rng.integers(0, len(table), episodes))))
        return episodes * tree.hops

    return collect


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tree = planted_tree(families=10, per_family=(126, 0, 0), dim=DIM)
    router, table = Router(shape_for(tree, preset("paper"))), state_table(tree)
    ways = {
        "stock Collector, 1 environment": stock(tree, router, 1, 32),
        "stock Collector, DummyVectorEnv(128)": stock(tree, router, EPISODES, EPISODES),
        f"batched walk, {EPISODES} episodes": ours(tree, router, table, EPISODES),
        f"batched walk, {BATCH} episodes": ours(tree, router, table, BATCH),
        f"forward passes alone, {EPISODES} episodes": limit(tree, router, table, EPISODES),
        f"forward passes alone, {BATCH} episodes": limit(tree, router, table, BATCH),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, collect in ways.items():
            start = time.perf_counter()
            steps = collect()
            rates[name].append(steps / (time.perf_counter() - start))
    print(f"{len(tree)} queries, {len(tree.models)} models, {tree.hops} hops, {DIM} dimensions")
    print(f"python {platform.python_version()}, torch {torch.__version__}, one thread,", end=" ")
    print(
        f"tianshou {tianshou.__version__}, gymnasium {gymnasium.__version__}, {platform.machine()}"
    )
    base = statistics.median(rates["stock Collector, 1 environment"])
    for name, values in rates.items():
        middle = statistics.median(values)
        print(f"{name:40s}{middle:10,.0f} steps/s{middle / base:8.1f} x one environment")


if __name__ == "__main__":
    main()
