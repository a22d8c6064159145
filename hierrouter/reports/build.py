"""From outcomes to a report: means, intervals, claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.bounds import gap_closed
from hierrouter.evaluation.calls import Depth, DepthPoint, by_depth
from hierrouter.evaluation.intervals import (
    POWER,
    crossed_interval,
    expanded_tail,
    gap_closed_interval,
    percentile_interval,
    queries_needed,
    resampled_means,
    simultaneous_intervals,
    smallest_difference,
)
from hierrouter.evaluation.outcome import Outcome, mean_outcome
from hierrouter.reports.results import (
    ALL,
    COST_UNIT,
    Bootstrap,
    FrontierRow,
    HandingOver,
    LearningCurve,
    Report,
    RouteMap,
    Row,
    best_of_kind,
)
from hierrouter.reports.values import (
    Analysis,
    Comparison,
    Crossed,
    DepthRow,
    Estimate,
    Power,
    PricedRow,
    PricedRows,
    RegretRow,
    Spread,
)
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

# Rows resampled together: bounds the memory at 16 bytes * ROWS_AT_ONCE * resamples.
ROWS_AT_ONCE = 256


def estimates(values: NDArray[np.float64], bootstrap: Bootstrap, stream: int) -> list[Estimate]:
    """Mean and interval of each row.

    Args:
        values: float64[rows, queries].
        bootstrap: how intervals are made.
        stream: see `draws`.
    """
    found: list[Estimate] = []
    for start in range(0, len(values), ROWS_AT_ONCE):
        part = values[start : start + ROWS_AT_ONCE]
        means = resampled_means(part, bootstrap.n, draws(bootstrap, stream))
        low, high = percentile_interval(means, values.shape[1], bootstrap.level)
        ends = zip(part.mean(axis=1).tolist(), low.tolist(), high.tolist(), strict=True)
        found.extend(Estimate(*numbers) for numbers in ends)
    return found


def stream_of_all(datasets: Sequence[str]) -> int:
    """The stream of all queries, see `draws`: after those of the datasets.

    Args:
        datasets: dataset of each query.
    """
    return len(set(datasets))


def draws(bootstrap: Bootstrap, stream: int) -> np.random.Generator:
    """What resamples of a dataset are drawn from: the same for all its figures.

    Args:
        stream: number of the dataset, which keeps the resamples of datasets apart.
    """
    return np.random.default_rng([bootstrap.seed, stream])


IN_THE_RATIO = ("router", "route", "oracle")


def gaps_closed(
    rewards: Mapping[str, Sequence[tuple[str, float]]],
) -> dict[str, float | None]:
    """Share of the gap closed in each column that has a router, a fixed route and an oracle.

    Args:
        rewards: kind and mean R of every policy, by column.
    """
    gaps: dict[str, float | None] = {}
    for column, policies in rewards.items():
        router, fixed, oracle = (
            max((reward for kind, reward in policies if kind == wanted), default=None)
            for wanted in IN_THE_RATIO
        )
        if router is not None and fixed is not None and oracle is not None:
            gaps[column] = gap_closed(router, fixed, oracle)
    return gaps


def gap_intervals(
    gaps: Mapping[str, float | None],
    columns: Mapping[str, NDArray[np.int64]],
    outcomes: Sequence[Outcome],
    alpha: float,
    bootstrap: Bootstrap,
) -> dict[str, tuple[float, float] | None]:
    """The interval of each share; None where there is no share, or no bound of it.

    Args:
        gaps: see `gaps_closed`.
        columns: positions of the queries of each dataset, in the order of their streams.
        outcomes: all policies.
        alpha: weight of cost in R.
        bootstrap: how intervals are made.
    """
    found: dict[str, tuple[float, float] | None] = {}
    for stream, (column, queries) in enumerate(columns.items()):
        if column not in gaps:
            continue
        found[column] = None
        if gaps[column] is not None:
            best = (best_of_kind(outcomes, kind, alpha, queries) for kind in IN_THE_RATIO)
            router, fixed, oracle = (one.reward(alpha)[queries] for one in best if one is not None)
            rng = draws(bootstrap, stream)
            found[column] = gap_closed_interval(
                router, fixed, oracle, bootstrap.n, bootstrap.level, rng
            )
    return found


def gap_sentence(report: Report) -> str:
    """The share over all queries with its interval; empty where there is no share."""
    share = report.gap_closed.get(ALL)
    if share is None:
        return ""
    ends = report.gap_closed_intervals.get(ALL)
    level = report.bootstrap.interval_title
    sure = f"[{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "without bounds"
    return f"Over all queries it is {share:.3f}, {level} {sure} against this fixed route."


WANTED = 0.01  # a difference in R worth knowing
NAMED = 5  # policies named in a sentence at most
FEWEST = 10  # queries: the deviation of fewer is hardly known


def comparisons(
    outcomes: Sequence[Outcome], alpha: float, bootstrap: Bootstrap, stream: int
) -> tuple[Comparison, ...]:
    """The router against every other policy but oracles; none where there is no router.

    Args:
        outcomes: policies over the same queries.
        alpha: weight of cost in R.
        bootstrap: how intervals are made.
        stream: of all queries, see `intervals.draws`.
    """
    router = best_of_kind(outcomes, "router", alpha)
    rivals = [one for one in outcomes if one.kind not in ("router", "oracle")]
    if router is None or not rivals or len(router.quality) < 2:
        return ()
    differences = router.reward(alpha) - np.array([one.reward(alpha) for one in rivals])
    rng = draws(bootstrap, stream)
    low, high = simultaneous_intervals(differences, bootstrap.n, bootstrap.level, rng)
    figures = zip(
        rivals, differences.mean(axis=1).tolist(), low.tolist(), high.tolist(), strict=True
    )
    return tuple(Comparison(one.name, one.kind, *numbers) for one, *numbers in figures)


def power(outcomes: Sequence[Outcome], alpha: float, level: float) -> Power | None:
    """What these queries can show against the best fixed route, the best pool model without one.

    None where there is no router, no such policy, no query on which the two differ, or too few
    queries to tell how much they vary.
    """
    router, *rivals = (
        best_of_kind(outcomes, kind, alpha) for kind in ("router", "route", "single")
    )
    rival = next((one for one in rivals if one is not None), None)
    if router is None or rival is None or len(router.quality) < FEWEST:
        return None
    difference = router.reward(alpha) - rival.reward(alpha)
    deviation = float(difference.std(ddof=1))
    if deviation <= np.finfo(np.float64).eps * abs(float(difference.mean())):
        return None
    return Power(
        policy=rival.name,
        kind=rival.kind,
        deviation=deviation,
        power=POWER,
        smallest_difference=smallest_difference(deviation, len(difference), level),
        wanted_difference=WANTED,
        queries=queries_needed(WANTED, deviation, level),
    )


def claims_sentence(report: Report) -> str:
    """Who is beaten when all comparisons are to hold at once, and what more queries would show."""
    return " ".join([*_beaten(report), *_showable(report)])


def _beaten(report: Report) -> list[str]:
    if not report.comparisons:
        return []
    alone = sum((row.difference_low or 0) > 0 for row in report.overall if row.kind != "oracle")
    total = len(report.comparisons)
    left = [one.policy for one in report.comparisons if one.low <= 0]
    said = (
        f"HierRouter beats {alone} of {total} policies one at a time and {total - len(left)} when "
        f"all {total} comparisons are to hold at once ({report.bootstrap.level:.0%}, max-t)"
    )
    return [f"{said}: all but {_names(left)}." if 0 < len(left) < total else f"{said}."]


def _names(policies: Sequence[str]) -> str:
    more = len(policies) - NAMED
    return ", ".join(policies[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _showable(report: Report) -> list[str]:
    found = report.power
    if found is None:
        return []
    return [
        f"Against {found.policy} R differs by {found.deviation:.2f} from query to query (standard "
        f"deviation): {report.overall[0].n:,} queries can show a difference of "
        f"{found.smallest_difference:.3f} (two-sided paired t test at "
        f"{1 - report.bootstrap.level:.0%}, power {found.power:.0%}), and "
        f"{found.wanted_difference:+g} takes {found.queries:,}."
    ]


@dataclass(frozen=True)
class FrontierPoint:
    """A policy at one alpha of a sweep: a trained one, or a bound such as the oracle.

    Attributes:
        alpha: cost penalty of the reward R = Q - alpha * C.
        by_seed: what it does with each seed, at least one; a bound has one.
    """

    alpha: float
    by_seed: tuple[Outcome, ...]


def frontier_rows(
    points: Sequence[FrontierPoint], bootstrap: Bootstrap, stream: int
) -> tuple[FrontierRow, ...]:
    """Means over all queries and seeds, intervals, and the spread of several seeds.

    Args:
        points: over the same queries.
        bootstrap: how intervals are made.
        stream: of all queries, see `intervals.draws`.
    """
    if not points:
        return ()
    means = [mean_outcome(point.by_seed) for point in points]
    figures = [
        *(mean.quality for mean in means),
        *(mean.cost for mean in means),
        *(mean.reward(point.alpha) for mean, point in zip(means, points, strict=True)),
    ]
    found = estimates(np.array(figures), bootstrap, stream)
    return tuple(
        _frontier_row(point, found[at :: len(points)], bootstrap.level)
        for at, point in enumerate(points)
    )


def _frontier_row(point: FrontierPoint, found: Sequence[Estimate], level: float) -> FrontierRow:
    quality, cost, reward = found
    several = len(point.by_seed) > 1
    return FrontierRow(
        policy=point.by_seed[0].name,
        kind=point.by_seed[0].kind,
        alpha=float(point.alpha),
        quality=quality.mean,
        cost=cost.mean,
        reward=reward.mean,
        quality_low=quality.low,
        quality_high=quality.high,
        cost_low=cost.low,
        cost_high=cost.high,
        reward_low=reward.low,
        reward_high=reward.high,
        spread=_spread(point) if several else None,
        crossed=_crossed(point, level) if several and len(point.by_seed[0].quality) > 1 else None,
    )


def _spread(point: FrontierPoint) -> Spread:
    seeds = point.by_seed
    return Spread(
        seeds=len(seeds),
        quality=_ends(float(seed.quality.mean()) for seed in seeds),
        cost=_ends(float(seed.cost.mean()) for seed in seeds),
        reward=_ends(float(seed.reward(point.alpha).mean()) for seed in seeds),
    )


def _crossed(point: FrontierPoint, level: float) -> Crossed:
    seeds = point.by_seed
    figures = [
        [seed.quality for seed in seeds],
        [seed.cost for seed in seeds],
        [seed.reward(point.alpha) for seed in seeds],
    ]
    low, high = crossed_interval(np.array(figures), level)
    quality, cost, reward = zip(low.tolist(), high.tolist(), strict=True)
    return Crossed(quality, cost, reward)


def _ends(values: Iterable[float]) -> tuple[float, float]:
    low, *_, high = sorted(values)
    return low, high


Ends = list[float | None]


def depth_rows(
    fold: RouteTree,
    endings: NDArray[np.float64],
    alpha: float,
    bootstrap: Bootstrap,
    stream: int,
) -> tuple[DepthRow, ...]:
    """A row for each number of calls from 1 to L.

    Args:
        endings: float64[queries, nodes], rows sum to 1.
        alpha: weight of cost in R.
        bootstrap: how intervals are made.
        stream: of all queries, see `intervals.draws`.
    """
    figures = (np.ones_like(fold.score), fold.score, fold.cost, fold.node_reward(alpha))
    depths = by_depth(fold, endings)
    totals = [
        (endings * figure)[:, fold.routes.level(depth.calls)].sum(axis=1)
        for depth in depths
        for figure in figures
    ]
    means = resampled_means(np.array(totals), bootstrap.n, draws(bootstrap, stream))
    tail = expanded_tail(len(fold), bootstrap.level)
    return tuple(
        _depth_row(depth, alpha, _depth_ends(resampled, tail))
        for depth, resampled in zip(depths, np.split(means, len(depths)), strict=True)
    )


def _depth_row(depth: Depth, alpha: float, ends: tuple[Ends, Ends]) -> DepthRow:
    reward = None
    if depth.quality is not None and depth.cost is not None:
        reward = depth.quality - alpha * depth.cost
    (share_low, *lows), (share_high, *highs) = ends
    return DepthRow(
        calls=depth.calls,
        share=depth.share,
        share_low=share_low or 0.0,
        share_high=share_high or 0.0,
        quality=depth.quality,
        quality_low=lows[0],
        quality_high=highs[0],
        cost=depth.cost,
        cost_low=lows[1],
        cost_high=highs[1],
        reward=reward,
        reward_low=lows[2],
        reward_high=highs[2],
    )


def _depth_ends(means: NDArray[np.float64], tail: float) -> tuple[Ends, Ends]:
    """Ends of the share, and of Q, C and R over it; None where they have none.

    Args:
        means: float64[4, resamples], of the share and of Q, C and R times it.
    """
    share = means[0]
    figures = np.full_like(means, np.nan)
    np.divide(means, share, out=figures, where=share > 0)
    figures[0] = share
    # A mean over no query may be anything: the lowest for one end, the highest for the other.
    low = np.quantile(np.nan_to_num(figures, nan=-np.inf), tail, axis=1, method="lower")
    high = np.quantile(np.nan_to_num(figures, nan=np.inf), 1 - tail, axis=1, method="higher")
    return _known(low), _known(high)


def _known(ends: NDArray[np.float64]) -> Ends:
    return [end if math.isfinite(end) else None for end in ends.tolist()]


def build_report(
    datasets: Sequence[str],
    outcomes: Sequence[Outcome],
    *,
    alpha: float,
    split: str,
    scorer: str,
    provenance: Mapping[str, Any],
    bootstrap: Bootstrap | None = None,
    frontier: Sequence[FrontierPoint] = (),
    cost_unit: str = COST_UNIT,
    notes: Sequence[str] = (),
    price_lists: Sequence[PricedRows] = (),
    depths: Sequence[DepthRow] = (),
    depth_curve: Sequence[DepthPoint] = (),
    deferral: HandingOver | None = None,
    analysis: Analysis | None = None,
    route_map: RouteMap | None = None,
    learning: LearningCurve | None = None,
    policy_regret: Mapping[str, Sequence[RegretRow]] | None = None,
) -> Report:
    """Means, intervals and paired differences of every policy on every dataset.

    Args:
        datasets: name of the dataset of each query.
        outcomes: policies over the same queries, at most one of kind "router". Without one the
            report has no differences and an empty `gap_closed`.
        alpha: weight of cost in R = Q - alpha * C (paper section 3.1).
        split: fold the queries come from.
        scorer: name of Q.
        provenance: JSON values that say where data and policy came from.
        bootstrap: number of resamples, level and seed; defaults to 10,000 at 95 %.
        frontier: policies over a sweep of alpha.
        cost_unit: what costs are counted in.
        notes: sentences to stand beside the figures.
        price_lists: the same policies under several price lists.
        depths: what the router answers after each number of calls, where it may stop early.
        depth_curve: the same of a sweep, in short.
        deferral: the router with a stronger model behind it.
        analysis: what stands beside the policies.
        route_map: which routes router and oracle take.
        learning: how the router learned.
        policy_regret: of each policy of the user's own, by dataset.

    Raises:
        InputError: no query, no policy, two routers, outcomes that are not one finite number a
            query, a dataset called "all", or settings out of range.
    """
    bootstrap = bootstrap or Bootstrap()
    check_settings(alpha, bootstrap)
    _check(datasets, outcomes, [one for point in frontier for one in point.by_seed])
    columns = columns_of(datasets)
    every = stream_of_all(datasets)
    by_dataset = [
        _rows(name, queries, outcomes, alpha, bootstrap, stream)
        for stream, (name, queries) in enumerate(columns.items())
    ]
    gaps = gaps_closed(
        {rows[0].dataset: [(row.kind, row.reward) for row in rows] for rows in by_dataset}
    )
    return Report(
        alpha=float(alpha),
        scorer=scorer,
        split=split,
        bootstrap=bootstrap,
        datasets=tuple(columns),
        rows=tuple(row for rows in zip(*by_dataset, strict=True) for row in rows),
        gap_closed=gaps,
        frontier=frontier_rows(frontier, bootstrap, every),
        provenance=provenance,
        gap_closed_intervals=gap_intervals(gaps, columns, outcomes, alpha, bootstrap),
        comparisons=comparisons(outcomes, alpha, bootstrap, every),
        power=power(outcomes, alpha, bootstrap.level),
        cost_unit=cost_unit,
        notes=tuple(notes),
        price_lists=tuple(price_lists),
        depths=tuple(depths),
        depth_curve=tuple(depth_curve),
        deferral=deferral,
        analysis=analysis,
        route_map=route_map,
        learning=learning,
        policy_regret={name: tuple(rows) for name, rows in (policy_regret or {}).items()},
    )


def columns_of(datasets: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """Positions of the queries of each dataset, in order of appearance, then of all."""
    names = np.array(datasets, dtype=object)
    columns = {name: np.flatnonzero(names == name) for name in dict.fromkeys(datasets)}
    columns[ALL] = np.arange(len(datasets))
    return columns


def _rows(
    dataset: str,
    queries: NDArray[np.int64],
    outcomes: Sequence[Outcome],
    alpha: float,
    bootstrap: Bootstrap,
    stream: int,
) -> list[Row]:
    """One row a policy, on these queries; `stream` keeps the resamples of datasets apart."""
    found = estimates(np.concatenate(_figures(queries, outcomes, alpha)), bootstrap, stream)
    return [
        _policy_row(dataset, len(queries), outcome, found[at :: len(outcomes)])
        for at, outcome in enumerate(outcomes)
    ]


def _figures(
    queries: NDArray[np.int64], outcomes: Sequence[Outcome], alpha: float
) -> list[NDArray[np.float64]]:
    """Q, accuracy, C, R and, where there is a router, its R less each R: [policies, queries]."""
    quality = np.array([outcome.quality[queries] for outcome in outcomes])
    accuracy = np.array([outcome.accuracy[queries] for outcome in outcomes])
    cost = np.array([outcome.cost[queries] for outcome in outcomes])
    reward = np.array([outcome.reward(alpha)[queries] for outcome in outcomes])
    router = [at for at, outcome in enumerate(outcomes) if outcome.kind == "router"]
    return [quality, accuracy, cost, reward, *(reward[at] - reward for at in router)]


def _policy_row(dataset: str, queries: int, outcome: Outcome, found: Sequence[Estimate]) -> Row:
    """The row of one policy.

    Args:
        found: in the order of `_figures`.
    """
    quality, accuracy, cost, reward, *differences = found
    difference = differences[0] if differences and outcome.kind != "router" else None
    return Row(
        policy=outcome.name,
        kind=outcome.kind,
        dataset=dataset,
        n=queries,
        quality=quality.mean,
        accuracy=accuracy.mean,
        cost=cost.mean,
        reward=reward.mean,
        reward_low=reward.low,
        reward_high=reward.high,
        difference=difference.mean if difference else None,
        difference_low=difference.low if difference else None,
        difference_high=difference.high if difference else None,
        quality_low=quality.low,
        quality_high=quality.high,
        accuracy_low=accuracy.low,
        accuracy_high=accuracy.high,
        cost_low=cost.low,
        cost_high=cost.high,
    )


def check_settings(alpha: float, bootstrap: Bootstrap) -> None:
    """Refuse what no report can be made with.

    Raises:
        InputError: alpha is not finite, or the bootstrap is out of range.
    """
    if not math.isfinite(alpha):
        raise InputError(f"alpha is not finite: {alpha}: report; give a number such as 0.005")
    if bootstrap.n < 1 or not 0 < bootstrap.level < 1 or bootstrap.seed < 0:
        raise InputError(
            f"impossible bootstrap: {bootstrap}; take n of at least 1, a level between 0 and 1, "
            "a seed of at least 0"
        )


def _check(datasets: Sequence[str], outcomes: Sequence[Outcome], swept: Sequence[Outcome]) -> None:
    if not datasets:
        raise InputError("no query to report on: report; choose other datasets or another split")
    if ALL in datasets:
        raise InputError(f"a dataset is called {ALL!r}: report; rename it, {ALL!r} is the total")
    if not outcomes:
        raise InputError("no policy to report on: report; give at least one outcome")
    routers = [outcome.name for outcome in outcomes if outcome.kind == "router"]
    if len(routers) > 1:
        raise InputError(f"{len(routers)} routers: report; compare one at a time")
    for outcome in (*outcomes, *swept):
        for values in (outcome.quality, outcome.accuracy, outcome.cost):
            if values.shape != (len(datasets),) or not np.isfinite(values).all():
                raise InputError(
                    f"not one finite number for each of {len(datasets)} queries: policy "
                    f"{outcome.name!r}; evaluate it again on the same queries"
                )


def priced_rows(
    name: str,
    datasets: Sequence[str],
    outcomes: Sequence[Outcome],
    alpha: float,
    bootstrap: Bootstrap | None = None,
) -> PricedRows:
    """Means of every policy under one price list.

    Args:
        name: of the price list.
        datasets: name of the dataset of each query.
        outcomes: policies over these queries, at costs under these prices.
        alpha: weight of cost in R = Q - alpha * C (paper section 3.1).
        bootstrap: how intervals are made.
    """
    columns = columns_of(datasets)
    rewards = {
        column: [(outcome.kind, float(outcome.reward(alpha)[at].mean())) for outcome in outcomes]
        for column, at in columns.items()
    }
    values = [*(one.cost for one in outcomes), *(one.reward(alpha) for one in outcomes)]
    found = estimates(np.array(values), bootstrap or Bootstrap(), stream_of_all(datasets))
    rows = (_row(one, *found[at :: len(outcomes)]) for at, one in enumerate(outcomes))
    return PricedRows(name, tuple(rows), gaps_closed(rewards))


def _row(outcome: Outcome, cost: Estimate, reward: Estimate) -> PricedRow:
    return PricedRow(
        policy=outcome.name,
        kind=outcome.kind,
        cost=cost.mean,
        reward=reward.mean,
        cost_low=cost.low,
        cost_high=cost.high,
        reward_low=reward.low,
        reward_high=reward.high,
    )
