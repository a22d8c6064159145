"""From outcomes to a report.

In: what each policy does on each query, the dataset of each query, alpha. Out: `Report`, means and
intervals by dataset and over all queries. Every interval of a dataset comes from the same
resamples, so that differences are paired. Not covered: which policies to compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluate.depth import DepthPoint
from hierrouter.evaluate.outcome import Outcome
from hierrouter.report.analysis import Analysis, RegretRow
from hierrouter.report.certainty import Estimate
from hierrouter.report.claims import comparisons, power
from hierrouter.report.gaps import gap_intervals, gaps_closed
from hierrouter.report.intervals import estimates, stream_of_all
from hierrouter.report.learning import LearningCurve
from hierrouter.report.results import (
    ALL,
    COST_UNIT,
    Bootstrap,
    HandingOver,
    Report,
    Row,
)
from hierrouter.report.route_map import RouteMap
from hierrouter.report.rows import DepthRow, PricedRows
from hierrouter.report.swept import FrontierPoint, frontier_rows
from hierrouter_cache.errors import InputError


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
        _row(dataset, len(queries), outcome, found[at :: len(outcomes)])
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


def _row(dataset: str, queries: int, outcome: Outcome, found: Sequence[Estimate]) -> Row:
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
