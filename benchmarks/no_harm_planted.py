"""How often routers are shipped where nothing can be gained, and where a gain was planted.

    OMP_NUM_THREADS=1 python benchmarks/no_harm_planted.py [--gains 0 0.02 0.05 0.1]
        [--questions 100 300 1000] [--trees 75] [--algos value exact ppo] [--seeds 5] [--first 0]

Each tree has new questions of two kinds that the embedding shows among noise. The best fixed route
is right with the same probability on both. Another route is better on one kind, such that a router
that knows the kinds gains the planted difference of R over the best fixed route; with a gain of 0
the kinds do not differ, and every router that is shipped is a false positive. A fifth of the
questions is the fold "validation", the others are the fold "train".

Columns: the share of the trees on which a router is shipped by the present rule, `cross_fit`, and
by the rule before it: the lower end of the two-sided 95 % percentile interval of the gain on the
fold that chose the weights (of the value model: on left-out questions), over the route that is the
best on the questions learned from. Then the mean of R of what is shipped less R of the best fixed
route, on 2,000 new questions, for both rules; and the CPU seconds of the trainings and of the
present rule. Further lines are of the best of --seeds trainings. --needed checks instead how often
the test finds a gain of .01 with as many questions as a constant choice names; --worst prints how
often a cross-fitted gain looks shown by its standard error where two routes are equally good and a
policy takes the one on half of the questions, the other on the rest.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from measuring import measure_cpu, versions
from numpy.typing import NDArray
from scipy import special

import hierrouter
from hierrouter.evaluation.bounds import REWARD_ROUNDING, best_fixed_route
from hierrouter.evaluation.intervals import queries_needed
from hierrouter.learning.config import NetworkConfig, Objective, preset
from hierrouter.learning.cross_fit import TEST_RATE, Repetition, shown_gains, with_fallback
from hierrouter.learning.training import WORTHWHILE_GAIN, TrainedRouter, choosing_fold, train
from hierrouter.learning.value import training_queries
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import DirectCalls, RouteTree, StatePart

Floats = NDArray[np.float64]

ALPHA = 0.005
MODELS = 3
HOPS = 2
DIM = 16
NOISE = 1.0  # length of the random part of an embedding; the kind's direction has length 1
BEST_QUALITY = 0.6  # of the best fixed route
WORST_QUALITY = 0.4  # the other routes lie in between
COMMON = 0.6  # share of the variance of an answer that is the question's own, in all routes
TEST_QUESTIONS = 2_000
RESAMPLES = 2_000


def planted(questions: int, gain: float, seed: int) -> RouteTree:
    """Draw a tree with a planted gain; after its questions come those of the test fold."""
    rng = np.random.default_rng([seed, questions, int(gain * 1_000)])
    layout = Layout.full(MODELS, HOPS)
    count = questions + TEST_QUESTIONS
    kind = rng.integers(0, 2, count)
    quality = np.zeros((2, layout.nodes))
    leaves = np.arange(layout.nodes)[layout.leaves]
    quality[:, 1:] = rng.uniform(WORST_QUALITY, BEST_QUALITY, layout.nodes - 1)
    best, other = rng.choice(leaves, 2, replace=False)
    quality[:, best] = BEST_QUALITY
    quality[1, other] = BEST_QUALITY + 2 * gain if gain else quality[1, other]
    quality[0, other] = WORST_QUALITY - 2 * gain if gain else quality[0, other]
    own = rng.standard_normal((count, 1))
    luck = rng.standard_normal((count, layout.nodes))
    level = np.sqrt(COMMON) * own + np.sqrt(1 - COMMON) * luck
    score = (special.ndtr(level) < quality[kind]).astype(np.float64)
    score[:, 0] = 0.0
    tokens = rng.integers(20, 60, score.shape)
    tokens[:, 0] = 0
    direction = rng.standard_normal((2, DIM))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    length = NOISE / np.sqrt(DIM)
    noise = rng.standard_normal((count, layout.inner, DIM)) * length
    vectors = (direction[kind][:, None] + noise).astype(np.float32)
    rows = np.arange(count * layout.inner).reshape(count, layout.inner)
    is_validation = np.arange(questions) % 5 == 4
    splits = np.where(is_validation, "validation", "train").tolist() + ["test"] * TEST_QUESTIONS
    names = tuple(f"model-{number}" for number in range(MODELS))
    empty = np.empty((count, 0))
    return RouteTree(
        models=names,
        layout=layout,
        query_ids=tuple(map(str, range(count))),
        datasets=("planted",) * count,
        splits=tuple(splits),
        score=score,
        accuracy=score,
        tokens_in=tokens,
        tokens_out=tokens,
        rate=np.repeat(0.001 * (1 + np.arange(MODELS))[:, None], 2, axis=1),
        parts=(StatePart(vectors.reshape(-1, DIM), rows),),
        direct=DirectCalls(
            (), empty, empty, empty.astype(np.int64), empty.astype(np.int64), np.empty((0, 2))
        ),
        scorer="planted",
        content=f"{seed:032x}",
    )


def percentile_low(gains: Floats) -> float:
    """Return the lower end of the interval of the rule before: an expanded percentile."""
    count = len(gains)
    rng = np.random.default_rng(0)
    means = rng.multinomial(count, np.full(count, 1 / count), RESAMPLES) @ gains / count
    freedom = max(count - 1, 1)
    tail = special.ndtr(np.sqrt(1 + 1 / freedom) * special.stdtrit(freedom, 0.025))
    return float(np.quantile(means, tail))


def is_shipped_before(router: TrainedRouter, tree: RouteTree) -> bool:
    """Whether the rule before ships a router: by the fold that chose its weights."""
    if router.holds_out:
        fold = training_queries(tree)
        learned = fold
    else:
        fold = tree.split(choosing_fold(tree))
        learned = tree.split("train")
    fixed = best_fixed_route(learned, ALPHA, fold)
    gains = router.outcome(fold).reward(ALPHA) - fixed.reward(ALPHA)
    return percentile_low(gains) > REWARD_ROUNDING and len(fold) > 1


@dataclass
class Column:
    """What one learner did on the trees so far, by both rules."""

    shipped: list[bool] = field(default_factory=list)
    shipped_before: list[bool] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)
    gain_before: list[float] = field(default_factory=list)
    train_seconds: list[float] = field(default_factory=list)
    rule_seconds: list[float] = field(default_factory=list)

    def line(self, name: str) -> str:
        """Format the means."""
        return (
            f"{name:<14}{np.mean(self.shipped):8.3f}{np.mean(self.shipped_before):8.3f}"
            f"{np.mean(self.gain):+10.4f}{np.mean(self.gain_before):+9.4f}"
            f"{np.mean(self.train_seconds):9.2f}{np.mean(self.rule_seconds):8.2f}"
        )


def true_gain(router: TrainedRouter | None, tree: RouteTree) -> float:
    """Return the gain of what is shipped over the best fixed route, on the test fold."""
    test = tree.split("test")
    fixed = best_fixed_route(test, ALPHA, test).reward(ALPHA)
    if router is None:
        learned = training_queries(tree)
        reward = best_fixed_route(learned, ALPHA, test).reward(ALPHA)
    else:
        reward = router.outcome(test).reward(ALPHA)
    return float((reward - fixed).mean())


def add(column: Column, tree: RouteTree, seeds: Sequence[tuple[TrainedRouter, float]]) -> None:
    """Ship the best of several trainings by both rules."""
    repetition = Repetition(candidates=len(seeds))
    validation = tree.split("validation")

    def reached(router: TrainedRouter) -> float:
        return float(router.outcome(validation).reward(ALPHA).mean())

    before = [router for router, _ in seeds if is_shipped_before(router, tree)]
    best_before = max(before, key=reached) if before else None
    now = []
    seconds = 0.0
    for router, _ in seeds:
        shipped, taken = measure_cpu(partial(with_fallback, router, tree, repetition))
        seconds += taken
        now.append(shipped)
    deciding = [router for router in now if router.constant is None]
    best = max(deciding, key=reached) if deciding else None
    column.shipped.append(best is not None)
    column.shipped_before.append(best_before is not None)
    column.gain.append(true_gain(best, tree))
    column.gain_before.append(true_gain(best_before, tree))
    column.train_seconds.append(sum(taken for _, taken in seeds))
    column.rule_seconds.append(seconds)


def check_needed(trees: int) -> None:
    """Print how often a gain of .01 is found with as many questions as a constant choice names."""
    for share in (0.02, 0.1, 0.5):
        # A policy that answers otherwise on a share of the questions, better by a gain of .01.
        better = (share + WORTHWHILE_GAIN) / 2
        worse = (share - WORTHWHILE_GAIN) / 2
        deviation = np.sqrt(share - WORTHWHILE_GAIN**2)
        count = queries_needed(WORTHWHILE_GAIN, float(deviation))
        found = 0
        for seed in range(trees):
            rng = np.random.default_rng(seed)
            gains = rng.choice([1.0, -1.0, 0.0], count, p=[better, worse, 1 - share])
            low, _ = shown_gains(gains[None], TEST_RATE)
            found += bool(low[0] > REWARD_ROUNDING)
        print(f"answers differ on {share:4.0%}: {count:7,} questions, found {found / trees:.3f}")


def check_worst(draws: int) -> None:
    """Print how often a gain that does not exist exceeds a normal quantile, by number of folds."""
    rates = (0.05, 0.025)
    for folds in (2, 3, 5, 10):
        rng = np.random.default_rng(0)
        # How much better the first route is on each fold, on both halves of the questions.
        halves = rng.standard_normal((2, draws, folds)) / np.sqrt(folds)
        total = halves.sum(axis=0)
        takes_first = total.sum(axis=1, keepdims=True) - total > 0
        # The policy takes the first route on the first half; the fixed route differs on one half.
        gains = np.where(takes_first, -halves[1], halves[0]).sum(axis=1)
        wrong = [float((gains > -special.ndtri(rate)).mean()) for rate in rates]
        print(f"{folds:2} folds: " + ", ".join(f"{each:.3f}" for each in wrong), "at", rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gains", type=float, nargs="+", default=[0.0, 0.02, 0.05, 0.1])
    parser.add_argument("--questions", type=int, nargs="+", default=[100, 300, 1_000])
    parser.add_argument("--trees", type=int, default=75)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--algos", nargs="+", default=["value", "exact", "ppo"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--needed", action="store_true")
    parser.add_argument("--worst", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{versions(hierrouter, np, torch)}, one thread")
    if args.needed:
        check_needed(args.trees)
        return
    if args.worst:
        check_worst(300_000)
        return
    for questions in args.questions:
        for gain in args.gains:
            print(f"{questions} questions, planted gain {gain:g}, {args.trees} trees")
            print(
                f"{'':<14}{'shipped':>8}{'before':>8}{'gain':>10}{'before':>9}{'train':>9}{'rule':>8}"
            )
            for algo in args.algos:
                config = preset("default", algo)
                one = Column()
                best = Column()
                for number in range(args.first, args.first + args.trees):
                    tree = planted(questions, gain, number)
                    count = args.seeds if isinstance(config, NetworkConfig) else 1
                    trained = [
                        measure_cpu(partial(train, tree, Objective(ALPHA), config, seed))
                        for seed in range(max(count, 1))
                    ]
                    add(one, tree, trained[:1])
                    if count > 1:
                        add(best, tree, trained)
                print(one.line(algo), flush=True)
                if args.seeds > 1 and best.shipped:
                    print(best.line(f"{algo}, {args.seeds} seeds"), flush=True)


if __name__ == "__main__":
    main()
