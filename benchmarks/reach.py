"""Time until a router is as good as it gets: ours, and the same PPO by others on our environment.

    OMP_NUM_THREADS=1 python benchmarks/reach.py --cache caches/default [--alpha 0.005] [--seeds 3]

All learn on the train fold, and the exact R of the greedy policy on the validation fold says how
far they are. What is to be reached is 99 % of the way from the best fixed route to the best that
any of ours ends with. PPO has the settings of our default preset everywhere; others see float
vectors, see `rivals.py`. One process, one thread, CPU seconds without imports. Our seconds include
what `train` does beside learning (states, exact values after each epoch); of the others only their
own epochs count. PufferLib is measured where it is installed. Who is not there after --limit times
the seconds of our PPO is ended.
"""

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import rivals
import stable_baselines3
import tianshou
import torch
from measuring import versions
from torch import Tensor, nn
from torch.distributions import Categorical

from hierrouter.evaluation.bounds import best_fixed_route
from hierrouter.evaluation.outcome import Actions, greedy, policy_outcome
from hierrouter.learning.config import Objective, PPOConfig, TrainConfig, preset
from hierrouter.learning.network import state_table
from hierrouter.learning.training import train
from hierrouter.replay.env import Rollouts
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.tree import RouteTree

ENVS = 128
SHARE = 0.99


class Puffer:
    """Episodes from PufferLib's `Serial` vector, learned from in plain torch as CleanRL does."""

    def __init__(self, tree: RouteTree, alpha: float, config: PPOConfig, seed: int) -> None:
        import pufferlib.emulation
        import pufferlib.vector

        def one() -> Any:
            return pufferlib.emulation.GymnasiumPufferEnv(rivals.flat_env(tree, alpha))

        self._vector = pufferlib.vector.make(one, num_envs=ENVS, backend=pufferlib.vector.Serial)
        self._seen, _ = self._vector.reset(seed)
        self._config, self._hops = config, tree.hops
        self.network = Heads(self._seen.shape[1], config.hidden, len(tree.models))
        self._learner = rivals.Plain(self.network, self, config)  # type: ignore[arg-type]

    def rows(self, number: Tensor) -> Tensor:
        """What was seen at these steps of the iteration."""
        return self._kept[number]

    def epoch(self) -> None:
        """All iterations of an epoch."""
        for _ in range(self._config.iterations):
            self._learner.update(self._collected())

    @torch.no_grad()
    def _collected(self) -> Rollouts:
        kept, actions, rewards = [], [], []
        for _ in range(self._config.rollouts // ENVS):
            for _ in range(self._hops):
                seen = torch.from_numpy(self._seen.copy())
                drawn = Categorical(logits=self.network(seen)[0]).sample()  # type: ignore[no-untyped-call]
                action = drawn.numpy()
                self._seen, reward, *_ = self._vector.step(action)
                kept.append(seen)
                actions.append(action)
                rewards.append(reward.copy())
            self._seen, *_ = self._vector.step(action)  # the end of an episode: it resets
        shape = -1, self._hops, ENVS
        by_episode = (np.stack(each).reshape(shape).swapaxes(1, 2) for each in (actions, rewards))
        self._kept = torch.stack(kept).reshape(*shape, self._seen.shape[1]).swapaxes(1, 2)
        self._kept = self._kept.reshape(-1, self._seen.shape[1])
        action, reward = (each.reshape(-1, self._hops) for each in by_episode)
        state = np.arange(action.size).reshape(action.shape)
        return Rollouts(state, action, reward, np.full(len(action), self._hops))


class Heads(nn.Module):
    """Two layers under both heads."""

    def __init__(self, width: int, hidden: int, actions: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            *(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        )
        self.actor, self.critic = nn.Linear(hidden, actions), nn.Linear(hidden, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(seen)
        return self.actor(features), self.critic(features)[:, 0]


class Task:
    """Two folds, a price of cost, and what counts as reached."""

    def __init__(self, tree: RouteTree, alpha: float) -> None:
        self.tree, self.alpha = tree, alpha
        self.train, self.validation = tree.split("train"), tree.split("validation")
        self.table = state_table(self.validation, Objective(alpha))
        self.fixed = float(
            best_fixed_route(self.train, alpha, self.validation).reward(alpha).mean()
        )
        self.target = np.inf

    def value(self, logits: Tensor) -> float:
        """Exact R on validation of the greedy policy with these logits, float32[states, M]."""
        actions = Actions(self.validation.layout)
        chances = torch.softmax(logits.double(), dim=1).numpy()
        table = greedy(chances, self.tree.base_rate, actions.returns)
        by_query = table.reshape(len(self.validation), -1, actions.count)
        found = policy_outcome(self.validation, actions, by_query, "", "router")
        return float(found.reward(self.alpha).mean())

    def ours(self, config: TrainConfig, seed: int) -> list[tuple[float, float]]:
        """(CPU seconds, R on validation) after each epoch of `train`; of the value model, once."""
        started, found = time.process_time(), []

        def note(done: int, total: int, learned: float, chosen: float) -> None:
            found.append((time.process_time() - started, chosen))

        router = train(self.tree, Objective(self.alpha), config, seed, note)
        if not np.isnan([value for _, value in found]).any():
            return found
        spent = time.process_time() - started
        outcome = router.outcome(self.validation)
        return [(spent, float(outcome.reward(self.alpha).mean()))]

    def other(
        self, epoch: Callable[[], object], logits: Callable[[], Tensor]
    ) -> Iterator[tuple[float, float]]:
        """The same of somebody else's epochs, without end."""
        spent = 0.0
        while True:
            started = time.process_time()
            epoch()
            spent += time.process_time() - started
            with torch.no_grad():
                yield spent, self.value(logits())

    def tianshou(self, config: PPOConfig, seed: int) -> Iterator[tuple[float, float]]:
        """Tianshou's collector, update and trainer on its own networks."""
        heads = rivals.tianshou_heads(self.train, self.alpha, config)
        stock = rivals.StockTianshou(self.train, self.alpha, config, heads, ENVS, seed)
        return self.other(stock.epoch, lambda: stock.logits(self.table))

    def stable(self, config: PPOConfig, seed: int) -> Iterator[tuple[float, float]]:
        """Stable-Baselines3."""
        stable = rivals.Stable(self.train, self.alpha, config, seed)
        return self.other(stable.epoch, lambda: stable.logits(self.table))

    def puffer(self, config: PPOConfig, seed: int) -> Iterator[tuple[float, float]]:
        """PufferLib's environments side by side, plain torch."""
        stock = Puffer(self.train, self.alpha, config, seed)
        shown = rivals.features(self.table, self.tree.layout)
        return self.other(stock.epoch, lambda: stock.network(shown)[0])

    def reached(self, curve: Iterator[tuple[float, float]], limit: float) -> tuple[float, float]:
        """When the target was reached, inf where it was not; and the best R until then."""
        best = -np.inf
        for spent, value in curve:
            best = max(best, value)
            if value >= self.target:
                return spent, best
            if spent > limit:
                break
        return np.inf, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--alpha", type=float, default=0.005)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    gymnasium.logger.min_level = gymnasium.logger.ERROR  # bounds lose digits in float32
    print(f"{versions(tianshou, stable_baselines3, gymnasium, torch, np)}, one thread")
    task = Task(OpenTree(cache=args.cache).run(), args.alpha)
    config = preset("default")
    assert isinstance(config, PPOConfig)
    task.ours(replace(config, epochs=1), 0)  # what is done once is done
    curves = {
        name: [task.ours(preset("default", algo), seed) for seed in range(args.seeds)]
        for name, algo in (("train", "ppo"), ("--algo exact", "exact"), ("--algo value", "value"))
    }
    best = max(value for runs in curves.values() for run in runs for _, value in run)
    task.target = task.fixed + SHARE * (best - task.fixed)
    print(f"alpha {args.alpha:g}: best fixed route {task.fixed:.4f}, best of ours {best:.4f}")
    print(f"reached is {task.target:.4f} on {len(task.validation)} validation questions")
    ours = [task.reached(iter(run), np.inf) for run in curves["train"]]
    limit = args.limit * statistics.median(spent for spent, _ in ours)
    found = {
        name: [task.reached(iter(run), np.inf) for run in runs] for name, runs in curves.items()
    }
    others = {"Stable-Baselines3": task.stable, f"Tianshou, {ENVS}": task.tianshou}
    if importlib.util.find_spec("pufferlib"):
        others |= {f"PufferLib, {ENVS}": task.puffer}
    for name, start in others.items():
        found[name] = []
        for seed in range(args.seeds):
            torch.manual_seed(seed)
            np.random.seed(seed)
            found[name].append(task.reached(start(config, seed), limit))
    unit = statistics.median(spent for spent, _ in found["train"])
    for name, runs in found.items():
        spent = statistics.median(seconds for seconds, _ in runs)
        each = ", ".join(f"{seconds:.2f} s" for seconds, _ in runs)
        print(
            f"{name:20s}{spent:8.2f} CPU-s {spent / unit:7.2f} x train   ({each}); "
            f"best R {max(value for _, value in runs):.4f}"
        )


if __name__ == "__main__":
    main()
