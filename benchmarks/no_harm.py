"""What is shipped against the best constant choice, by cross-validation over all questions.

    python benchmarks/no_harm.py --cache DIR [--folds 5] [--alphas 6] [--algos value exact]
        [--price MODEL=IN:OUT ...] [--scorer given] [--encoder NAME] [--allow-stop]
        [--questions 300]

Each fold is held out once; what is learned, and every constant choice, comes from the others, or
from so many of their questions. Alphas are quantiles of those at which a policy may change, from 0
on. For each alpha: the R of what is shipped, less that of the one choice for all questions that was
best where it learned (a fixed route or a direct call), with its interval over all questions; less
that of any constant (a route for each dataset, too, which only who is told the dataset can take);
the same of the learner itself; and how often the run was a constant.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from measuring import versions
from numpy.typing import NDArray

import hierrouter
from hierrouter.evaluation.bounds import best_ending, best_route_per_dataset
from hierrouter.evaluation.budget import policy_break_points
from hierrouter.evaluation.intervals import percentile_interval, resampled_means
from hierrouter.evaluation.outcome import fixed_route, single_calls
from hierrouter.learning.config import Objective, ValueConfig, training_config
from hierrouter.learning.sweep import train_sweep
from hierrouter.learning.training import TrainedRouter, train
from hierrouter.paper import PAPER_SCORER
from hierrouter.pools.files import price_lists
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.tree import RouteTree

Floats = NDArray[np.float64]


def constant_rewards(
    learned: RouteTree, tested: RouteTree, alpha: float, stop: bool
) -> tuple[Floats, Floats]:
    """R on `tested` of what is best on `learned`: of one choice for all, and of any constant."""
    ending = best_ending(learned, alpha, stop)
    choices = [
        (fixed_route(learned, ending), fixed_route(tested, ending)),
        *zip(single_calls(learned), single_calls(tested), strict=True),
    ]
    by_dataset = (
        best_route_per_dataset(learned, alpha, learned, stop),
        best_route_per_dataset(learned, alpha, tested, stop),
    )
    one, best = (
        max(each, key=lambda pair: pair[0].reward(alpha).mean())
        for each in (choices, [*choices, by_dataset])
    )
    return one[1].reward(alpha), best[1].reward(alpha)


def routers(
    algo: str, tree: RouteTree, alphas: Sequence[float], may: Objective
) -> list[TrainedRouter]:
    """A router for each alpha, each with the constant that is shipped instead of it, if any."""
    config = training_config("default", algo)
    if isinstance(config, ValueConfig):
        sweep = train_sweep(tree, alphas, may, config, 0)
        return [sweep.at(alpha).with_fallback(tree) for alpha in alphas]
    routers = [train(tree, replace(may, alpha=alpha), config, 0) for alpha in alphas]
    return [router.with_fallback(tree) for router in routers]


def said(differences: Floats) -> str:
    """Their mean and its interval."""
    means = resampled_means(differences[None], 2_000, np.random.default_rng(0))[0]
    low, high = percentile_interval(means, len(differences))
    return f"{differences.mean():8.4f} [{low:7.4f}, {high:7.4f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--alphas", type=int, default=6)
    parser.add_argument("--algos", nargs="+", default=["value", "exact"])
    parser.add_argument("--price", nargs="*", default=[], help="MODEL=IN:OUT")
    parser.add_argument("--scorer", default=PAPER_SCORER)
    parser.add_argument("--encoder")
    parser.add_argument("--allow-stop", action="store_true")
    parser.add_argument("--questions", type=int, help="learned from in each fold")
    args = parser.parse_args()
    print(versions(hierrouter, np))
    [prices] = price_lists([], args.price).values()
    selection = OpenTree(encoder=args.encoder, scorer=args.scorer, prices=prices)
    tree = replace(selection, cache=args.cache).run()
    may = Objective(0.0, args.allow_stop)
    points = policy_break_points(tree, args.allow_stop)
    evenly = np.arange(1, args.alphas) / args.alphas  # the greatest are those of rounding
    alphas = [0.0, *np.quantile(points, evenly).tolist()]
    place = np.random.default_rng(0).permutation(len(tree)) % args.folds
    print(f"{len(tree)} questions, {args.folds} folds")
    for algo in args.algos:
        guarded, itself, safe = np.empty((3, len(alphas), len(tree)))
        constants = np.zeros(len(alphas), np.int64)
        for fold in range(args.folds):
            held = place == fold
            drawn = np.random.default_rng(fold).permutation(np.flatnonzero(~held))
            rows = np.sort(drawn[: args.questions])
            learned, tested = tree.select(rows), tree.select(np.flatnonzero(held))
            splits = np.where(place[rows] == (fold + 1) % args.folds, "validation", "train")
            learned = replace(learned, splits=tuple(splits.tolist()))
            tested = replace(tested, splits=("test",) * len(tested))
            for number, (alpha, router) in enumerate(
                zip(alphas, routers(algo, learned, alphas, may), strict=True)
            ):
                one, least = constant_rewards(learned, tested, alpha, args.allow_stop)
                alone = replace(router, constant=None)
                safe[number, held] = router.outcome(tested).reward(alpha) - one
                guarded[number, held] = router.outcome(tested).reward(alpha) - least
                itself[number, held] = alone.outcome(tested).reward(alpha) - least
                constants[number] += router.constant is not None
        print(
            f"{algo:>12s}{'shipped, less one choice':>30s}{'less any constant':>28s}"
            f"{'the learner itself':>28s}  constant"
        )
        for number, alpha in enumerate(alphas):
            figures = (
                f"{said(safe[number]):>30s}{said(guarded[number]):>28s}{said(itself[number]):>28s}"
            )
            print(f"{alpha:12.5g}{figures}  {constants[number]} of {args.folds}", flush=True)


if __name__ == "__main__":
    main()
