"""What a gradient step, the paper's epoch and an exact evaluation cost, against others.

    OMP_NUM_THREADS=1 python benchmarks/training.py [--only steps epoch curve value]

On a synthetic tree of the paper's size (1,260 train queries, 3 models, 2 hops, 768 dimensions) with
the paper's preset: Tianshou as it comes, Stable-Baselines3, ours, and plain torch as the limit; see
`rivals.py`. `curve` prints the exact expected R of each after every epoch, over several seeds. One
process, one thread, CPU seconds without imports, interleaved rounds of which the first is not
counted, medians.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import gymnasium
import numpy as np
import rivals
import stable_baselines3
import tianshou
import torch
from measuring import measure_interleaved, versions
from paper_size import ALPHA, ENVS, PaperSize
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor

from hierrouter.evaluation.bounds import best_fixed_route, oracle
from hierrouter.evaluation.outcome import policy_outcome
from hierrouter.learning.network import RouterNetwork, TrainingFold, action_probabilities
from hierrouter.learning.ppo import AdamFactory, PPOLearner, Trunk, build_ppo, to_buffer
from hierrouter.replay.env import QueryStream, Rollouts, walk

PARTS = ("steps", "epoch", "curve", "value")

Way = Callable[[], object]


class World(PaperSize):
    """The tree, and everybody who learns on it."""

    @property
    def fold(self) -> TrainingFold:
        """All of it, as ours learns from it."""
        return TrainingFold(self.tree, self.actions, self.table)

    def sampled(self, router: RouterNetwork, query: np.ndarray) -> Rollouts:
        """An episode on each query under the stochastic policy."""
        act = self.sampler(router, np.random.default_rng(0))
        return walk(self.actions, self.tree.node_reward(ALPHA), query, act)

    def learner(self, seed: int) -> PPOLearner:
        """Ours."""
        rng = np.random.default_rng(seed)
        return PPOLearner(self.router(), self.fold, ALPHA, self.config, rng)

    def stock(self, envs: int, seed: int = 0) -> rivals.StockTianshou:
        """Tianshou with networks of its own."""
        heads = rivals.tianshou_heads(self.tree, ALPHA, self.config)
        return rivals.StockTianshou(self.tree, ALPHA, self.config, heads, envs, seed)

    def value(self, logits: Tensor) -> float:
        """Exact expected R of the stochastic policy."""
        chances = torch.softmax(logits.double(), dim=1).numpy()
        by_query = chances.reshape(len(self.tree), -1, self.actions.count)
        outcome = policy_outcome(self.tree, self.actions, by_query, "", "router")
        return float(outcome.reward(ALPHA).mean())


def measure(ways: dict[str, Way], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each way."""
    found = measure_interleaved(ways, rounds)
    return {name: statistics.median(spent for _, spent in runs) for name, runs in found.items()}


def show(seconds: dict[str, float], per: int, compared: list[str]) -> None:
    """Milliseconds of each, and times what the compared ones take."""
    for name, spent in seconds.items():
        ratios = "".join(f"{spent / seconds[other]:9.2f} x {other}" for other in compared)
        print(f"{name:42s}{1000 * spent / per:10.2f} ms{ratios}")


def steps(world: World, rounds: int) -> None:
    """One gradient step; the pass for old values and advantages that 64 of them share is in it."""
    config, tree = world.config, world.tree
    stock, stable = world.stock(ENVS), rivals.Stable(tree, ALPHA, config, seed=0)
    stock.collect()
    stable.collect()
    rng = np.random.default_rng(0)
    episodes = world.sampled(world.router(), rng.integers(0, len(tree), config.rollouts))
    plain = rivals.Plain(world.router(), world.table, config)
    ways = {
        "Tianshou as it comes": stock.update,
        "Stable-Baselines3": stable.update,
        "Tianshou with our networks, each asking the trunk": update(world, episodes, False),
        "Tianshou with our networks": update(world, episodes, True),
        "plain torch": lambda: plain.update(episodes),
    }
    count = config.minibatches * config.update_epochs
    size = config.rollouts * tree.hops // config.minibatches
    print(f"a gradient step of {size} rows, hidden {config.hidden}:")
    show(measure(ways, rounds), count, ["plain torch"])


def update(world: World, episodes: Rollouts, shares: bool) -> Way:
    """Tianshou's update on these episodes, with or without the critic sharing features."""
    config = world.config
    total = config.epochs * config.iterations * config.minibatches * config.update_epochs
    adam = AdamFactory(config, total)
    algorithm = build_ppo(Trunk(world.router(), world.table.rows), config, adam)
    if not shares:
        algorithm.critic.trunk.keep_for_critic = lambda *output: None
    buffer = to_buffer(episodes)

    def learn() -> None:
        with policy_within_training_step(algorithm.policy):
            algorithm.update(buffer, len(buffer) // config.minibatches, config.update_epochs)

    return learn


def epoch(world: World, rounds: int) -> None:
    """One epoch of the paper's preset, collecting and learning."""
    tree, config = world.tree, world.config
    ways = {
        "Tianshou as it comes, 1 environment": world.stock(1).epoch,
        f"Tianshou as it comes, {ENVS} environments": world.stock(ENVS).epoch,
        f"Stable-Baselines3, {ENVS} environments": rivals.Stable(tree, ALPHA, config, 0).epoch,
        "ours": world.learner(0).epoch,
        "plain torch": plain_epoch(world),
    }
    gradients = config.iterations * config.minibatches * config.update_epochs
    print(f"an epoch: {config.iterations} x {config.rollouts} episodes, {gradients} steps:")
    show(measure(ways, rounds), 1, ["ours", "plain torch"])


def plain_epoch(world: World) -> Way:
    """The limit: batched episodes, plain torch."""
    router, rng = world.router(), np.random.default_rng(0)
    plain = rivals.Plain(router, world.table, world.config)
    queries = QueryStream(len(world.tree), rng)

    def learn() -> None:
        for _ in range(world.config.iterations):
            plain.update(world.sampled(router, queries.draw(world.config.rollouts)))

    return learn


def curve(world: World, epochs: int, seeds: int) -> None:
    """Exact expected R after each epoch: mean and standard deviation over seeds."""
    fixed = best_fixed_route(world.tree, ALPHA, world.tree).reward(ALPHA).mean()
    bound = oracle(world.tree, ALPHA).reward(ALPHA).mean()
    print(f"learning curves, {seeds} seeds: best fixed route {fixed:.4f}, oracle {bound:.4f}")
    kinds = {
        "Tianshou": stock_curve,
        "Stable-Baselines3": stable_curve,
        "Tianshou, our router": same_network_curve,
        "ours": our_curve,
    }
    found = {
        name: np.array([kind(world, epochs, seed) for seed in range(seeds)])
        for name, kind in kinds.items()
    }
    for done in range(epochs + 1):
        values = "   ".join(
            f"{name} {curves[:, done].mean():.4f} +- {curves[:, done].std(ddof=1):.4f}"
            for name, curves in found.items()
        )
        print(f"after {done:2d} epochs: {values}")
    last = {name: curves[:, -1] for name, curves in found.items()}
    for name in list(kinds)[:-1]:
        apart = last["ours"].mean() - last[name].mean()
        error = np.sqrt((last["ours"].var(ddof=1) + last[name].var(ddof=1)) / seeds)
        print(f"ours - {name} at the end: {apart:+.4f}, standard error {error:.4f}")


def followed(way: Way, value: Callable[[], float], epochs: int) -> list[float]:
    """Values before the first epoch and after each."""
    values = [value()]
    for _ in range(epochs):
        way()
        values.append(value())
    return values


@torch.no_grad()
def value_of(world: World, logits: Callable[[], Tensor]) -> float:
    """See `World.value`."""
    return world.value(logits())


def stock_curve(world: World, epochs: int, seed: int) -> list[float]:
    """Tianshou as it comes."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    return tianshou_curve(world, world.stock(ENVS, seed), epochs)


def same_network_curve(world: World, epochs: int, seed: int) -> list[float]:
    """Tianshou's collector, update and trainer with the network that ours trains."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    router = world.router()
    heads = rivals.RouterActor(router), rivals.RouterCritic(router)
    stock = rivals.StockTianshou(world.tree, ALPHA, world.config, heads, ENVS, seed)
    return tianshou_curve(world, stock, epochs)


def tianshou_curve(world: World, stock: rivals.StockTianshou, epochs: int) -> list[float]:
    value = partial(value_of, world, partial(stock.logits, world.table))
    return followed(stock.epoch, value, epochs)


def stable_curve(world: World, epochs: int, seed: int) -> list[float]:
    """Stable-Baselines3; it knows no warm-up of gradient steps."""
    stable = rivals.Stable(world.tree, ALPHA, world.config, seed)
    value = partial(value_of, world, partial(stable.logits, world.table))
    return followed(stable.epoch, value, epochs)


def our_curve(world: World, epochs: int, seed: int) -> list[float]:
    """The learner behind `train`."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    learner = world.learner(seed)
    value = partial(value_of, world, lambda: learner.router(world.table.rows(slice(None)))[0])
    return followed(learner.epoch, value, epochs)


def value(world: World, rounds: int) -> None:
    """The value of a policy on every query, exact and sampled."""
    tree, router = world.tree, world.router()
    whole = replace(world.config, rollouts=len(tree))
    heads = rivals.tianshou_heads(tree, ALPHA, whole)
    stock = rivals.StockTianshou(tree, ALPHA, whole, heads, ENVS, seed=0)
    everyone, fold = np.arange(len(tree)), world.fold

    @torch.no_grad()
    def forward() -> None:
        router(world.table.rows(slice(None)))

    ways = {
        "sampled once, Tianshou's collector": stock.collect,
        "sampled once, batched walk": lambda: world.sampled(router, everyone).reward.sum(),
        "exact, stochastic policy": lambda: world.value(
            torch.from_numpy(np.log(action_probabilities(router, world.table)))
        ),
        "exact, greedy policy": lambda: fold.value(router, ALPHA),
        "forward over all decision nodes": forward,
    }
    print(f"the value of a policy on {len(tree)} queries, {len(world.table)} decision nodes:")
    show(
        measure(ways, rounds), 1, ["sampled once, batched walk", "forward over all decision nodes"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=10, help="of the learning curves")
    parser.add_argument("--seeds", type=int, default=5, help="of the learning curves")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gymnasium.logger.min_level = gymnasium.logger.ERROR  # bounds lose digits in float32
    print(f"{versions(tianshou, stable_baselines3, gymnasium, torch, np)}, one thread")
    world = World()
    parts = {
        "steps": lambda: steps(world, args.rounds),
        "epoch": lambda: epoch(world, args.rounds),
        "curve": lambda: curve(world, args.epochs, args.seeds),
        "value": lambda: value(world, args.rounds),
    }
    for name in args.only:
        parts[name]()


if __name__ == "__main__":
    main()
