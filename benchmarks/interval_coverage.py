"""How often intervals hold what they should, at nominal 95 %, and how wide they are.

    OMP_NUM_THREADS=1 python benchmarks/interval_coverage.py [--samples 2000] [--resamples 10000]
        [--sizes 30 90 900] [--table FILE | --timing | --luck]

Samples of 30, 90 and 900 queries from populations whose means are known, see
`tests/hierrouter/evaluation/simulated.py`. Ours is named first, other ways beside it, with the mean
width of the interval divided by that of expanded percentiles, which were ours before:

* single figures and paired differences, also with rare losses and wins, many ties, lognormal costs:
  ours; expanded percentiles of drawn queries; Student's t; BCa;
* means over several data sets, each with its own level: the strata counted, and not counted;
* share of the gap closed: the best fixed route of the sample kept, or chosen anew in each resample;
* one router against 15 policies, all intervals at once: ours; max-t; Bonferroni; one at a time;
* one router against 20 policies that are just as good: the chance that it is called better than at
  least one.

With --table FILE the first of these on real answers: a table of scores (parquet; query_id, model,
score) of models that answered the same questions, each alone and every two. With --timing: CPU
seconds and memory of the 10,000 resamples of a report, ours, by counts of drawn queries, and by
scipy alone. With --luck: trees of one and of two hops with 2, 4 and 8 draws a call and known luck,
`--samples` each: how often the intervals of both bounds and of each term of regret hold the planted
value.
"""

import argparse
import math
import resource
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path

import measuring
import numpy as np
import pyarrow.parquet as pq
import scipy
from numpy.typing import NDArray
from scipy import special, stats

from hierrouter.evaluation.bounds import oracle, split_oracle, split_plan_oracle
from hierrouter.evaluation.intervals import (
    AMOUNTS,
    DIFFERENCES,
    SHARES,
    ValueRange,
    cost_ratio_interval,
    expanded_tail,
    gap_closed_interval,
    interval,
    largest_amount,
    mean_intervals,
    simultaneous_intervals,
)
from hierrouter.evaluation.outcome import fixed_routes
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.evaluation.simulated import (
    ALPHA,
    QUERIES,
    contest,
    costs,
    coverage,
    lucky_truth,
)
from tests.hierrouter.trees import lucky_tree

LEVEL = 0.95
SIZES = (30, 90, 900)
POPULATION_PARTS = 10  # of `QUERIES` queries each, so that tails are as long as they should be
WEIGHT_SEEDS = 8  # generators of the weights; samples share them, which saves most of the time
Floats = NDArray[np.float64]
Ends = tuple[Floats, Floats]
Way = Callable[[Floats, np.random.Generator], Ends]


def main() -> None:
    """Print a table for each number of queries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--resamples", type=int, default=10_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--timing", action="store_true")
    parser.add_argument("--luck", action="store_true")
    args = parser.parse_args()
    print(measuring.versions(np, scipy))
    if args.timing:
        timing()
        return
    if args.luck:
        luck(args.samples, args.resamples)
        return
    warnings.simplefilter("ignore")  # t of samples that do not vary
    print(f"{args.samples} samples, a quarter from 900 queries on; {args.resamples} resamples")
    figures = answers(args.table) if args.table else figures_of()
    for queries in args.sizes:
        samples = args.samples if queries < 900 else args.samples // 4
        single(figures, queries, samples, args.resamples)
        if args.table:
            continue
        stratified(queries, samples, args.resamples)
        gaps(queries, samples, args.resamples)
        ratios(queries, samples, args.resamples)
        family(queries, samples, args.resamples)
        false_claims(queries, samples, args.resamples)


def scores(rng: np.random.Generator, wrong: float, right: float) -> Floats:
    """float64[queries]: 0 and 1 with these probabilities, else partly right."""
    kind = rng.random(QUERIES)
    partly = rng.beta(1.2, 2, QUERIES)
    return np.where(kind < wrong, 0.0, np.where(kind < wrong + right, 1.0, partly))


@dataclass(frozen=True)
class Figure:
    """A figure of every query of a population.

    Attributes:
        values: float64[queries].
        within: the values that a query may have, where calls are free.
        lowering: float64[queries], alpha * C of the policy, if costs lower the figure.
        raising: float64[queries], alpha * C of the other policy of a difference.
    """

    values: Floats
    within: ValueRange
    lowering: Floats | None = None
    raising: Floats | None = None

    def range_of(self, drawn: NDArray[np.int64]) -> ValueRange:
        """Return the range that a sample of the queries tells, as a report does."""
        low = self.within.low
        high = self.within.high
        if self.lowering is not None:
            low -= largest_amount(self.lowering[drawn])
        if self.raising is not None:
            high += largest_amount(self.raising[drawn])
        return ValueRange(low, high)


def joined(parts: Sequence[Figure]) -> Figure:
    """Return one figure of the queries of several."""

    def join(name: str) -> Floats | None:
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else np.concatenate(arrays)

    values = np.concatenate([part.values for part in parts])
    return Figure(values, parts[0].within, join("lowering"), join("raising"))


def figures_of() -> dict[str, Figure]:
    """Rewards, costs, and differences of two policies, by name."""
    parts = [part_of_figures(np.random.default_rng(seed)) for seed in range(POPULATION_PARTS)]
    return {name: joined([part[name] for part in parts]) for name in parts[0]}


def part_of_figures(rng: np.random.Generator) -> dict[str, Figure]:
    """The figures of a part of the population."""
    figures = {}
    for wrong, right in ((0.35, 0.45), (0.8, 0.1), (0.05, 0.9)):
        lowering = ALPHA * costs(rng, 1)
        values = scores(rng, wrong, right) - lowering
        figures[f"R, {wrong:.0%} wrong, {right:.0%} right"] = Figure(values, SHARES, lowering)
    for right in (0.9, 0.99):
        values = (rng.random(QUERIES) < right).astype(float)
        figures[f"Q, {right:.0%} right"] = Figure(values, SHARES)
    for spread in (0.6, 1.0, 1.5):
        figures[f"C, lognormal {spread}"] = Figure(costs(rng, 1, spread), AMOUNTS)
    for ties in (0.6, 0.7, 0.77):
        figures[f"difference, {ties:.0%} ties"] = difference(rng, ties, scores(rng, 0.4, 0.4))
        worse = np.minimum(scores(rng, 0.35, 0.45), scores(rng, 0.6, 0.3))
        figures[f"difference, {ties:.0%} ties, one-sided"] = difference(rng, ties, worse)
    for share in (0.01, 0.03, 0.1):
        loss = -(rng.random(QUERIES) < share).astype(float)
        figures[f"difference, loss in {share:.0%}"] = Figure(loss, DIFFERENCES)
    for share in (0.01, 0.03):
        win = (rng.random(QUERIES) < share).astype(float)
        figures[f"difference, win in {share:.0%}"] = Figure(win, DIFFERENCES)
    chance = rng.random(QUERIES)
    sign = np.where(chance < 0.015, -1.0, np.where(chance < 0.03, 1.0, 0.0))
    figures["difference, 97% ties, -1 or 1"] = Figure(sign, DIFFERENCES)
    partly = np.where(rng.random(QUERIES) < 0.97, 0.0, rng.uniform(-1, 1, QUERIES))
    figures["difference, 97% ties, partly"] = Figure(partly, DIFFERENCES)
    cheaper = np.where(rng.random(QUERIES) < 0.02, -0.997, 0.003)
    figures["difference, cheaper, loss in 2%"] = Figure(cheaper, DIFFERENCES)
    for spread in (1.0, 1.5):
        # The policy calls a model that costs five times as much, on one question in three.
        lowering = 0.1 * costs(rng, 1, spread)
        raising = 0.02 * costs(rng, 1, spread)
        other = rng.random(QUERIES) < 1 / 3
        better = np.where(rng.random(QUERIES) < 0.25, 1.0, 0.0)
        better -= rng.random(QUERIES) < 0.1
        values = np.where(other, better - lowering + raising, 0.0)
        figures[f"difference, C lognormal {spread}"] = Figure(
            values, DIFFERENCES, np.where(other, lowering, raising), raising
        )
    return figures


def difference(rng: np.random.Generator, ties: float, other: Floats) -> Figure:
    """R of a policy less R of one that does the same on a share of the queries.

    `other`: float64[queries], score of the second policy where it does something else.
    """
    lowering = ALPHA * costs(rng, 1.5)
    raising = ALPHA * costs(rng, 1)
    gained = scores(rng, 0.35, 0.45) - other - (lowering - raising)
    values = np.where(rng.random(QUERIES) < ties, 0.0, gained)
    return Figure(values, DIFFERENCES, lowering, raising)


def ladder(seed: int, apart: float) -> tuple[Floats, Floats, Floats]:
    """Rewards of 9 fixed routes, of a router that closes a third of the gap, and of the oracle.

    `apart`: how much the routes differ in skill; 0 makes all equally good. Returns float64[9,
    queries] and float64[queries] twice.
    """
    rng = np.random.default_rng(seed)
    skill = np.linspace(-apart, 0, 9)[:, None] + 0.4
    merit = skill + rng.normal(0, 1.3, QUERIES) + rng.normal(0, 0.8, (9, QUERIES))
    routes = (merit > 0) - ALPHA * np.array([costs(rng, 1.2) for _ in range(9)])
    oracle, best = routes.max(axis=0), routes[routes.mean(axis=1).argmax()]
    return routes, np.where(rng.random(QUERIES) < 0.35, oracle, best), oracle


def answers(table: Path) -> dict[str, Figure]:
    """Scores of every model, and differences of every two."""
    by_model: dict[str, dict[str, float]] = {}
    for row in pq.read_table(table, columns=["query_id", "model", "score"]).to_pylist():
        by_model.setdefault(row["model"], {})[row["query_id"]] = row["score"]
    scores = [
        np.array([of_query[query] for query in sorted(of_query)], float)
        for of_query in by_model.values()
    ]
    figures = {
        f"{number} {name}"[:35]: Figure(scores[number], SHARES)
        for number, name in enumerate(by_model)
    }
    for first, second in combinations(range(len(scores)), 2):
        values = scores[first] - scores[second]
        figures[f"{first} - {second}"] = Figure(values, DIFFERENCES)
    return figures


def single(figures: Mapping[str, Figure], queries: int, samples: int, n: int) -> None:
    """Print coverage and width of the interval of each figure."""
    population = np.array([figure.values for figure in figures.values()])
    truth = population.mean(axis=1)
    names = ("ours", "expanded", "t")
    covered = {name: np.zeros(len(truth)) for name in names}
    width = {name: np.zeros(len(truth)) for name in names}
    without_width = np.zeros(len(truth))
    sampling = np.random.default_rng(0)
    for number in range(samples):
        drawn = sampling.integers(population.shape[1], size=queries)
        sample = population[:, drawn]
        ranges = [figure.range_of(drawn) for figure in figures.values()]
        seed = number * WEIGHT_SEEDS // samples
        ends = {
            "ours": mean_intervals(sample, n, LEVEL, np.random.default_rng(seed), ranges),
            "expanded": expanded(sample, n, seed),
            "t": students(sample),
        }
        for name, (low, high) in ends.items():
            covered[name] += (low <= truth + ROUNDING) & (truth <= high + ROUNDING)
            width[name] += high - low
        low, high = ends["expanded"]
        without_width += high - low <= ROUNDING
    table: dict[str, Floats | list[float]] = {
        **{name: counts / samples for name, counts in covered.items()},
        "width": width["ours"] / width["expanded"],
        "expanded: none": without_width / samples,
    }
    show(f"{queries} queries", list(figures), table)


ROUNDING = 1e-12


@lru_cache(maxsize=2)
def drawn_counts(queries: int, n: int, seed: int) -> NDArray[np.float32]:
    """float32[n, queries]: share of each query in resamples drawn with replacement."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(queries, np.full(queries, 1 / queries), n)
    return (counts / queries).astype(np.float32)


def expanded(sample: Floats, n: int, seed: int, level: float = LEVEL) -> Ends:
    """Expanded percentiles of means of drawn queries: the intervals of earlier versions."""
    queries = sample.shape[1]
    means = sample @ drawn_counts(queries, n, seed).T
    tail = expanded_tail(queries - 1, (queries - 1) / queries, (1 - level) / 2)
    low, high = np.quantile(means, [tail, 1 - tail], axis=1)
    return low, high


def students(sample: Floats) -> Ends:
    """Student's interval of the mean of each row."""
    return tuple(stats.ttest_1samp(sample, 0, axis=1).confidence_interval(LEVEL))


def stratified(queries: int, samples: int, n: int) -> None:
    """Print coverage and width of means over six data sets, each with its own level."""
    rng = np.random.default_rng(1)
    levels = np.array([0.02, 0.1, 0.3, 0.5, 0.9, 0.98])
    dataset = np.arange(queries) % len(levels)
    truth = float(levels[dataset].mean())
    covered = {"strata counted": 0, "not counted": 0}
    width = dict.fromkeys(covered, 0.0)
    for number in range(samples):
        values = (rng.random(queries) < levels[dataset]).astype(float)
        for name, strata in (("strata counted", dataset), ("not counted", None)):
            weights = np.random.default_rng(number * WEIGHT_SEEDS // samples)
            low, high = interval(values, n, LEVEL, rng=weights, within=SHARES, strata=strata)
            covered[name] += low <= truth <= high
            width[name] += high - low
    table: dict[str, list[float]] = {name: [count / samples] for name, count in covered.items()}
    table["width"] = [width["strata counted"] / width["not counted"]]
    show(f"six data sets, {queries} queries", ["Q"], table)


def gaps(queries: int, samples: int, n: int) -> None:
    """Coverage of the share of the gap closed."""
    table: dict[str, list[float]] = {"kept": [], "chosen anew": []}
    cases = {"9 routes equally good": 0.0, "9 routes apart": 1.0}
    for apart in cases.values():
        routes, router, oracle = ladder(seed=1, apart=apart)
        population = np.concatenate([routes, [router, oracle]])
        truth = share(population.mean(axis=1))
        for name, way in (("kept", route_kept), ("chosen anew", route_chosen_anew)):
            covers = partial(holds, partial(way, n=n), truth)
            table[name].append(float(coverage(population, queries, samples, covers)))
    show(f"gap closed, {queries} queries", list(cases), table)


def share(means: Floats) -> Floats:
    """(router - best route) / (oracle - best route); routes first, then router and oracle."""
    *routes, router, oracle = means
    best = np.max(routes, axis=0)
    return np.asarray((router - best) / (oracle - best))


def route_kept(sample: Floats, rng: np.random.Generator, n: int) -> Ends:
    *routes, router, oracle = sample
    best = max(routes, key=np.mean)
    weights = np.random.default_rng(0)
    ends = gap_closed_interval(router, best, oracle, n, LEVEL, weights) or (-math.inf, math.inf)
    return np.array(ends[0]), np.array(ends[1])


def route_chosen_anew(sample: Floats, rng: np.random.Generator, n: int) -> Ends:
    queries = sample.shape[1]
    means = sample @ drawn_counts(queries, n, 0).T
    tail = expanded_tail(queries - 1, (queries - 1) / queries, (1 - LEVEL) / 2)
    low, high = np.quantile(share(means), [tail, 1 - tail])
    return low, high


def ratios(queries: int, samples: int, n: int) -> None:
    """Print coverage of what a router saves of the cost of a model: one less a ratio of means."""
    rng = np.random.default_rng(1)
    table: dict[str, list[float]] = {"ours": []}
    spreads = (0.6, 1.0)
    for spread in spreads:
        model = costs(rng, 1, spread)
        router = np.where(rng.random(QUERIES) < 0.3, model, 0.1 * costs(rng, 1, spread))
        truth = router.mean() / model.mean()
        covers = partial(holds, partial(savings, n=n), truth)
        population = np.array([router, model])
        table["ours"].append(float(coverage(population, queries, samples, covers)))
    show(f"savings, {queries} queries", [f"C, lognormal {one}" for one in spreads], table)


def savings(sample: Floats, rng: np.random.Generator, n: int) -> Ends:
    """The interval of the ratio of two costs, as a report makes it."""
    router, model = sample
    low, high = cost_ratio_interval(router, model, n, LEVEL, rng)
    return np.array(low), np.array(high)


def family(queries: int, samples: int, n: int) -> None:
    """Print how often all 15 intervals hold."""
    population = contest(seed=1)
    truth = population.mean(axis=1)
    ways = family_ways(n)

    def all_hold(way: Way, sample: Floats, rng: np.random.Generator) -> NDArray[np.bool_]:
        return np.asarray(np.all(holds(way, truth, sample, rng)))

    table: dict[str, Floats | list[float]] = {
        name: [float(coverage(population, queries, samples, partial(all_hold, way)))]
        for name, way in ways.items()
    }
    show(f"all of 15, {queries} queries", ["all hold"], table)


def false_claims(queries: int, samples: int, n: int) -> None:
    """Print how often a router is called better than one of 20 policies that are as good."""
    kinds = {
        "as often better as worse": (0.1, 1.0, 0.1, 1.0),
        "cheaper by .01, loss in 1%": (0.0, 0.0, 0.01, 1.0),
        "win in 1%, dearer by .01": (0.01, 1.0, 0.0, 0.0),
    }
    table: dict[str, list[float]] = {name: [] for name in family_ways(n)}
    table["expanded"] = []
    for kind in kinds.values():
        population = equal_policies(np.random.default_rng(1), *kind)
        for name, way in [*family_ways(n).items(), ("expanded", expanded_way(n))]:
            claims = partial(is_called_better, way)
            table[name].append(float(coverage(population, queries, samples, claims)))
    show(f"false claims, 20 policies, {queries} queries", list(kinds), table)


def equal_policies(
    rng: np.random.Generator, win: float, gain: float, lose: float, loss: float
) -> Floats:
    """float64[20, queries]: R of a router less that of policies with the same mean.

    Args:
        rng: source of the draws.
        win: share of the queries on which the router gains.
        gain: how much.
        lose: share of the queries on which it loses.
        loss: how much.
    """
    chance = rng.random((20, QUERIES))
    # Half of the policies' luck is the router's own, which all differences share.
    shared = rng.random(QUERIES)
    chance = np.where(rng.random((20, QUERIES)) < 0.5, shared, chance)
    values = gain * (chance < win) - loss * (chance > 1 - lose)
    return values - values.mean(axis=1, keepdims=True)


def is_called_better(way: Way, sample: Floats, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Whether the interval of some difference is above 0."""
    low, _ = way(sample, rng)
    return np.asarray(bool((low > 0).any()))


def family_ways(n: int) -> dict[str, Way]:
    """Intervals of many comparisons by name; all use the same weights for all samples."""
    return {
        "ours": lambda sample, _: simultaneous_intervals(
            sample, n, LEVEL, np.random.default_rng(0)
        ),
        "max-t": lambda sample, _: max_t(sample, n),
        "Bonferroni": lambda sample, _: bonferroni(sample),
        "one at a time": lambda sample, _: mean_intervals(
            sample, n, LEVEL, np.random.default_rng(0)
        ),
    }


def expanded_way(n: int) -> Way:
    """One interval at a time, as in earlier versions."""
    return lambda sample, _: expanded(sample, n, 0)


def max_t(sample: Floats, n: int) -> Ends:
    """Mean -+ c standard errors with one c: the simultaneous intervals of earlier versions."""
    queries = sample.shape[1]
    mean = sample.mean(axis=1)
    error = sample.std(axis=1) / math.sqrt(queries)
    varies = error > np.finfo(float).eps * np.abs(mean)
    critical = -special.ndtri((1 - LEVEL) / 2)
    if varies.any():
        means = sample[varies] @ drawn_counts(queries, n, 0).T
        deviation = np.abs(means - mean[varies, None]) / error[varies, None]
        critical = max(critical, np.quantile(deviation.max(axis=0), LEVEL))
    student = -special.stdtrit(queries - 1, special.ndtr(-critical))
    half = student * error * math.sqrt(queries / (queries - 1))
    return mean - half, mean + half


def bonferroni(sample: Floats) -> Ends:
    level = 1 - (1 - LEVEL) / len(sample)
    return tuple(stats.ttest_1samp(sample, 0, axis=1).confidence_interval(level))


def holds(
    way: Way, truth: Floats | float, sample: Floats, rng: np.random.Generator
) -> NDArray[np.bool_]:
    low, high = way(sample, rng)
    return (low <= truth) & (truth <= high)


def show(title: str, rows: Sequence[str], table: Mapping[str, Sequence[float] | Floats]) -> None:
    """Print one line a row, one column a way."""
    print(f"\n{title:<36}" + "".join(f"{name:>16}" for name in table))
    for row, held in zip(rows, zip(*table.values(), strict=True), strict=True):
        print(f"{row:<36}" + "".join(f"{one:>16.3f}" for one in held), flush=True)


LUCKY_QUERIES = 60
LUCKY_POPULATION = 60_000  # queries for the true values of two hops that have no closed form


def luck(samples: int, n: int) -> None:
    """Coverage of both bounds and of each term of regret, where luck is planted.

    The policy is the fixed route that calls action 1 at each hop.
    """
    rng = np.random.default_rng(1)
    for hops in (1, 2):
        for draws in (2, 4, 8):
            truth = lucky_truth(draws, hops)
            size = max(LUCKY_POPULATION // (draws**hops), 5_000) if hops == 2 else 10_000
            trees = [lucky_tree(draws, 1_000, hops, 10**6 + seed) for seed in range(size // 1_000)]
            values = np.concatenate([terms(tree) for tree in trees], axis=1).mean(axis=1)
            if hops == 1:
                values[1] = truth["split oracle"]
                values[2] = truth["split oracle"]
            values[0] = truth["oracle"]
            values[3] = truth["fixed"]
            values[4] = truth["policy"]
            expected = np.concatenate([values, -np.diff(values)])
            covered = np.zeros(len(expected))
            apart = 0
            for seed in range(samples):
                rows = terms(lucky_tree(draws, LUCKY_QUERIES, hops, seed))
                rows = np.concatenate([rows, -np.diff(rows, axis=0)])
                low, high = mean_intervals(rows, n, LEVEL, rng)
                covered += (low <= expected) & (expected <= high)
                apart += bool(low[1] <= truth["best"] <= high[0])
            print(f"{hops} hops, {draws} draws, best rule {truth['best']:.4f} between: {apart}")
            for name, value, count in zip(LUCKY_ROWS, expected, covered, strict=True):
                print(f"  {name:20} true {value:7.4f}, held {count:.0f} of {samples}", flush=True)


LUCKY_ROWS = (
    "clairvoyant oracle",
    "split oracle",
    "split plan oracle",
    "best fixed route",
    "policy",
    "luck",
    "adaptivity",
    "plan",
    "generalisation",
)


def terms(tree: RouteTree) -> Floats:
    """float64[5, queries]: R of both bounds, the plan, the best fixed route, and the policy."""
    routes = {route.name: route.reward(1.0) for route in fixed_routes(tree)}
    first, second = tree.models[:2]
    best = f">{first}" if tree.hops == 1 else f"{second}>{first}"
    policy = f">{second}" if tree.hops == 1 else f"{second}>{second}"
    split = split_oracle(tree, 1.0)
    plan = split_plan_oracle(tree, 1.0)
    assert split is not None
    assert plan is not None
    return np.stack(
        [
            oracle(tree, 1.0).reward(1.0),
            split.reward(1.0),
            plan.reward(1.0),
            routes[best],
            routes[policy],
        ]
    )


def timing() -> None:
    """Print the time of all resamples of a report: 30 policies, 5 figures, 11 columns, a sweep."""
    rng = np.random.default_rng(0)
    report = [rng.random((150, 900)), rng.random((96, 900)), *rng.random((10, 150, 90))]
    for name, way in {
        "ours": lambda rows, rng: mean_intervals(rows, 10_000, LEVEL, rng),
        "counts of drawn queries": lambda rows, rng: counted(rows, 10_000, rng),
        "scipy alone": lambda rows, rng: by_scipy(rows, rng, 10_000),
    }.items():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = [
            measuring.measure_cpu(partial(way, rows, np.random.default_rng(0)))[1]
            for rows in report
        ]
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"{name:<24} {sum(seconds):.2f} CPU-s, {more:+.0f} MB at most")


CACHED_COUNTS: dict[int, list[NDArray[np.uint16]]] = {}


def counted(rows: Floats, n: int, rng: np.random.Generator) -> Ends:
    """Expanded percentiles as earlier versions computed them, with cached counts."""
    queries = rows.shape[1]
    if queries not in CACHED_COUNTS:
        batches = []
        for _ in range(0, n, 128):
            drawn = rng.integers(0, queries, (128, queries))
            drawn += np.arange(len(drawn))[:, None] * queries
            counts = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
            batches.append(counts.astype(np.uint16))
        CACHED_COUNTS[queries] = batches
    means = [rows @ batch.T.astype(float) / queries for batch in CACHED_COUNTS[queries]]
    tail = expanded_tail(queries - 1, (queries - 1) / queries, (1 - LEVEL) / 2)
    low, high = np.quantile(np.concatenate(means, axis=1), [tail, 1 - tail], axis=1)
    return low, high


def by_scipy(rows: Floats, rng: np.random.Generator, n: int) -> Ends:
    """Percentiles of the mean of each row, by scipy alone."""
    result = stats.bootstrap(
        (np.arange(rows.shape[1]),),
        lambda drawn, axis: rows[:, drawn].mean(axis=axis),
        n_resamples=n,
        batch=64,
        vectorized=True,
        method="percentile",
        rng=rng,
    )
    return tuple(result.confidence_interval)


if __name__ == "__main__":
    main()
