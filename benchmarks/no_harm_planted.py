"""How often routers are shipped where nothing can be gained, and where a gain was planted.

    OMP_NUM_THREADS=1 python benchmarks/no_harm_planted.py [--gains 0 0.02 0.05 0.1]
        [--questions 100 300 1000] [--trees 75] [--algos value exact ppo best] [--seeds 1]
        [--equal] [--rows FILE] [--first 0]

Each tree has new questions of two kinds that the embedding shows among noise. The best fixed route
is right with the same probability on both. Another route is better on one kind, such that a router
that knows the kinds gains the planted difference of R over the best fixed route; with a gain of 0
the kinds do not differ, and every router that is shipped is a false positive. A fifth of the
questions is the fold "validation", the others are the fold "train". With --equal two routes are the
best, both equally, and all others are far worse: the worst case for the test. With several --seeds
the best training that shows a gain is shipped.

Columns: on how many trees a router is shipped by the present rule, `cross_fit`, and by the rule
before it: the lower end of the two-sided 95 % percentile interval of the gain on the fold that
chose the weights (of learners without such a fold: on left-out questions), over the route that is
the best on the questions learned from. Then the mean of R of what is shipped less R of the best
fixed route, on 2,000 new questions, for both rules; and the CPU seconds of a tree's trainings and
of the present rule (of `best` both are one).

Rows are appended to --rows as they come. Trees whose rows are there are not measured again, so that
a run can go on, or be divided with --first; --trees 0 prints what is there.

--needed checks instead how often the test finds a gain of .01 with as many questions as a constant
choice names. --worst prints how often a cross-fitted gain looks shown by its standard error where
two routes are equally good and a policy takes the one on half of the questions, the other on the
rest.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measuring import measure_cpu, versions
from scipy import special

import hierrouter
from hierrouter.evaluation.bounds import REWARD_ROUNDING, best_fixed_route
from hierrouter.evaluation.intervals import mean_intervals, queries_needed
from hierrouter.evaluation.outcome import Booleans, Floats
from hierrouter.learning.config import BestConfig, Objective, TrainConfig, preset
from hierrouter.learning.cross_fit import TEST_RATE, Repetition, train_best, with_fallback
from hierrouter.learning.router import (
    WORTHWHILE_GAIN,
    TrainedRouter,
    choosing_fold,
    training_queries,
)
from hierrouter.learning.training import train
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import DirectCalls, RouteTree, StatePart

ALPHA = 0.005
MODELS = 3
HOPS = 2
DIM = 16
NOISE = 1.0  # length of the random part of an embedding; the kind's direction has length 1
BEST_QUALITY = 0.6  # of the best fixed route
WORST_QUALITY = 0.4  # the other routes lie in between
BAD_QUALITY = 0.2  # of the others where two routes are equal
COMMON = 0.6  # share of the variance of an answer that is the question's own, in all routes
TEST_QUESTIONS = 2_000
RESAMPLES = 2_000


@dataclass(frozen=True)
class Cell:
    """What trees are drawn, and what learns from them.

    Attributes:
        questions: to learn from.
        gain: planted, in R.
        equal: whether two routes are equally good.
        algo: name of the learner.
        seeds: trainings, of which the best one is shipped.
    """

    questions: int
    gain: float
    equal: bool
    algo: str
    seeds: int


@dataclass(frozen=True)
class Row:
    """What a cell's learner did on one tree, by both rules.

    Attributes:
        cell: which one.
        number: of the tree.
        shipped: whether a router is shipped, by the present rule and by the one before.
        gain: R of what is shipped less R of the best fixed route, by both rules.
        seconds: CPU seconds of the trainings and of the present rule.
    """

    cell: Cell
    number: int
    shipped: tuple[bool, bool]
    gain: tuple[float, float]
    seconds: tuple[float, float]


def planted(cell: Cell, number: int) -> RouteTree:
    """Draw a tree of a cell; after its questions come those of the test fold."""
    gain = cell.gain
    rng = np.random.default_rng([number, cell.questions, int(gain * 1_000)])
    layout = Layout.full(MODELS, HOPS)
    count = cell.questions + TEST_QUESTIONS
    kind = rng.integers(0, 2, count)
    quality = np.zeros((2, layout.nodes))
    leaves = np.arange(layout.nodes)[layout.leaves]
    quality[:, 1:] = rng.uniform(WORST_QUALITY, BEST_QUALITY, layout.nodes - 1)
    best, other = rng.choice(leaves, 2, replace=False)
    if cell.equal:
        quality[:, 1:] = BAD_QUALITY
        quality[:, other] = BEST_QUALITY
    quality[:, best] = BEST_QUALITY
    if gain:
        quality[0, other] = WORST_QUALITY - 2 * gain
        quality[1, other] = BEST_QUALITY + 2 * gain
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
    is_validation = np.arange(cell.questions) % 5 == 4
    splits = np.where(is_validation, "validation", "train").tolist() + ["test"] * TEST_QUESTIONS
    names = tuple(f"model-{model}" for model in range(MODELS))
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
        rate=np.repeat(0.001 * np.arange(1.0, MODELS + 1)[:, None], 2, axis=1),
        parts=(StatePart(vectors.reshape(-1, DIM), rows),),
        direct=DirectCalls(
            (), empty, empty, empty.astype(np.int64), empty.astype(np.int64), np.empty((0, 2))
        ),
        scorer="planted",
        content=f"{number:032x}",
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


def fit(tree: RouteTree, config: TrainConfig, seed: int) -> TrainedRouter:
    """Train one router; `best` is judged in its training."""
    if isinstance(config, BestConfig):
        return train_best(tree, Objective(ALPHA), config, seed)
    return train(tree, Objective(ALPHA), config, seed)


def measure(cell: Cell, number: int) -> Row:
    """Train on one tree, and ship by both rules the best training that shows a gain."""
    tree = planted(cell, number)
    config = preset("default", cell.algo)
    validation = tree.split("validation")
    routers, train_seconds = measure_cpu(
        lambda: [fit(tree, config, seed) for seed in range(cell.seeds)]
    )

    def reached(router: TrainedRouter) -> float:
        return float(router.outcome(validation).reward(ALPHA).mean())

    def shipped(router: TrainedRouter) -> bool:
        if not isinstance(config, BestConfig):
            router = with_fallback(router, tree, Repetition(candidates=cell.seeds))
        return router.constant is None

    ranked = sorted(routers, key=reached, reverse=True)
    now, rule_seconds = measure_cpu(lambda: next(filter(shipped, ranked), None))
    alone = [replace(router, constant=None) for router in ranked]
    before = next((router for router in alone if is_shipped_before(router, tree)), None)
    return Row(
        cell,
        number,
        (now is not None, before is not None),
        (true_gain(now, tree), true_gain(before, tree)),
        (train_seconds, rule_seconds),
    )


def summary(rows: list[Row]) -> str:
    """Format the counts and the means of some rows of a cell."""
    shipped = np.array([row.shipped for row in rows]).sum(axis=0)
    gain = np.array([row.gain for row in rows]).mean(axis=0)
    seconds = np.array([row.seconds for row in rows]).mean(axis=0)
    return (
        f"{shipped[0]:5}{shipped[1]:8}{len(rows):7}{gain[0]:+10.4f}{gain[1]:+9.4f}"
        f"{seconds[0]:9.2f}{seconds[1]:8.2f}"
    )


def read_rows(path: Path | None) -> dict[Cell, dict[int, Row]]:
    """Read the rows of earlier runs, by cell and number of the tree."""
    rows: dict[Cell, dict[int, Row]] = {}
    lines = path.read_text().splitlines() if path and path.exists() else []
    for line in lines:
        values = json.loads(line)
        row = Row(**{**values, "cell": Cell(**values["cell"])})
        rows.setdefault(row.cell, {})[row.number] = row
    return rows


def run(cells: Iterable[Cell], numbers: Iterable[int], path: Path | None) -> None:
    """Measure the trees of some cells that are not in the file yet; print a line for each cell."""
    known = read_rows(path)
    names = f"{'planted':>8} {'learner':<10}{'seeds':>5}"
    print(f"questions{names}  now  before  trees      gain   before    train    rule")
    for cell in cells:
        rows = known.setdefault(cell, {})
        for number in numbers:
            if number in rows:
                continue
            rows[number] = measure(cell, number)
            if path:
                with path.open("a") as file:
                    file.write(json.dumps(asdict(rows[number])) + "\n")
        if rows:
            planted_gain = "equal" if cell.equal else f"{cell.gain:g}"
            names = f"{planted_gain:>8} {cell.algo:<10}{cell.seeds:>5}"
            print(f"{cell.questions:9}{names}{summary(list(rows.values()))}", flush=True)


def check_needed(draws: int) -> None:
    """Print how often a gain is found with as many questions as a constant choice names.

    Either the spread of the gains is known, or it was measured on some judged questions.
    """
    print("rate   differ  judged      questions, quartiles  found")
    for rate in (TEST_RATE, TEST_RATE / 5):
        named = partial(queries_needed, WORTHWHILE_GAIN, reach=1.0, rate=rate)
        for share in (0.02, 0.1, 0.5):
            # A policy that answers otherwise on a share of the questions, better by the gain.
            better = (share + WORTHWHILE_GAIN) / 2
            draw = partial(drawn, np.random.default_rng(0), better, share - better)
            known = named(deviation=float(np.sqrt(share - WORTHWHILE_GAIN**2)))
            found = is_found(draw(draws, known), rate)
            print(f"{rate:.3f}{share:9.0%}     all{known:22,}{found.mean():7.3f}")
            for judged in (100, 1_000):
                spreads = draw(draws, judged).std(axis=1, ddof=1)
                counts = [named(deviation=spread) for spread in spreads.tolist() if spread]
                found = np.array([is_found(draw(1, count), rate) for count in counts])
                low, high = np.quantile(counts, (0.25, 0.75)).astype(int)
                quartiles = f"{low:,} to {high:,}"
                print(f"{rate:.3f}{share:9.0%}{judged:8,}{quartiles:>22}{found.mean():7.3f}")


def drawn(
    rng: np.random.Generator, better: float, worse: float, rows: int, questions: int
) -> Floats:
    """Draw gains of 1, with the chance `better`, of -1 and of 0: float64[rows, questions]."""
    return rng.choice([1.0, -1.0, 0.0], (rows, questions), p=[better, worse, 1 - better - worse])


def is_found(gains: Floats, rate: float) -> Booleans:
    """Return bool[rows]: whether each row of float64[rows, questions] shows a gain."""
    low, _ = mean_intervals(gains, RESAMPLES, 1 - 2 * rate, np.random.default_rng(0))
    return low > REWARD_ROUNDING


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
    parser.add_argument("--algos", nargs="+", default=["value", "exact", "ppo", "best"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--needed", action="store_true")
    parser.add_argument("--worst", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{versions(hierrouter, np, torch)}, one thread")
    if args.needed:
        check_needed(args.trees)
    elif args.worst:
        check_worst(300_000)
    else:
        cells = [
            Cell(questions, gain, args.equal, algo, args.seeds)
            for questions in args.questions
            for gain in args.gains
            for algo in args.algos
        ]
        run(cells, range(args.first, args.first + args.trees), args.rows)


if __name__ == "__main__":
    main()
