"""Figures of frontiers: a sweep beside static arms.

In: the points of a sweep on a fold, or one router; the static arms. Out: `FrontierFigures`: mean
quality over a range of budgets, CostSave and PerfGain against the best static arm, distance from
the oracle's frontier. Hulls are no means over queries, so each resample of the queries has a hull
of its own; arm and range stay what they are. Not covered: definitions and traps
(`evaluate.metrics`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hierrouter.analysis.static_arms import StaticArms
from hierrouter.evaluate.bootstrap import expanded_tail, resampled_means
from hierrouter.evaluate.bounds import random_policy
from hierrouter.evaluate.frontier import frontier
from hierrouter.evaluate.hulls import exact_frontier
from hierrouter.evaluate.metrics import area_under, cost_save, pareto_distance, perf_gain
from hierrouter.evaluate.outcome import ROUTER, Outcome, mean_points
from hierrouter.report.analysis import Bounded, FrontierFigures, HullRow
from hierrouter.report.intervals import draws
from hierrouter.report.results import Bootstrap
from hierrouter_cache.tree import RouteTree

RESAMPLES = 1_000  # at most: every one has hulls of its own
Points = tuple[NDArray[np.float64], NDArray[np.float64]]  # mean cost and mean quality


def frontier_figures(
    fold: RouteTree,
    arms: StaticArms | None,
    routers: Sequence[Outcome],
    bootstrap: Bootstrap,
    stream: int,
) -> FrontierFigures | None:
    """Figures of routers, and of what they are held against; None without static arms.

    Args:
        fold: that is shown.
        arms: its static arms.
        routers: a sweep's, one for each alpha, or the only one; may be empty.
        bootstrap: how intervals are made.
        stream: of all queries, see `report.intervals.draws`.
    """
    if arms is None:
        return None
    exact = exact_frontier(fold, arms.allow_stop)
    drawn = replace(bootstrap, n=min(bootstrap.n, RESAMPLES))
    found = {
        ("static arms", "route"): arms.arms,
        ("random", "baseline"): [random_policy(fold, arms.allow_stop)],
    }
    if routers:
        found = {(ROUTER, "router"): routers, **found}
    hulls = [_row(*name, policies, exact, arms, drawn, stream) for name, policies in found.items()]
    best = mean_points([arms.best])
    return FrontierFigures(
        low=arms.low,
        high=arms.high,
        static=arms.best.name,
        static_quality=float(best[1][0]),
        static_cost=float(best[0][0]),
        resamples=drawn.n,
        hulls=(*hulls, _bound(exact, arms)),
    )


def _row(
    policy: str,
    kind: str,
    policies: Sequence[Outcome],
    exact: Points,
    arms: StaticArms,
    bootstrap: Bootstrap,
    stream: int,
) -> HullRow:
    mean_quality, save, gain = _bounded(policies, arms, bootstrap, stream)
    return HullRow(
        policy=policy,
        kind=kind,
        points=len(policies),
        mean_quality=mean_quality if len(policies) > 1 else None,
        cost_save=save,
        perf_gain=gain,
        pareto_distance=_distance(policies, exact, arms) if kind == "router" else None,
    )


def _bound(exact: Points, arms: StaticArms) -> HullRow:
    """The exact frontier, whose points are choices of each query: it is not resampled."""
    mean_quality, save, gain = _figures(exact, arms, mean_points([arms.best]))
    return HullRow(
        policy="oracle",
        kind="oracle",
        points=None,
        mean_quality=_value(mean_quality),
        cost_save=_value(save),
        perf_gain=_value(gain),
        pareto_distance=None,
    )


def _bounded(
    policies: Sequence[Outcome], arms: StaticArms, bootstrap: Bootstrap, stream: int
) -> list[Bounded | None]:
    """The three figures of some policies, each with its interval."""
    shown = _figures(mean_points(policies), arms, mean_points([arms.best]))
    several = [*policies, arms.best]
    values = np.array([*(one.cost for one in several), *(one.quality for one in several)])
    means = resampled_means(values, bootstrap.n, draws(bootstrap, stream))
    cost, quality = np.split(means.T, 2, axis=1)
    resampled = np.array(
        [
            _figures((c[:-1], q[:-1]), arms, (c[-1:], q[-1:]))
            for c, q in zip(cost, quality, strict=True)
        ]
    )
    tail = expanded_tail(values.shape[1], bootstrap.level)
    # What a resample does not reach is below all that others do.
    reached = np.where(np.isnan(resampled), -np.inf, resampled)
    low = np.quantile(reached, tail, axis=0, method="lower").tolist()
    high = np.quantile(reached, 1 - tail, axis=0, method="higher").tolist()
    return [_value(*figure) for figure in zip(shown, low, high, strict=True)]


def _figures(points: Points, arms: StaticArms, static: Points) -> tuple[float, float, float]:
    """Mean quality over the range, CostSave, PerfGain; nan where there is none."""
    cost, quality = points
    hull = frontier(cost, quality)
    corners = cost[hull], quality[hull]
    held_against = float(static[0][0]), float(static[1][0])
    save, gain = cost_save(*corners, *held_against), perf_gain(*corners, *held_against)
    mean = area_under(*corners, arms.low, arms.high) / arms.width if arms.width > 0 else math.nan
    return mean, math.nan if save is None else save, math.nan if gain is None else gain


def _distance(policies: Sequence[Outcome], exact: Points, arms: StaticArms) -> float | None:
    """Mean ParetoDist of the policies from the oracle's frontier; None without a range."""
    if arms.width <= 0:
        return None
    points = zip(*(figure.tolist() for figure in mean_points(policies)), strict=True)
    return float(np.mean([pareto_distance(c, q, *exact, arms.width) for c, q in points]))


def _value(value: float, low: float = -math.inf, high: float = -math.inf) -> Bounded | None:
    """None where there is no value; ends that are not known are None."""
    if math.isnan(value):
        return None
    ends = (end if math.isfinite(end) else None for end in (low, high))
    return Bounded(value, *ends)
