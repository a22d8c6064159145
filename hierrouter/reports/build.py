"""From outcomes to a report: means, intervals, claims."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.bounds import gap_closed
from hierrouter.evaluation.intervals import (
    expanded_tail,
    gap_closed_interval,
    percentile_interval,
    resampled_means,
    simultaneous_intervals,
)
from hierrouter.evaluation.outcome import Outcome, ending_values, endings_by_node
from hierrouter.reports.results import Report, Saving
from hierrouter.reports.values import Bootstrap, Estimate, Estimates, Values, each
from hierrouter.tables import finite_or_none
from hierrouter_cache.tree import RouteTree, net_reward


def build_report(
    found: Estimates,
    outcomes: Sequence[Outcome],
    *,
    alpha: float,
    split: str,
    scorer: str,
    provenance: Mapping[str, Any],
    frontier: Sequence[tuple[float, Outcome]] = (),
    price_lists: Mapping[str, Sequence[Outcome]] | None = None,
    **more: Any,
) -> Report:
    """Means, intervals and paired differences of every policy on every dataset.

    Args:
        outcomes: policies over the same queries, at most one of kind "router". Without one the
            report has no differences and an empty `gap_closed`.
        split: fold the queries come from.
        provenance: JSON values that say where data and policy came from.
        frontier: policies over a sweep of alpha, each with its alpha: trained ones, and bounds.
        price_lists: the same policies at costs under each of several price lists.
    """
    lists = price_lists or {}
    gaps = _gaps_closed(found.columns, outcomes, alpha)
    _add_policies(found, outcomes, alpha)
    _add_latency(found, outcomes)
    _add_comparisons(found, outcomes, alpha)
    for name, priced in lists.items():
        for one in priced:
            metrics = {"cost": one.cost, "reward": one.reward(alpha)}
            found.add("prices", metrics, prices=name, policy=one.name, kind=one.kind)
    for swept, one in frontier:
        metrics = {"quality": one.quality, "cost": one.cost, "reward": one.reward(swept)}
        found.add("frontier", metrics, policy=one.name, kind=one.kind, alpha=float(swept))
    return Report(
        alpha=float(alpha),
        scorer=scorer,
        split=split,
        bootstrap=found.bootstrap,
        datasets=tuple(found.columns),
        estimates=found.lines(),
        gap_closed=gaps,
        gap_closed_intervals=_gap_intervals(gaps, found, outcomes, alpha),
        price_gaps={
            name: _gaps_closed(found.columns, priced, alpha) for name, priced in lists.items()
        },
        savings=_savings(outcomes, found.bootstrap),
        provenance=provenance,
        **more,
    )


def _add_policies(found: Estimates, outcomes: Sequence[Outcome], alpha: float) -> None:
    """Q, accuracy, C, R and, where there is a router, its R less each R, by dataset."""
    rewards = [one.reward(alpha) for one in outcomes]
    router = next(
        (r for one, r in zip(outcomes, rewards, strict=True) if one.kind == "router"), None
    )
    for one, reward in zip(outcomes, rewards, strict=True):
        lead = None if router is None or one.kind == "router" else router - reward
        metrics = {
            "quality": one.quality,
            "accuracy": one.accuracy,
            "cost": one.cost,
            "reward": reward,
            "difference": lead,
        }
        found.add("policies", metrics, found.columns, policy=one.name, kind=one.kind)


def _add_latency(found: Estimates, outcomes: Sequence[Outcome]) -> None:
    """The median and the 95th percentile of each policy's seconds, where all were recorded."""
    for one in outcomes:
        if one.seconds is not None and len(one.seconds) and not np.isnan(one.seconds).any():
            p50, p95 = np.quantile(one.seconds, (0.5, 0.95), method="higher").tolist()
            found.state("latency", {"p50": p50, "p95": p95}, policy=one.name, kind=one.kind)


IN_THE_RATIO = ("router", "route", "oracle")


def _gaps_closed(
    columns: Mapping[str, NDArray[np.int64]], outcomes: Sequence[Outcome], alpha: float
) -> dict[str, float | None]:
    """Share of the gap closed in each column, where there are router, fixed route and oracle."""
    gaps: dict[str, float | None] = {}
    for column, queries in columns.items():
        best = (_best_of_kind(outcomes, kind, alpha, queries) for kind in IN_THE_RATIO)
        found = [float(one.reward(alpha)[queries].mean()) for one in best if one]
        if len(found) == len(IN_THE_RATIO):
            gaps[column] = gap_closed(*found)
    return gaps


def _gap_intervals(
    gaps: Mapping[str, float | None], found: Estimates, outcomes: Sequence[Outcome], alpha: float
) -> dict[str, tuple[float, float] | None]:
    """The interval of each share; None where there is no share, or no bound of it."""
    intervals: dict[str, tuple[float, float] | None] = {}
    for stream, (column, queries) in enumerate(found.columns.items()):
        if column not in gaps:
            continue
        intervals[column] = None
        if gaps[column] is not None:
            best = (_best_of_kind(outcomes, kind, alpha, queries) for kind in IN_THE_RATIO)
            router, fixed, oracle = (one.reward(alpha)[queries] for one in best if one is not None)
            n, level = found.bootstrap.n, found.bootstrap.level
            rng = found.bootstrap.draws(stream)
            intervals[column] = gap_closed_interval(router, fixed, oracle, n, level, rng)
    return intervals


def _savings(outcomes: Sequence[Outcome], bootstrap: Bootstrap) -> tuple[Saving, ...]:
    """Against the best and the dearest single model of the whole fold; once where they are one."""
    router = next((one for one in outcomes if one.kind == "router"), None)
    singles = [one for one in outcomes if one.kind in ("single", "reference")]
    if router is None or not singles or not all(one.cost.mean() > 0 for one in singles):
        return ()
    best = max(singles, key=lambda one: (one.quality.mean(), -one.cost.mean()))
    dearest = max(singles, key=lambda one: one.cost.mean())
    return tuple(
        _saving(router, one, which, bootstrap)
        for which, one in (("best", best), ("dearest", dearest))
        if which == "best" or one is not best
    )


def _saving(router: Outcome, model: Outcome, which: str, bootstrap: Bootstrap) -> Saving:
    rows = np.array([router.cost, model.cost, router.quality - model.quality])
    ours, theirs, better = resampled_means(rows, bootstrap.n, bootstrap.draws(0))
    ratio = np.divide(ours, theirs, out=np.ones_like(ours), where=theirs > 0)
    ends = percentile_interval(np.array([1 - ratio, better]), len(router.cost), bootstrap.level)
    (low, quality_low), (high, quality_high) = (end.tolist() for end in ends)
    return Saving(
        policy=model.name,
        which=which,
        share=float(1 - router.cost.mean() / model.cost.mean()),
        low=low,
        high=high,
        quality=float(rows[2].mean()),
        quality_low=quality_low,
        quality_high=quality_high,
    )


def at_once(differences: Values, found: Estimates) -> list[Estimate]:
    """Means over all queries with intervals that hold for all of them together.

    `differences`: float64[rows, queries], at least 2 queries; `found`: says how intervals are made.
    """
    bootstrap = found.bootstrap
    rng = bootstrap.draws(found.every)
    ends = simultaneous_intervals(differences, bootstrap.n, bootstrap.level, rng)
    return each(differences.mean(axis=1), *ends)


def _add_comparisons(found: Estimates, outcomes: Sequence[Outcome], alpha: float) -> None:
    """The router against every other policy but oracles; none where there is no router."""
    router = _best_of_kind(outcomes, "router", alpha)
    rivals = [one for one in outcomes if one.kind not in ("router", "oracle")]
    if router is None or not rivals or len(router.quality) < 2:
        return
    differences = router.reward(alpha) - np.array([one.reward(alpha) for one in rivals])
    for one, difference in zip(rivals, at_once(differences, found), strict=True):
        found.state("at once", {"difference": difference}, policy=one.name, kind=one.kind)


def add_depths(
    found: Estimates, fold: RouteTree, endings: NDArray[np.float64], alpha: float
) -> None:
    """Where the router stops: share of the queries, Q, C and R of each number of calls, 1 to L.

    Ends of an interval are None where too many resamples hold no such query.
    """
    score, _, cost = ending_values(fold, endings.shape[1])
    figures = (np.ones_like(score), score, cost, net_reward(score, cost, alpha))
    ended = [endings_by_node(fold.routes, endings * figure) for figure in figures]
    hops = range(1, fold.hops + 1)
    totals = np.array(
        [each[:, fold.routes.level(hop)].sum(axis=1) for hop in hops for each in ended]
    )
    draws = found.bootstrap.draws(found.every)
    means = resampled_means(totals, found.bootstrap.n, draws)
    tail = expanded_tail(len(fold), found.bootstrap.level)
    of_each = zip(hops, np.split(totals, len(hops)), np.split(means, len(hops)), strict=True)
    for hop, total, resampled in of_each:
        drawn = _over_share(resampled)
        # A mean over no query may be anything: the lowest for one end, the highest for the other.
        low = np.quantile(np.nan_to_num(drawn, nan=-np.inf), tail, axis=1, method="lower")
        high = np.quantile(np.nan_to_num(drawn, nan=np.inf), 1 - tail, axis=1, method="higher")
        rows = np.stack([_over_share(total.mean(axis=1, keepdims=True))[:, 0], low, high], axis=1)
        bounded = [Estimate(*map(finite_or_none, row)) for row in rows.tolist()]
        names = ("share", "quality", "cost", "reward")
        found.state("depths", dict(zip(names, bounded, strict=True)), hop=hop)


def _over_share(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of the queries, the first row, and the other rows over it; NaN where it is 0."""
    figures = np.full_like(means, np.nan)
    np.divide(means, means[0], out=figures, where=means[0] > 0)
    figures[0] = means[0]
    return figures


def _best_of_kind(
    outcomes: Sequence[Outcome],
    kind: str,
    alpha: float,
    queries: NDArray[np.int64] | slice = slice(None),
) -> Outcome | None:
    """The policy of a kind with the highest mean R, the cheaper on a tie; None without one.

    `alpha`: weight of cost in R; `queries`: int64[n], positions of the queries that count; all if
    not given.
    """

    def worth(one: Outcome) -> tuple[float, float]:
        return float(one.reward(alpha)[queries].mean()), -float(one.cost[queries].mean())

    return max((one for one in outcomes if one.kind == kind), key=worth, default=None)
