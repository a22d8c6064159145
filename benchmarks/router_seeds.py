"""Train a default router on a collected testbed with several seeds; print mean and worst results.

    OMP_NUM_THREADS=1 python benchmarks/router_seeds.py [--cache caches/default]
        [--alpha 0.005] [--seeds 5] [--first 0] [--algo ppo] [--fold test]
        [--preset paper] [--set learning_rate=1e-3 entropy_coefficient=0.02 ...] [--judge DIR]

The script prints R of the router, of the best single model, of the best fixed route, of the best
route per dataset and of the oracle; the share of the gap that the router closes; its quality on
`riddle`; the low end of the paired 95 % interval of its smallest margin over any fixed route or
single model; and the CPU seconds of training. To tune settings, use `--fold validation`. It also
chooses the weights: `--judge` takes the fold of another cache instead. `--set` changes settings of
the preset, by their names in `hierrouter.learning.config`.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from measuring import measure_cpu, versions

import hierrouter
from hierrouter.evaluation.bounds import best_route_per_dataset, oracle
from hierrouter.evaluation.intervals import mean_intervals
from hierrouter.evaluation.outcome import Outcome, fixed_routes, single_calls
from hierrouter.learning.config import CONFIG_CLASSES, Objective, TrainConfig, preset
from hierrouter.learning.training import train
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.tree import RouteTree

HARDEST_DATASET = "riddle"


class Line(NamedTuple):
    """The results of one seed."""

    reward: float
    gap: float
    factor: float
    hardest: float
    margin: float
    seconds: float

    def text(self, name: str) -> str:
        """Format the results as one line."""
        return (
            f"{name:<7} R {self.reward:.4f}  gap closed {self.gap:.3f}"
            f"  Q x{self.factor:.2f} of best single  {HARDEST_DATASET} Q {self.hardest:.3f}"
            f"  smallest margin's low end {self.margin:+.3f}  {self.seconds:.1f} CPU-s"
        )


class Competition:
    """The policies that a router is compared with on one fold."""

    def __init__(self, tree: RouteTree, fold: RouteTree, alpha: float) -> None:
        self.fold = fold
        self.alpha = alpha
        routes = fixed_routes(fold)
        singles = single_calls(fold)
        self._rewards = np.array([outcome.reward(alpha) for outcome in [*singles, *routes]])
        self.single = max(singles, key=lambda call: call.quality.mean())
        self.fixed = max(routes, key=self.reward)
        self.informed = best_route_per_dataset(tree.split("train"), alpha, fold)
        self.bound = oracle(fold, alpha)

    def reward(self, outcome: Outcome) -> float:
        """Return the mean R of an outcome."""
        return float(outcome.reward(self.alpha).mean())

    def show(self) -> None:
        """Print the mean result of each policy."""
        print(f"best single {self.single.name}: Q {self.single.quality.mean():.4f}")
        print(f"best fixed route {self.fixed.name}: R {self.reward(self.fixed):.4f}")
        print(f"best route per dataset: R {self.reward(self.informed):.4f}")
        print(f"oracle: R {self.reward(self.bound):.4f}")

    def line(self, router: Outcome, seconds: float) -> Line:
        """Compare a router with all policies."""
        fixed = self.reward(self.fixed)
        is_hardest = np.array(self.fold.datasets) == HARDEST_DATASET
        hardest = float("nan")
        if is_hardest.any():
            hardest = float(router.quality[is_hardest].mean())
        margins = router.reward(self.alpha) - self._rewards
        low, _ = mean_intervals(
            margins, 10_000, 0.95, np.random.default_rng(0), strata=self.fold.datasets
        )
        return Line(
            reward=self.reward(router),
            gap=(self.reward(router) - fixed) / (self.reward(self.bound) - fixed),
            factor=float(router.quality.mean() / self.single.quality.mean()),
            hardest=hardest,
            margin=float(low.min()),
            seconds=seconds,
        )


def change_settings(config: TrainConfig, changes: Sequence[str]) -> TrainConfig:
    """Return settings with changes `name=value`, the value in JSON."""
    values = {}
    for change in changes:
        name, _, value = change.partition("=")
        values[name] = json.loads(value)
    return replace(config, **values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path("caches/default"))
    parser.add_argument("--alpha", type=float, default=0.005)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--algo", choices=sorted(CONFIG_CLASSES), default="ppo")
    parser.add_argument("--fold", choices=("validation", "test"), default="validation")
    parser.add_argument("--preset", choices=("default", "paper"), default="default")
    parser.add_argument("--judge", type=Path)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{versions(hierrouter, torch)}, one thread")
    tree = OpenTree(cache=args.cache).run()
    judged_on = OpenTree(cache=args.judge).run() if args.judge else tree
    competition = Competition(judged_on, judged_on.split(args.fold), args.alpha)
    config = change_settings(preset(args.preset, args.algo), args.set)
    settings = " ".join([f"{args.algo}, preset {args.preset}", *args.set])
    print(f"{args.fold} fold: {len(competition.fold)} queries, alpha {args.alpha:g}, {settings}")
    competition.show()
    lines = []
    for seed in range(args.first, args.first + args.seeds):
        router, seconds = measure_cpu(partial(train, tree, Objective(args.alpha), config, seed))
        lines.append(competition.line(router.outcome(competition.fold), seconds))
        print(lines[-1].text(f"seed {seed}"), flush=True)
    table = np.array(lines)
    worst = table.min(axis=0)
    worst[-1] = table[:, -1].max()
    print(Line(*table.mean(axis=0)).text("mean"))
    print(Line(*worst).text("worst"))


if __name__ == "__main__":
    main()
