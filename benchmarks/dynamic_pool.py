"""The cost of routing to a model that joined the pool after training, without retraining.

    python benchmarks/dynamic_pool.py [--cache caches/default] [--alpha 0.005] [--seeds 3]

Each model in turn is left out of the pool. A policy over features of models is trained without it,
and then routes in the complete pool. It is compared with the same policy trained on the complete
pool, with the default router trained on it, with the best route of each dataset, and with the
oracle. All values are exact means of R on the validation fold; the test fold is not used. Without
--cache: planted trees of five models.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import measuring  # noqa: F401  makes `tests` importable
import numpy as np
from featured import train_featured

from hierrouter.evaluation.bounds import best_route_per_dataset, oracle
from hierrouter.learning.config import Objective, preset
from hierrouter.learning.training import train
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import planted_tree, sub_pool

PLANTED_TREES = ((1.0, 0), (2.0, 3))  # length of the noise on embeddings, and seed


@dataclass(frozen=True)
class Rewards:
    """Mean R on the validation fold before and after a model joins; one column for each field."""

    oracle_without: float
    without: float
    joined: float
    retrained: float
    router: float
    per_dataset: float
    oracle: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--alpha", type=float, default=0.005)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    for title, tree in trees(args.cache):
        print(f"{title}, alpha {args.alpha:g}, validation fold, mean of {args.seeds} seeds")
        print("".join(f"{name:>16}" for name in ("model", *Rewards.__dataclass_fields__)))
        for name in tree.models:
            rewards = [rewards_without(tree, name, args.alpha, seed) for seed in range(args.seeds)]
            table = np.array([list(vars(seed_rewards).values()) for seed_rewards in rewards])
            print(f"{name:>16}" + "".join(f"{value:16.4f}" for value in table.mean(axis=0)))
            print(f"{'worst seed':>16}" + "".join(f"{value:16.4f}" for value in table.min(axis=0)))


def trees(cache: Path | None) -> Iterator[tuple[str, RouteTree]]:
    if cache:
        yield str(cache), OpenTree(cache=cache).run()
        return
    for noise, seed in PLANTED_TREES:
        tree = planted_tree(models=5, families=8, noise=noise, seed=seed)
        yield f"planted, noise {noise:g}", tree


def rewards_without(tree: RouteTree, name: str, alpha: float, seed: int) -> Rewards:
    """Train with and without a model, and return the mean rewards."""
    objective = Objective(alpha)
    part = sub_pool(tree, [other for other in tree.models if other != name])
    train_fold = tree.split("train")
    fold = tree.split("validation")
    before = train_featured(part, objective, seed=seed)
    without = before.outcome(part.split("validation"), part.split("train"))
    retrained = train_featured(tree, objective, seed=seed).outcome(fold, train_fold)
    router = train(tree, objective, preset("default", "exact"), seed).outcome(fold)
    outcomes = (
        oracle(part.split("validation"), alpha),
        without,
        before.outcome(fold, train_fold),
        retrained,
        router,
        best_route_per_dataset(train_fold, alpha, fold),
        oracle(fold, alpha),
    )
    return Rewards(*(float(outcome.reward(alpha).mean()) for outcome in outcomes))


if __name__ == "__main__":
    main()
