"""Build a report from outcomes: means, intervals, and comparisons with the router."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hierrouter.evaluation.bounds import gap_closed
from hierrouter.evaluation.intervals import (
    AMOUNTS,
    DIFFERENCES,
    SHARES,
    Ratio,
    ValueRange,
    cost_ratio_interval,
    difference_range,
    gap_closed_interval,
    interval,
    ratio_interval,
    reward_range,
    simultaneous_intervals,
)
from hierrouter.evaluation.outcome import Floats, Integers, Outcome, ending_values, endings_by_node
from hierrouter.reports.estimates import ALL_DATASETS, Estimate, EstimateTable, as_estimates
from hierrouter.reports.results import ReportData, Saving
from hierrouter.tables import finite_or_none
from hierrouter_cache.tree import RouteTree, net_reward


def build_report(
    table: EstimateTable,
    outcomes: Sequence[Outcome],
    *,
    alpha: float,
    split: str,
    scorer: str,
    provenance: Mapping[str, Any],
    frontier: Sequence[tuple[float, Outcome]] = (),
    price_lists: Mapping[str, Sequence[Outcome]] | None = None,
    constant: str = "",
    **fields: Any,
) -> ReportData:
    """Compute means, intervals and paired differences of every policy on every dataset.

    Args:
        table: the report's figures, which are added to.
        outcomes: policies over the same queries, at most one of kind "router". Without one the
            report has no differences and an empty `gap_closed`.
        alpha: weight of cost in R.
        split: fold that the queries come from.
        scorer: name of the scorer that Q comes from.
        provenance: JSON values that say where data and router come from.
        frontier: policies over a sweep of alpha, each with its alpha: trained ones, and bounds.
        price_lists: the same policies at costs under each of several price lists.
        constant: the route that the router takes for every query, if it is a constant choice. The
            difference to this route is 0 of any query, and has no interval.
        fields: further fields of `Report`.
    """
    lists = price_lists or {}
    gaps = _gaps_closed(table.positions, outcomes, alpha)
    _add_policies(table, outcomes, alpha, constant)
    _add_latency(table, outcomes)
    _add_comparisons(table, outcomes, alpha, constant)
    for list_name, priced in lists.items():
        for outcome in priced:
            metrics = {"cost": outcome.cost, "reward": outcome.reward(alpha)}
            table.add_means(
                "prices",
                metrics,
                within={"reward": reward_range(alpha, outcome.cost)},
                prices=list_name,
                policy=outcome.name,
                kind=outcome.kind,
            )
    for swept_alpha, outcome in frontier:
        metrics = {
            "quality": outcome.quality,
            "cost": outcome.cost,
            "reward": outcome.reward(swept_alpha),
        }
        table.add_means(
            "frontier",
            metrics,
            within={"reward": reward_range(swept_alpha, outcome.cost)},
            policy=outcome.name,
            kind=outcome.kind,
            alpha=float(swept_alpha),
        )
    return ReportData(
        alpha=float(alpha),
        scorer=scorer,
        split=split,
        bootstrap=table.bootstrap,
        datasets=tuple(table.positions),
        estimates=table.lines(),
        gap_closed=gaps,
        gap_closed_intervals=_gap_intervals(gaps, table, outcomes, alpha),
        price_gaps={
            name: _gaps_closed(table.positions, priced, alpha) for name, priced in lists.items()
        },
        savings=_savings(outcomes, table),
        provenance=provenance,
        constant=constant,
        **fields,
    )


def _is_router(outcome: Outcome, router: Outcome, constant: str) -> bool:
    """Whether a policy is the route that the router takes for every query, see `build_report`."""
    return (
        (outcome.kind, outcome.name) == ("route", constant)
        and np.array_equal(outcome.quality, router.quality)
        and np.array_equal(outcome.cost, router.cost)
    )


def _add_policies(
    table: EstimateTable, outcomes: Sequence[Outcome], alpha: float, constant: str
) -> None:
    """Add Q, accuracy, C and R by dataset and, with a router, R(router) - R(policy)."""
    routers = [outcome for outcome in outcomes if outcome.kind == "router"]
    router_reward = routers[0].reward(alpha) if routers else None
    for outcome in outcomes:
        reward = outcome.reward(alpha)
        difference = None
        within = {"reward": reward_range(alpha, outcome.cost), "difference": DIFFERENCES}
        if router_reward is not None and outcome.kind != "router":
            difference = router_reward - reward
            within["difference"] = difference_range(alpha, routers[0].cost, outcome.cost)
        metrics = {
            "quality": outcome.quality,
            "accuracy": outcome.accuracy,
            "cost": outcome.cost,
            "reward": reward,
            "difference": difference,
        }
        columns = {"policy": outcome.name, "kind": outcome.kind}
        is_router = bool(routers) and _is_router(outcome, routers[0], constant)
        if is_router:
            del metrics["difference"]
        table.add_means("policies", metrics, table.positions, within, **columns)
        for dataset, rows in table.positions.items() if is_router else ():
            table.add_values(
                "policies", {"difference": 0.0}, dataset=dataset, n=len(rows), **columns
            )


def _add_latency(table: EstimateTable, outcomes: Sequence[Outcome]) -> None:
    """Add the median and the 95th percentile of seconds, if all of a policy's are recorded."""
    for outcome in outcomes:
        seconds = outcome.seconds
        if seconds is None or not len(seconds) or np.isnan(seconds).any():
            continue
        p50, p95 = np.quantile(seconds, (0.5, 0.95), method="higher").tolist()
        table.add_values(
            "latency", {"p50": p50, "p95": p95}, policy=outcome.name, kind=outcome.kind
        )


GAP_KINDS = ("router", "route", "oracle")  # the policies that the share of the gap compares


def _gaps_closed(
    positions: Mapping[str, Integers], outcomes: Sequence[Outcome], alpha: float
) -> dict[str, float | None]:
    """Compute the share of the gap closed on each dataset; empty unless all three kinds exist.

    Args:
        positions: int64[n] by dataset, positions of its queries.
        outcomes: policies over all queries.
        alpha: weight of cost in R.
    """
    gaps: dict[str, float | None] = {}
    for dataset, queries in positions.items():
        best = [_best_of_kind(outcomes, kind, alpha, queries) for kind in GAP_KINDS]
        means = [float(outcome.reward(alpha)[queries].mean()) for outcome in best if outcome]
        if len(means) == len(GAP_KINDS):
            gaps[dataset] = gap_closed(*means)
    return gaps


def _gap_intervals(
    gaps: Mapping[str, float | None],
    table: EstimateTable,
    outcomes: Sequence[Outcome],
    alpha: float,
) -> dict[str, tuple[float, float] | None]:
    """Compute the interval of each share; None if there is no share, or no bound of it."""
    bootstrap = table.bootstrap
    intervals: dict[str, tuple[float, float] | None] = {}
    for stream, (dataset, queries) in enumerate(table.positions.items()):
        if dataset not in gaps:
            continue
        intervals[dataset] = None
        if gaps[dataset] is not None:
            best = [_best_of_kind(outcomes, kind, alpha, queries) for kind in GAP_KINDS]
            rewards = [outcome.reward(alpha)[queries] for outcome in best if outcome is not None]
            router, fixed, oracle = rewards
            intervals[dataset] = gap_closed_interval(
                router,
                fixed,
                oracle,
                bootstrap.n,
                bootstrap.level,
                bootstrap.draws(stream),
                table.strata(dataset),
            )
    return intervals


def _savings(outcomes: Sequence[Outcome], table: EstimateTable) -> tuple[Saving, ...]:
    """Compare costs with the best and the most expensive single model, once if they are the same.

    Empty without a router, and if the calls of some model are free: a share needs a cost.
    """
    router = next((outcome for outcome in outcomes if outcome.kind == "router"), None)
    singles = [outcome for outcome in outcomes if outcome.kind in ("single", "reference")]
    if router is None or not singles or not all(single.cost.mean() > 0 for single in singles):
        return ()
    best = max(singles, key=lambda single: (single.quality.mean(), -single.cost.mean()))
    most_expensive = max(singles, key=lambda single: single.cost.mean())
    savings = [_saving(router, best, "best", table)]
    if most_expensive is not best:
        savings.append(_saving(router, most_expensive, "dearest", table))
    return tuple(savings)


def _saving(router: Outcome, model: Outcome, which: str, table: EstimateTable) -> Saving:
    bootstrap = table.bootstrap
    stream = table.overall_stream
    strata = table.strata(ALL_DATASETS)
    quality_difference = router.quality - model.quality
    quality_low, quality_high = interval(
        quality_difference,
        bootstrap.n,
        bootstrap.level,
        rng=bootstrap.draws(stream),
        within=DIFFERENCES,
        strata=strata,
    )
    low, high = cost_ratio_interval(
        router.cost, model.cost, bootstrap.n, bootstrap.level, bootstrap.draws(stream), strata
    )
    return Saving(
        policy=model.name,
        which=which,
        share=float(1 - router.cost.mean() / model.cost.mean()),
        low=1 - high,
        high=1 - low,
        quality=float(quality_difference.mean()),
        quality_low=quality_low,
        quality_high=quality_high,
    )


def simultaneous_estimates(
    differences: Floats, table: EstimateTable, within: Sequence[ValueRange]
) -> list[Estimate]:
    """Estimate means over all queries with intervals that hold for all of them at once.

    Args:
        differences: float64[rows, queries], at least 2 queries.
        table: its bootstrap says how intervals are made.
        within: the values that each row may have.
    """
    bootstrap = table.bootstrap
    low, high = simultaneous_intervals(
        differences,
        bootstrap.n,
        bootstrap.level,
        bootstrap.draws(table.overall_stream),
        within,
        table.strata(ALL_DATASETS),
    )
    return as_estimates(differences.mean(axis=1), low, high)


def _add_comparisons(
    table: EstimateTable, outcomes: Sequence[Outcome], alpha: float, constant: str
) -> None:
    """Compare the router with every other policy except oracles; add nothing without a router."""
    router = _best_of_kind(outcomes, "router", alpha)
    # Of one query an interval would hold all that is possible.
    if router is None or len(router.quality) < 2:
        return
    others = [
        outcome
        for outcome in outcomes
        if outcome.kind not in ("router", "oracle") and not _is_router(outcome, router, constant)
    ]
    if not others:
        return
    differences = router.reward(alpha) - np.array([other.reward(alpha) for other in others])
    within = [difference_range(alpha, router.cost, other.cost) for other in others]
    estimates = simultaneous_estimates(differences, table, within)
    for other, difference in zip(others, estimates, strict=True):
        table.add_values("at once", {"difference": difference}, policy=other.name, kind=other.kind)


def add_depths(table: EstimateTable, fold: RouteTree, endings: Floats, alpha: float) -> None:
    """Add the share of the queries, Q, C and R by the number of calls that the router makes.

    Means are over the queries that end after this number of calls, 1 to L. They have no interval
    if there is no such query.

    Args:
        table: the report's figures, which are added to.
        fold: the queries.
        endings: float64[queries, endings], the probability of each ending.
        alpha: weight of cost in R.
    """
    quality, _, cost = ending_values(fold)
    metrics = {
        "share": np.ones_like(quality),
        "quality": quality,
        "cost": cost,
        "reward": net_reward(quality, cost, alpha),
    }
    at_nodes = [endings_by_node(fold.layout, endings * metric) for metric in metrics.values()]
    ranges = {"quality": SHARES, "cost": AMOUNTS, "reward": reward_range(alpha, cost.ravel())}
    for hop in range(1, fold.hops + 1):
        level = fold.layout.level(hop)
        share, *sums = (at_node[:, level].sum(axis=1) for at_node in at_nodes)
        estimates = {"share": _estimate_ratio(share, np.ones(len(share)), SHARES, table)}
        for (metric, within), total in zip(ranges.items(), sums, strict=True):
            estimates[metric] = _estimate_ratio(total, share, within, table)
        table.add_values("depths", estimates, hop=hop)


def _estimate_ratio(
    total: Floats, share: Floats, within: ValueRange, table: EstimateTable
) -> Estimate:
    """Estimate a mean over a share of the queries, with its interval.

    Args:
        total: float64[queries], the value of each query times its share.
        share: float64[queries], in [0, 1], how much of each query counts.
        within: the values that a query may have.
        table: its bootstrap says how intervals are made.

    Returns:
        Without a value and an interval if no query counts.
    """
    counts = share > 0
    if not counts.any():
        return Estimate(None)
    [lowest], [highest] = within.ends((total[counts] / share[counts])[None])
    bootstrap = table.bootstrap
    low, high = ratio_interval(
        total,
        share,
        Ratio(float(lowest), 1.0),
        Ratio(float(highest), 1.0),
        bootstrap.n,
        bootstrap.level,
        bootstrap.draws(table.overall_stream),
        table.strata(ALL_DATASETS),
    )
    return Estimate(float(total.mean() / share.mean()), finite_or_none(low), finite_or_none(high))


def _best_of_kind(
    outcomes: Sequence[Outcome], kind: str, alpha: float, queries: Integers | slice = slice(None)
) -> Outcome | None:
    """Return the policy of a kind with the highest mean R, the cheaper on a tie; None without one.

    Args:
        outcomes: policies over the same queries.
        kind: kind of policy, see `Outcome`.
        alpha: weight of cost in R.
        queries: int64[n], positions of the queries that count; default: all.
    """

    def reward_then_cost(outcome: Outcome) -> tuple[float, float]:
        reward = float(outcome.reward(alpha)[queries].mean())
        return reward, -float(outcome.cost[queries].mean())

    candidates = [outcome for outcome in outcomes if outcome.kind == kind]
    return max(candidates, key=reward_then_cost, default=None)
