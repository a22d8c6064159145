"""A model that joins after the training: what routing to it without retraining costs.

    python benchmarks/dynamic_pool.py [--cache caches/default] [--alpha 0.005] [--seeds 3]

Each model in turn is left out of the pool. A policy over features of models is trained without it,
then routes in the whole pool; beside it the same policy trained on the whole pool, the default
router trained on it, the best route of each dataset and the oracle. All values are exact means of R
on the validation fold; the test fold is not looked at. Without --cache: planted trees of five
models.
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

PLANTED = ((1.0, 0), (2.0, 3))  # length of the noise on embeddings, and the seed


@dataclass(frozen=True)
class Joined:
    """R on validation before and after a model joins; a column each."""

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
        print("".join(f"{name:>16}" for name in ("model", *Joined.__dataclass_fields__)))
        for name in tree.models:
            rows = [left_out(tree, name, args.alpha, seed) for seed in range(args.seeds)]
            table = np.array([list(vars(row).values()) for row in rows])
            print(f"{name:>16}" + "".join(f"{value:16.4f}" for value in table.mean(axis=0)))
            print(f"{'worst seed':>16}" + "".join(f"{value:16.4f}" for value in table.min(axis=0)))


def trees(cache: Path | None) -> Iterator[tuple[str, RouteTree]]:
    if cache:
        yield str(cache), OpenTree(cache=cache).run()
        return
    for noise, seed in PLANTED:
        tree = planted_tree(models=5, families=8, noise=noise, seed=seed)
        yield f"planted, noise {noise:g}", tree


def left_out(tree: RouteTree, name: str, alpha: float, seed: int) -> Joined:
    objective = Objective(alpha)
    part = sub_pool(tree, [other for other in tree.models if other != name])
    known, fold = tree.split("train"), tree.split("validation")
    before = train_featured(part, objective, seed=seed)
    without = before.outcome(part.split("validation"), part.split("train"))
    retrained = train_featured(tree, objective, seed=seed).outcome(fold, known)
    router = train(tree, objective, preset("default", "exact"), seed).outcome(fold)
    outcomes = (
        oracle(part.split("validation"), alpha),
        without,
        before.outcome(fold, known),
        retrained,
        router,
        best_route_per_dataset(known, alpha, fold),
        oracle(fold, alpha),
    )
    return Joined(*(float(outcome.reward(alpha).mean()) for outcome in outcomes))


if __name__ == "__main__":
    main()
