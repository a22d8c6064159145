"""The value of deferral: in doubt, queries are handed over to a stronger model.

    python benchmarks/deferral.py [--cache caches/default] [--alpha 0.005] [--seeds 3]

Each model in turn is taken out of the pool and becomes the stronger model, called directly. A
router is trained on the others. All values are exact means of R on the validation fold, on which
the threshold is chosen, too; the test fold is not used. Without --cache: a planted tree and a model
outside the pool that answers four questions in five.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import measuring  # noqa: F401  makes `tests` importable

from hierrouter.evaluation.deferral import DeferralPoint, point_within
from hierrouter.learning.config import Objective, preset
from hierrouter.learning.deferral import calibrate
from hierrouter.learning.training import train
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.trees import LARGE, doubtful_tree

SHARES = (0.1, 0.3, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--alpha", type=float, default=0.005)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    for name, tree in cases(args.cache):
        for algo in ("exact", "ppo"):
            for seed in range(args.seeds):
                print_row(tree, name, args.alpha, algo, seed)


def cases(cache: Path | None) -> Iterator[tuple[str, RouteTree]]:
    """Yield a model's name, and a tree without that model, with its direct calls only."""
    if cache is None:
        yield LARGE, doubtful_tree()
        return
    tree = OpenTree(cache=cache).run()
    for name in tree.models:
        part = OpenTree(cache=cache, without=(name,)).run()
        yield name, replace(part, direct=tree.direct)


def print_row(tree: RouteTree, name: str, alpha: float, algo: str, seed: int) -> None:
    """Train a router, and print R for several shares of queries that are handed over.

    In parentheses: R if the queries are chosen at random, and by an oracle.
    """
    router = train(tree, Objective(alpha), preset("default", algo), seed)
    deferral = calibrate(router, tree, name)
    curve = deferral.on_fold(tree.split("validation")).curve(alpha)
    best = deferral.point or curve[0]
    bound = max(point.oracle for point in curve)
    shares = "  ".join(f"{share:.0%} {describe(point_within(curve, share))}" for share in SHARES)
    print(
        f"to {name}, {algo}, seed {seed}: R alone {curve[0].reward:.4f}, "
        f"stronger {curve[-1].reward:.4f}, best {describe(best)} at {best.share:.1%}, "
        f"oracle {bound:.4f} | {shares}"
    )


def describe(point: DeferralPoint) -> str:
    return f"{point.reward:.4f} ({point.chance:.4f}, {point.oracle:.4f})"


if __name__ == "__main__":
    main()
