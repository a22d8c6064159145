"""How often intervals hold what they should, at nominal 95 %.

    OMP_NUM_THREADS=1 python benchmarks/interval_coverage.py [--samples 2000] [--resamples 2000]
        [--table FILE | --timing | --luck]

Samples of 30, 90 and 900 queries from populations whose means are known, see
`tests/hierrouter/evaluation/simulated.py`. Ours is named first, other ways beside it:

* single figures and paired differences: expanded percentiles; percentiles; BCa; Student's t;
* share of the gap closed: the best fixed route of the sample kept, or chosen anew in each resample;
* one router against 15 policies, all intervals at once: max-t; Bonferroni; one at a time.

With --table FILE the first of these on real answers: a table of scores (parquet; query_id, model,
score) of models that answered the same questions, each alone and every two. With --timing: CPU
seconds and memory of the 10,000 resamples of a report, ours and by scipy alone. With --luck: trees
of one and of two hops with 2, 4 and 8 draws a call and known luck, `--samples` each: how often the
intervals of both bounds and of each term of regret hold the planted value.
"""

import argparse
import math
import resource
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import measuring
import numpy as np
import pyarrow.parquet as pq
import scipy
from numpy.typing import NDArray
from scipy import stats

from hierrouter.evaluation.bounds import oracle, split_oracle, split_plan_oracle
from hierrouter.evaluation.intervals import (
    gap_closed_interval,
    percentile_interval,
    resampled_means,
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
Floats = NDArray[np.float64]
Ends = tuple[Floats, Floats]
Way = Callable[[Floats, np.random.Generator], Ends]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--resamples", type=int, default=2000)
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
    warnings.simplefilter("ignore")  # BCa and t of samples that do not vary
    print(f"{args.samples} samples, a quarter at 900 queries; {args.resamples} resamples")
    for queries in SIZES:
        samples = args.samples if queries < 900 else args.samples // 4
        figures = answers(args.table) if args.table else figures_of(seed=1)
        single(figures, queries, samples, args.resamples)
        if args.table:
            continue
        gaps(queries, samples, args.resamples)
        family(queries, samples, args.resamples)


def scores(rng: np.random.Generator, wrong: float, right: float) -> Floats:
    """float64[queries]: 0 and 1 with these probabilities, else partly right."""
    kind = rng.random(QUERIES)
    partly = rng.beta(1.2, 2, QUERIES)
    return np.where(kind < wrong, 0.0, np.where(kind < wrong + right, 1.0, partly))


def figures_of(seed: int) -> dict[str, Floats]:
    """Rewards, a cost, and differences of two policies that often do the same."""
    rng = np.random.default_rng(seed)
    found = {
        f"R, {wrong:.0%} wrong, {right:.0%} right": scores(rng, wrong, right)
        - ALPHA * costs(rng, 1)
        for wrong, right in ((0.35, 0.45), (0.8, 0.1), (0.05, 0.9))
    }
    found["C"] = costs(rng, 1)
    for ties in (0.6, 0.7, 0.77):
        found[f"difference, {ties:.0%} ties"] = difference(rng, ties, scores(rng, 0.4, 0.4))
        worse = np.minimum(scores(rng, 0.35, 0.45), scores(rng, 0.6, 0.3))
        found[f"difference, {ties:.0%} ties, one-sided"] = difference(rng, ties, worse)
    return found


def difference(rng: np.random.Generator, ties: float, other: Floats) -> Floats:
    """float64[queries]: R of a policy less R of one that does the same on a share of the queries.

    `other`: float64[queries], score of the second policy where it does something else.
    """
    gained = scores(rng, 0.35, 0.45) - other - ALPHA * (costs(rng, 1.5) - costs(rng, 1))
    return np.where(rng.random(QUERIES) < ties, 0.0, gained)


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


def answers(table: Path) -> dict[str, Floats]:
    """Scores of every model, and differences of every two."""
    by_model: dict[str, dict[str, float]] = {}
    for row in pq.read_table(table, columns=["query_id", "model", "score"]).to_pylist():
        by_model.setdefault(row["model"], {})[row["query_id"]] = row["score"]
    scores = [
        np.array([of_query[query] for query in sorted(of_query)], float)
        for of_query in by_model.values()
    ]
    alone = {f"{at} {name}"[:35]: scores[at] for at, name in enumerate(by_model)}
    pairs = combinations(range(len(scores)), 2)
    return alone | {f"{one} - {two}": scores[one] - scores[two] for one, two in pairs}


def single(found: Mapping[str, Floats], queries: int, samples: int, n: int) -> None:
    """Coverage of single figures."""
    population = np.array(list(found.values()))
    truth = population.mean(axis=1)
    ways: dict[str, Way] = {
        "expanded": lambda sample, rng: percentile_interval(
            resampled_means(sample, n, rng), queries, LEVEL
        ),
        "percentile": partial(percentiles, n=n),
        "BCa": partial(bca, n=n),
        "t": students,
    }
    table = {
        name: coverage(population, queries, samples, partial(holds, way, truth))
        for name, way in ways.items()
    }
    show(f"{queries} queries", list(found), table)


def percentiles(sample: Floats, rng: np.random.Generator, n: int) -> Ends:
    """Plain percentiles."""
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(resampled_means(sample, n, rng), [tail, 1 - tail], axis=1)
    return low, high


def bca(sample: Floats, rng: np.random.Generator, n: int) -> Ends:
    """Bias-corrected and accelerated percentiles, of the same kind of resamples."""
    drawn = SimpleNamespace(bootstrap_distribution=resampled_means(sample, n, rng))
    return by_scipy(sample, rng, 0, "BCa", drawn)


def by_scipy(
    sample: Floats,
    rng: np.random.Generator,
    n: int,
    method: str,
    drawn: SimpleNamespace | None = None,
) -> Ends:
    """Intervals of the mean of each row, scipy alone."""
    found = stats.bootstrap(
        (np.arange(sample.shape[1]),),
        lambda drawn, axis: sample[:, drawn].mean(axis=axis),
        n_resamples=n,
        batch=64,
        vectorized=True,
        method=method,
        bootstrap_result=drawn,
        rng=rng,
    )
    return tuple(found.confidence_interval)


def students(sample: Floats, _: np.random.Generator) -> Ends:
    """Student's interval of the mean of each row."""
    return tuple(stats.ttest_1samp(sample, 0, axis=1).confidence_interval(LEVEL))


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
    ends = gap_closed_interval(router, best, oracle, n, LEVEL, rng) or (-math.inf, math.inf)
    return np.array(ends[0]), np.array(ends[1])


def route_chosen_anew(sample: Floats, rng: np.random.Generator, n: int) -> Ends:
    means = resampled_means(sample, n, rng)
    return percentile_interval(share(means), sample.shape[1], LEVEL)


def family(queries: int, samples: int, n: int) -> None:
    """How often all 15 intervals hold."""
    population = contest(seed=1)
    truth = population.mean(axis=1)
    ways: dict[str, Way] = {
        "max-t": lambda sample, rng: simultaneous_intervals(sample, n, LEVEL, rng),
        "Bonferroni": lambda sample, rng: bonferroni(sample),
        "one at a time": lambda sample, rng: percentile_interval(
            resampled_means(sample, n, rng), queries, LEVEL
        ),
    }

    def all_hold(way: Way, sample: Floats, rng: np.random.Generator) -> NDArray[np.bool_]:
        return np.asarray(np.all(holds(way, truth, sample, rng)))

    table = {
        name: [float(coverage(population, queries, samples, partial(all_hold, way)))]
        for name, way in ways.items()
    }
    show(f"all of 15, {queries} queries", ["all hold"], table)


def bonferroni(sample: Floats) -> Ends:
    level = 1 - (1 - LEVEL) / len(sample)
    return tuple(stats.ttest_1samp(sample, 0, axis=1).confidence_interval(level))


def holds(
    way: Way, truth: Floats | float, sample: Floats, rng: np.random.Generator
) -> NDArray[np.bool_]:
    low, high = way(sample, rng)
    return (low <= truth) & (truth <= high)


def show(title: str, rows: list[str], table: Mapping[str, Floats | list[float]]) -> None:
    """One line a row, one column a way."""
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
                low, high = percentile_interval(resampled_means(rows, n, rng), LUCKY_QUERIES, LEVEL)
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
    """All resamples of a report: 30 policies, 5 figures, 11 columns, 32 points of a sweep."""
    rng = np.random.default_rng(0)
    report = [rng.random((150, 900)), rng.random((96, 900)), *rng.random((10, 150, 90))]
    for name, way in {
        "ours": lambda rows, rng: resampled_means(rows, 10_000, rng),
        "scipy alone": lambda rows, rng: by_scipy(rows, rng, 10_000, "percentile"),
    }.items():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = [measuring.measure_cpu(partial(way, rows, rng))[1] for rows in report]
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"{name:<20} {sum(seconds):.2f} CPU-s, {more:+.0f} MB at most")


if __name__ == "__main__":
    main()
