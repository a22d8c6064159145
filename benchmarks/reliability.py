"""Compare how probable routers say it is that their choices are the best with how often they are.

    python benchmarks/reliability.py [--data DATA] [--pools mmlu-pro ...] [--folds 5]
        [--cache DIR ...] [--state VIEW] [--allow-stop] [--allow-return]
        [--algos value ridge mean] [--alphas 8]

DATA is a folder of tables of real answers, see `policy_classes.py`: each fold of the questions is
held out once. Of a cache the test fold is held out. Alphas are 0 and quantiles of the values at
which a policy may change, and all decisions at all of them count.

Columns: decisions; the mean probability that was said, and the share of choices that were the best;
the calibration error over ten groups of equally many decisions: the mean absolute difference of the
two in a group, what chance alone would make of it, and the root of its mean square without what
chance adds (a negative one: less than that). Chance is that of the questions: all decisions on a
question are drawn together. Then the same of the softmax of the expected R, which was said to be
that probability before; and the mean R.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from measuring import versions
from no_harm import Floats, alphas_of, held_out
from numpy.typing import NDArray
from policy_classes import POOLS, tree_of

import hierrouter
from hierrouter.declarations.flags import DEFAULT_VIEW
from hierrouter.evaluation.bounds import greedy_decisions
from hierrouter.evaluation.outcome import greedy
from hierrouter.learning.baselines.registry import one_thread
from hierrouter.learning.config import Objective, training_config
from hierrouter.learning.sweep import train_sweep
from hierrouter.replay.open_tree import OpenTree
from hierrouter_cache.tree import RouteTree

GROUPS = 10
HEADER = (
    f"{'pool':>12s}{'learner':>8s}{'n':>8s}{'said':>7s}{'were':>7s}{'error':>7s}{'chance':>8s}"
    f"{'without':>9s}{'softmax: said':>15s}{'error':>7s}{'without':>9s}{'R':>9s}"
)


def calibration_error(
    said: Floats, is_best: Floats, question: NDArray[np.int64]
) -> tuple[float, float, float]:
    """Compute how far probabilities are from shares, over groups of equally many decisions.

    Args:
        said: float64[n], probabilities.
        is_best: float64[n], 1 or 0.
        question: int64[n], the question of each decision.

    Returns:
        The expected calibration error; what it would be by chance if every probability held, by
        the normal distribution; and the root of the mean square less the variance of each group's
        difference, with the sign of that (Kumar, Liang and Ma 2019, with questions as clusters).
    """
    error = chance = square = 0.0
    for rows in np.array_split(np.argsort(said, kind="stable"), GROUPS):
        excess = is_best[rows] - said[rows]
        difference = excess.mean()
        _, cluster = np.unique(question[rows], return_inverse=True)
        variance = (np.bincount(cluster, excess - difference) ** 2).sum() / len(rows) ** 2
        share = len(rows) / len(said)
        error += share * abs(difference)
        chance += share * np.sqrt(2 * variance / np.pi)
        square += share * (difference**2 - variance)
    return error, chance, float(np.sign(square) * np.sqrt(abs(square)))


def decisions(
    algo: str, learned: RouteTree, tested: RouteTree, alphas: Sequence[float], objective: Objective
) -> Iterator[tuple[NDArray[np.int64], Floats, Floats, Floats, float]]:
    """Yield the decisions of a learner at each alpha.

    Yields:
        int64[n], positions of the questions; what was said, and what the softmax says, float64[n];
        float64[n], 1 if the choice was the best; and the mean R.
    """
    config = replace(training_config("default", algo), keep_anyway=True)
    with one_thread():
        sweep = train_sweep(learned, alphas, objective, config, 0)
        for alpha in alphas:
            router = sweep.at(alpha)
            policy = router.probabilities(tested)
            choice = greedy(policy, tested.base_rate, router.actions.returns).argmax(axis=2)
            probability = router.choice_probability(tested, choice)
            assert probability is not None, f"{algo} does not say how probable it is"
            fold = objective.view(tested)
            question, said, is_best, _ = greedy_decisions(
                fold, router.actions, choice, probability, alpha
            )
            _, softmax, *_ = greedy_decisions(
                fold, router.actions, choice, policy.max(axis=2), alpha
            )
            reward = float(router.outcome(tested).reward(alpha).mean())
            yield question, said, softmax, is_best.astype(np.float64), reward


def line(
    pool: str,
    algo: str,
    parts: Sequence[tuple[RouteTree, RouteTree]],
    alphas: Sequence[float],
    objective: Objective,
) -> str:
    """Format a line of the table, over all held-out parts of a pool."""
    questions: list[NDArray[np.int64]] = []
    figures: list[Floats] = []  # what was said, what the softmax says, and what was the best
    rewards = []
    offset = 0
    for learned, tested in parts:
        for number, *columns, reward in decisions(algo, learned, tested, alphas, objective):
            questions.append(number + offset)
            figures.append(np.stack(columns))
            rewards.append(reward)
        offset += len(tested)
    question = np.concatenate(questions)
    said, softmax, is_best = np.concatenate(figures, axis=1)
    error, chance, without = calibration_error(said, is_best, question)
    error_before, _, without_before = calibration_error(softmax, is_best, question)
    return (
        f"{pool:>12s}{algo:>8s}{len(said):8,d}{said.mean():7.3f}{is_best.mean():7.3f}"
        f"{error:7.3f}{chance:8.3f}{without:9.3f}{softmax.mean():15.3f}{error_before:7.3f}"
        f"{without_before:9.3f}{np.mean(rewards):9.5f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--pools", nargs="+", choices=list(POOLS), default=list(POOLS))
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--cache", nargs="*", type=Path, default=[])
    parser.add_argument("--state", default=DEFAULT_VIEW)
    parser.add_argument("--allow-stop", action="store_true")
    parser.add_argument("--allow-return", action="store_true")
    parser.add_argument("--algos", nargs="+", default=["value", "ridge", "mean"])
    parser.add_argument("--alphas", type=int, default=8)
    args = parser.parse_args()
    print(versions(hierrouter, np))
    print(HEADER)
    objective = Objective(0.0, args.allow_stop, args.allow_return)
    if args.data:
        for pool in args.pools:
            tree = tree_of(POOLS[pool](args.data))
            parts = [(learned, tested) for _, learned, tested in held_out(tree, args.folds)]
            for algo in args.algos:
                print(line(pool, algo, parts, alphas_of(tree, args.alphas), Objective(0.0)))
    for cache in args.cache:
        tree = OpenTree(cache=cache, state=args.state, allow_return=args.allow_return).run()
        alphas = alphas_of(tree.split("train"), args.alphas, objective.ends_early)
        for algo in args.algos:
            parts = [(tree, tree.split("test"))]
            print(line(cache.name[-12:], algo, parts, alphas, objective), flush=True)


if __name__ == "__main__":
    main()
