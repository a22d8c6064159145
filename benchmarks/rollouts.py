"""Steps per second of every way to roll out, and what a state costs in a buffer.

    OMP_NUM_THREADS=1 python benchmarks/rollouts.py

With a router of the paper's size: Tianshou's `Collector` on one `ReplayEnv`, and on 128;
Stable-Baselines3's rollouts on 128; PufferLib's serial vectorisation of
128, where its sources are on the path; a plain loop over our environment, the batched walk,
`TreeCollector`, and the bare forward passes that any way has to make. Without a policy: the
vectorised environment, and the look-ups that any way has to make. One process, one thread, CPU
seconds, interleaved rounds, medians.
"""

import importlib.util
import statistics
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import tianshou
import torch
from gymnasium.spaces import Discrete
from measuring import measure_interleaved, versions
from paper_size import ALPHA, DIM, ENVS, PaperSize
from rivals import first_nodes
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from torch import nn

from hierrouter.learning.network import RouterNetwork, States
from hierrouter.learning.ppo import TreeCollector, to_buffer
from hierrouter.replay.env import QueryStream, ReplayEnv, ReplayVectorEnv, Rollouts, walk
from hierrouter_cache.tree import RouteTree

BATCHES = (128, 1024)
STEPPED = (1024, 4096, 16384)
ROUNDS = 15
PUFFER = ("emulation", "vector")

Way = Callable[[], int]  # does the work once; returns the steps made


class DictActor(nn.Module):
    """The router on the environment's observations."""

    def __init__(self, router: RouterNetwork) -> None:
        super().__init__()
        self.router = router

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
        node = first_nodes(self.router.shape)[torch.from_numpy(obs.stage)]
        legal = torch.ones(len(node), self.router.shape.actions, dtype=torch.bool)
        cost = torch.from_numpy(obs.cost)[:, 0]
        return self.router(States(torch.from_numpy(obs.embedding), node, cost, legal))[0], state


def stock(tree: RouteTree, router: RouterNetwork, envs: int, episodes: int) -> tuple[Way, Any]:
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


class NumberedActor(nn.Module):
    """The router on the numbers of states."""

    def __init__(self, size: PaperSize, router: RouterNetwork) -> None:
        super().__init__()
        self.router = router
        self.table = size.table

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
        return self.router(self.table.rows(torch.as_tensor(obs)))[0], state


def numbered(size: PaperSize, router: RouterNetwork, episodes: int) -> Way:
    """Our collector, on the tree."""
    actor: Any = NumberedActor(size, router)
    policy = DiscreteActorPolicy(actor=actor, action_space=Discrete(size.actions.count))
    collector = TreeCollector(policy, size.tree, ALPHA)

    def collect() -> int:
        collector.reset_buffer()
        with torch.no_grad():
            return int(collector.collect(n_episode=episodes).n_collected_steps)

    return collect


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


def puffer(tree: RouteTree, router: RouterNetwork, num_envs: int) -> Way:
    """PufferLib steps the environments and packs their observations into one array."""
    emulation, vector = (importlib.import_module(f"pufferlib.{name}") for name in PUFFER)

    def create(buf: Any = None, seed: int = 0) -> Any:
        return emulation.GymnasiumPufferEnv(env=ReplayEnv(tree, ALPHA), buf=buf, seed=seed)

    envs = vector.make(create, num_envs=num_envs, backend="Serial")
    actor = DictActor(router)

    @torch.no_grad()
    def collect() -> int:
        seen, _ = envs.reset()
        kept = []
        for _ in range(tree.hops):
            fields = seen.view(envs.driver_env.obs_dtype).reshape(num_envs)
            views = {name: np.ascontiguousarray(fields[name]) for name in fields.dtype.names}
            logits, _ = actor(SimpleNamespace(**views))
            action = logits.softmax(1).multinomial(1)[:, 0].numpy()
            kept.append(seen.copy())
            seen, *outcome, _ = envs.step(action)
            kept += [action, *(column.copy() for column in outcome)]
        return num_envs * tree.hops

    return collect


def loop(size: PaperSize, router: RouterNetwork, episodes: int) -> Way:
    """A loop over the vectorised environment that keeps what a learner would keep."""
    envs = ReplayVectorEnv(size.tree, ALPHA, episodes)
    act = size.sampler(router, np.random.default_rng(0))
    state, _ = envs.reset(seed=0)

    def collect() -> int:
        nonlocal state
        kept = []
        for _ in range(size.tree.hops):
            assert isinstance(state, np.ndarray)  # numbers of states, no features
            action = act(state)
            following, reward, ended, _, _ = envs.step(action)
            kept.append((state, action, reward, ended))
            state = following
        columns = [np.stack(column) for column in zip(*kept, strict=True)]
        return columns[0].size

    return collect


def ours(size: PaperSize, router: RouterNetwork, episodes: int) -> Way:
    """All episodes walk together and the buffer is handed over."""
    rng = np.random.default_rng(0)
    reward, queries = size.tree.node_reward(ALPHA), QueryStream(len(size.tree), rng)
    act = size.sampler(router, rng)
    return lambda: len(to_buffer(walk(size.actions, reward, queries.draw(episodes), act)))


def limit(size: PaperSize, router: RouterNetwork, episodes: int) -> Way:
    """L forward passes on random states, and nothing else."""
    table, hops, rng = size.table, size.tree.hops, np.random.default_rng(0)

    @torch.no_grad()
    def collect() -> int:
        for _ in range(hops):
            router(table.rows(torch.from_numpy(rng.integers(0, len(table), episodes))))
        return episodes * hops

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
    """Steps a CPU second of each way, medians."""
    return {
        name: statistics.median(steps / spent for steps, spent in runs)
        for name, runs in measure_interleaved(ways, ROUNDS).items()
    }


def with_policy(size: PaperSize) -> None:
    """Rollouts with a policy, and the bytes of an observation."""
    tree, hidden, router = size.tree, size.config.hidden, size.router()
    alone, _ = stock(tree, router, 1, 32)
    dummy, buffer = stock(tree, router, ENVS, ENVS)
    ways = {
        "Collector, 1 env": alone,
        f"Collector, DummyVectorEnv({ENVS})": dummy,
        f"Stable-Baselines3, DummyVecEnv({ENVS})": stable(
            tree, hidden, DummyVecEnv([lambda: ReplayEnv(tree, ALPHA)] * ENVS)
        ),
    }
    if importlib.util.find_spec("pufferlib"):
        ways[f"PufferLib, Serial({ENVS})"] = puffer(tree, router, ENVS)
    for episodes in BATCHES:
        ways |= {
            f"loop over our environment, {episodes} episodes": loop(size, router, episodes),
            f"batched walk, {episodes} episodes": ours(size, router, episodes),
            f"TreeCollector, {episodes} episodes": numbered(size, router, episodes),
            f"forward passes alone, {episodes} episodes": limit(size, router, episodes),
        }
    rates = measure(ways)
    for name, rate in rates.items():
        times = rate / rates["Collector, 1 env"]
        print(f"{name:45s}{rate:10,.0f} steps/s{times:8.1f} x Collector, 1 env")
    for episodes in BATCHES:
        walked = rates[f"batched walk, {episodes} episodes"]
        share = walked / rates[f"forward passes alone, {episodes} episodes"]
        print(f"batched walk / forward passes alone, {episodes} episodes: {share:.2f}")
    copied = sum(value.nbytes for value in buffer.obs.values()) / len(buffer.rew)
    state = np.zeros((1, tree.hops), dtype=np.int64)
    by_number = to_buffer(Rollouts(state, state, np.zeros(state.shape), np.array([tree.hops])))
    print(f"an observation in the buffer: Collector {copied:,.0f} bytes, batched walk", end=" ")
    print(f"{by_number.obs.itemsize} bytes")


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
    size = PaperSize()
    tree = size.tree
    print(f"{len(tree)} queries, {len(tree.models)} models, {tree.hops} hops, {DIM} dimensions")
    print(f"{versions(tianshou, stable_baselines3, gymnasium, torch, np)}, one thread")
    with_policy(size)
    without_policy(tree)


if __name__ == "__main__":
    main()
