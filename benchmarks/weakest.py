"""Where each learner is weakest: planted trees with many models, hops, prices, numbers and noise.

    OMP_NUM_THREADS=1 python benchmarks/weakest.py [--cells NAME ...] [--trees 2] [--first 0]
        [--algos value ridge groups clusters mean best exact ppo kNN]

Questions are of eight families, each with a route that is right; two families make a data set. The
best policy that is possible takes the right route, or the cheapest one where the right one is too
dear. A cell is the share of the way that a learner's R goes from the best fixed route to that
policy, on 400 new questions, in the mean over trees, and CPU seconds of a fit; then by how much of
that way the learner named "best" stays below the best of the others. kNN is the baseline of
`compare`, over all routes. Each learner decides, whatever would be shipped.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from measuring import measure_cpu, versions

import hierrouter
from hierrouter.evaluation.bounds import best_fixed_route
from hierrouter.learning.baselines.arms import macro_arms
from hierrouter.learning.baselines.classifiers import NearestNeighbours
from hierrouter.learning.baselines.registry import one_thread
from hierrouter.learning.config import BestConfig, Objective, training_config
from hierrouter.learning.cross_fit import train_best
from hierrouter.learning.training import train
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import planted_tree, right_paths

FAMILIES = 8
TEST_QUESTIONS = 50  # of each family
KNN = "kNN"
BASE: dict[str, Any] = {
    "models": 3,
    "hops": 2,
    "dim": 64,
    "luck": 0.02,
    "noise": 1.0,
    "n": 300,
    "alpha": 0.1,
}
CELLS: dict[str, dict[str, Any]] = {
    "n-30": {"n": 30},
    "n-100": {"n": 100},
    "n-300": {},
    "n-1000": {"n": 1_000},
    "n-20000": {"n": 20_000},
    "8x2": {"models": 8},
    "8x3": {"models": 8, "hops": 3},
    "prices": {"spread": 90.0, "alpha": 0.02},
    "luck": {"luck": 0.1},
    "768": {"dim": 768},
    "3072": {"dim": 3_072},
    "noise": {"noise": 2.0},
    "all": {"models": 8, "hops": 3, "spread": 90.0, "alpha": 0.02, "luck": 0.1, "dim": 768},
}


def planted(settings: dict[str, Any], seed: int) -> tuple[RouteTree, float, float]:
    """Draw a tree of a cell.

    Args:
        settings: see `BASE`; `n` is the number of questions to learn from.
        seed: of the tree.

    Returns:
        The tree; the mean R on its test fold of the fixed route that is the best there, and of the
        best policy that is possible.
    """
    settings = {**BASE, **settings}
    count = settings.pop("n")
    alpha = settings.pop("alpha")
    per_family = (math.ceil(count / FAMILIES), 0, TEST_QUESTIONS)
    tree = planted_tree(families=FAMILIES, per_family=per_family, seed=seed, **settings)
    family = np.repeat(np.arange(FAMILIES), sum(per_family))
    right = right_paths(tree.layout, family, np.random.default_rng(seed))
    nodes = np.array([tree.layout.node(tuple(path)) for path in right.tolist()])
    is_test = np.array(tree.splits) == "test"
    reward = tree.score - alpha * tree.cost
    leaves = np.arange(tree.layout.nodes)[tree.layout.leaves]
    order = leaves[tree.cost[:, leaves].mean(axis=0).argsort(kind="stable")].tolist()
    best = 0.0
    for number in range(FAMILIES):
        rows = np.flatnonzero(is_test & (family == number))
        after_first_call = 0.0
        # A question of the last family says its right second model after the first call.
        for node in np.unique(nodes[rows]).tolist():
            group = rows[nodes[rows] == node]
            first = tree.layout.path(node)[0]
            cheap = next(leaf for leaf in order if tree.layout.path(leaf)[0] == first)
            after_first_call += max(reward[group, node].sum(), reward[group, cheap].sum())
        best += max(after_first_call, reward[rows, order[0]].sum())
    best /= is_test.sum()
    learned = np.random.default_rng(seed).permutation(np.flatnonzero(~is_test))[:count]
    splits = np.full(len(tree), "test", dtype="<U10")
    splits[learned] = "train"
    splits[learned[: count // 5]] = "validation"
    rows = np.sort(np.concatenate([learned, np.flatnonzero(is_test)]))
    tree = replace(
        tree,
        datasets=tuple(f"set-{number // 2}" for number in family),
        splits=tuple(splits.tolist()),
    ).select(rows)
    test = tree.split("test")
    fixed = float(best_fixed_route(test, alpha, test).reward(alpha).mean())
    return tree, fixed, float(best)


def reward_of(algo: str, tree: RouteTree, alpha: float) -> float:
    """The mean R of a learner, or of kNN, on the test fold."""
    test = tree.split("test")
    if algo == KNN:
        learned = macro_arms(tree.split("train"))
        validation = macro_arms(tree.split("validation"))
        fitted = NearestNeighbours().fit(learned, validation, alpha, np.random.default_rng(0))
        arms = macro_arms(test)
        return float(fitted.play(arms.seen).outcome(arms, KNN).reward(alpha).mean())
    config = replace(training_config("default", algo), keep_anyway=True)
    if isinstance(config, BestConfig):
        router = train_best(tree, Objective(alpha), config, 0)
    else:
        router = train(tree, Objective(alpha), config, 0)
    return float(router.outcome(test).reward(alpha).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--trees", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="seed of the first tree")
    parser.add_argument(
        "--algos",
        nargs="+",
        default=[*("value", "ridge", "groups", "clusters", "mean"), *("best", "exact", "ppo", KNN)],
    )
    args = parser.parse_args()
    print(versions(hierrouter, np))
    print(f"{'':>8s}" + "".join(f"{algo:>14s}" for algo in args.algos) + "  loss of best")
    for name in args.cells:
        print(f"{name:>8s}", end="", flush=True)
        alpha = {**BASE, **CELLS[name]}["alpha"]
        trees = [planted(CELLS[name], seed) for seed in range(args.first, args.first + args.trees)]
        shares: dict[str, float] = {}
        for algo in args.algos:
            each = []
            spent = 0.0
            for tree, fixed, best in trees:
                fit: Callable[[], float] = partial(reward_of, algo, tree, alpha)
                with one_thread():
                    reward, seconds = measure_cpu(fit)
                each.append((reward - fixed) / (best - fixed))
                spent += seconds / len(trees)
            shares[algo] = float(np.mean(each))
            print(f"{shares[algo]:7.3f} {spent:5.1f}s", end="", flush=True)
        others = [share for algo, share in shares.items() if algo != "best"]
        loss = f"{max(others) - shares['best']:12.3f}" if "best" in shares and others else ""
        print(f"{loss:>14s}", flush=True)


if __name__ == "__main__":
    main()
