"""The frontier of a sweep, over one seed or several.

In: what the routers of each seed do at an alpha, or a bound. Out: `FrontierRow`s: the mean of the
seeds with its interval over queries, how far seeds lie apart, and intervals over both. Not covered:
which alphas there are; the figure (`frontier_figure`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hierrouter.evaluate.crossed import crossed_interval
from hierrouter.evaluate.outcome import Outcome, mean_outcome
from hierrouter.report.certainty import Crossed, Estimate, Spread
from hierrouter.report.intervals import estimates
from hierrouter.report.results import Bootstrap, FrontierRow


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
        _row(point, found[at :: len(points)], bootstrap.level) for at, point in enumerate(points)
    )


def _row(point: FrontierPoint, found: Sequence[Estimate], level: float) -> FrontierRow:
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
