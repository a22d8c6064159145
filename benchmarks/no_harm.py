"""Compare shipped routers with the best constant choice, by cross-validation over all questions.

    python benchmarks/no_harm.py --cache DIR [--folds 5] [--alphas 6] [--algos value exact]
        [--price MODEL=IN:OUT ...] [--scorer given] [--encoder NAME] [--allow-stop]
        [--questions 300]

Each fold is held out once. Routers and constant choices are learned from the other folds, or from
--questions of their questions. Alphas are 0 and quantiles of the values at which a policy may
change. A constant choice is the same for all questions (a fixed route or a direct call), or for all
questions of a dataset, which a user can take only if he knows the dataset; the best one on the
training folds counts. Columns, each with its interval over all questions: R of the shipped router
minus R of the best single choice; minus R of the best constant; R of the learner itself minus R of
the best constant; and how often the shipped router was a constant. The script exits with 1 if a
shipped router is worse than the best single choice: if its interval is below 0.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from measuring import versions
from numpy.typing import NDArray

import hierrouter
from hierrouter.evaluation.bounds import REWARD_ROUNDING, best_ending, best_route_per_dataset
from hierrouter.evaluation.budget import policy_break_points
from hierrouter.evaluation.intervals import interval
from hierrouter.evaluation.outcome import Outcome, fixed_route, single_calls
from hierrouter.learning.config import Objective, ValueConfig, training_config
from hierrouter.learning.cross_fit import Repetition, sweep_with_fallback, with_fallback
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.sweep import train_sweep
from hierrouter.learning.training import train
from hierrouter.paper import PAPER_SCORER
from hierrouter.pools.files import price_lists
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.tree import RouteTree

Floats = NDArray[np.float64]


def constant_rewards(
    learned: RouteTree, tested: RouteTree, alpha: float, stop: bool
) -> tuple[Floats, Floats]:
    """Return the rewards of constant choices on `tested` that are best on `learned`.

    Args:
        learned: the tree on which choices are compared.
        tested: the tree on which the best ones are evaluated.
        alpha: the price of cost in R.
        stop: whether a route may stop before the last hop.

    Returns:
        float64[questions] each: R of the best choice for all questions, and of the best constant,
        which may also be a route for each dataset.
    """
    ending = best_ending(learned, alpha, stop)
    # Outcomes on (learned, tested).
    single_choices = [
        (fixed_route(learned, ending), fixed_route(tested, ending)),
        *zip(single_calls(learned), single_calls(tested), strict=True),
    ]
    by_dataset = (
        best_route_per_dataset(learned, alpha, learned, stop),
        best_route_per_dataset(learned, alpha, tested, stop),
    )

    def learned_reward(outcomes: tuple[Outcome, Outcome]) -> float:
        return float(outcomes[0].reward(alpha).mean())

    _, single = max(single_choices, key=learned_reward)
    _, constant = max([*single_choices, by_dataset], key=learned_reward)
    return single.reward(alpha), constant.reward(alpha)


def routers(
    algo: str, tree: RouteTree, alphas: Sequence[float], objective: Objective
) -> list[TrainedRouter]:
    """Train a router for each alpha, each with the constant that is shipped instead, if any."""
    config = training_config("default", algo)
    if isinstance(config, ValueConfig):
        sweep = train_sweep(tree, alphas, objective, config, 0)
        sweep = sweep_with_fallback(sweep, tree, Repetition())
        return [sweep.at(alpha) for alpha in alphas]
    routers = [train(tree, replace(objective, alpha=alpha), config, 0) for alpha in alphas]
    return [with_fallback(router, tree, Repetition()) for router in routers]


def alphas_of(tree: RouteTree, count: int, allow_stop: bool = False) -> list[float]:
    """0 and quantiles of the values at which a policy may change."""
    points = policy_break_points(tree, allow_stop)
    # Without the largest points, which are due to rounding.
    levels = np.arange(1, count) / count
    return [0.0, *np.quantile(points, levels).tolist()]


def held_out(
    tree: RouteTree, folds: int, questions: int | None = None
) -> Iterator[tuple[NDArray[np.bool_], RouteTree, RouteTree]]:
    """Hold out each fold of the questions once.

    Args:
        tree: the questions.
        folds: how many; they are drawn at random.
        questions: learned from in each fold; None is all others.

    Yields:
        bool[questions], which ones are held out; the tree to learn from, of which one fold is
        "validation"; the tree that is held out.
    """
    fold_of = np.random.default_rng(0).permutation(len(tree)) % folds
    for fold in range(folds):
        is_tested = fold_of == fold
        shuffled = np.random.default_rng(fold).permutation(np.flatnonzero(~is_tested))
        rows = np.sort(shuffled[:questions])
        splits = np.where(fold_of[rows] == (fold + 1) % folds, "validation", "train")
        learned = replace(tree.select(rows), splits=tuple(splits.tolist()))
        tested = tree.select(np.flatnonzero(is_tested))
        yield is_tested, learned, replace(tested, splits=("test",) * len(tested))


def interval_of(differences: Floats) -> tuple[float, float]:
    """Return the interval of the mean of differences, float64[questions]."""
    return interval(differences, 2_000, rng=np.random.default_rng(0))


def mean_text(differences: Floats) -> str:
    """Format the mean of differences, float64[questions], and its interval."""
    low, high = interval_of(differences)
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
    objective = Objective(0.0, args.allow_stop)
    alphas = alphas_of(tree, args.alphas, args.allow_stop)
    print(f"{len(tree)} questions, {args.folds} folds")
    harms = 0
    for algo in args.algos:
        # Differences of R, float64[alphas, questions].
        shape = (len(alphas), len(tree))
        less_single = np.empty(shape)
        less_constant = np.empty(shape)
        learner_less_constant = np.empty(shape)
        constants = np.zeros(len(alphas), np.int64)
        for is_tested, learned, tested in held_out(tree, args.folds, args.questions):
            for number, router in enumerate(routers(algo, learned, alphas, objective)):
                alpha = alphas[number]
                single, constant = constant_rewards(learned, tested, alpha, args.allow_stop)
                learner = replace(router, constant=None)
                reward = router.outcome(tested).reward(alpha)
                less_single[number, is_tested] = reward - single
                less_constant[number, is_tested] = reward - constant
                learner_reward = learner.outcome(tested).reward(alpha)
                learner_less_constant[number, is_tested] = learner_reward - constant
                if router.constant is not None:
                    constants[number] += 1
        print(
            f"{algo:>12s}{'shipped, less one choice':>30s}{'less any constant':>28s}"
            f"{'the learner itself':>28s}  constant"
        )
        for number, alpha in enumerate(alphas):
            figures = (
                f"{mean_text(less_single[number]):>30s}{mean_text(less_constant[number]):>28s}"
                f"{mean_text(learner_less_constant[number]):>28s}"
            )
            is_harm = interval_of(less_single[number])[1] < -REWARD_ROUNDING
            harms += is_harm
            ending = "  HARM" if is_harm else ""
            print(
                f"{alpha:12.5g}{figures}  {constants[number]} of {args.folds}{ending}", flush=True
            )
    sys.exit(1 if harms else 0)


if __name__ == "__main__":
    main()
