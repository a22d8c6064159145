"""Metrics of frontiers and of model pairs, each with its definition."""

import numpy as np
from scipy.integrate import trapezoid

from hierrouter.evaluation.bounds import SMALLEST_GAP
from hierrouter.evaluation.outcome import Floats, Integers, called
from hierrouter_cache.tree import Routes


def frontier(cost: Floats, quality: Floats) -> Integers:
    """Positions of the points on the hull, from the cheapest to the best.

    Of points on the same spot the first is kept; points on an edge, which are nowhere the only
    best ones, are left out.

    `cost`: float64[points]; `quality`: float64[points]. Returns int64[hull], cost and quality both
    strictly rising, slopes strictly falling.
    """
    hull: list[int] = []
    for point in np.lexsort((-quality, cost)).tolist():
        if hull and quality[point] <= quality[hull[-1]]:
            continue
        while len(hull) > 1 and _slope(cost, quality, hull[-2], hull[-1]) <= _slope(
            cost, quality, hull[-1], point
        ):
            hull.pop()
        hull.append(point)
    return np.array(hull, dtype=np.int64)


def _slope(cost: Floats, quality: Floats, left: int, right: int) -> float:
    return float((quality[right] - quality[left]) / (cost[right] - cost[left]))


def call_mix(routes: Routes, endings: Floats) -> Floats:
    """Expected calls of each model at each hop, query by query.

    Its mean over queries is the share of queries that call model m as hop h; that divided by its
    sum is the share of all calls.

    Trap: hops sum to 1 only where nobody stops; and a model with half of the calls can have
    nearly all of the cost.

    `endings`: float64[queries, nodes], rows sum to 1. Returns float64[queries, L, M].
    """
    calls = called(routes, endings)
    levels = [
        calls[:, routes.level(hop)].reshape(len(calls), -1, routes.models).sum(axis=1)
        for hop in range(1, routes.hops + 1)
    ]
    return np.stack(levels, axis=1)


def gap_recovered(quality: Floats) -> Floats | None:
    """Performance gap recovered, PGR: (Q - Q(weak)) / (Q(strong) - Q(weak)).

    `quality`: float64[points], mean Q of a router at every threshold, by rising share of queries
    that the strong model answers; the first is the weak model's, the last the strong one's. Returns
    float64[points], 0 first and 1 last, above 1 where a mixture beats the strong model; None where
    the gap is below `SMALLEST_GAP` or the weak model is the better one.
    """
    gap = quality[-1] - quality[0]
    return (quality - quality[0]) / gap if gap >= SMALLEST_GAP else None


def apgr(share: Floats, quality: Floats) -> float | None:
    """Average performance gap recovered: the integral of PGR over the share of strong calls.

    RouteLLM takes the mean of ten thresholds, this is the limit of many: straight between points.
    Chance has 0.5. None where PGR is.

    `share`: float64[points], of the queries that the strong model answers, rising from 0 to 1;
    `quality`: float64[points], as of `gap_recovered`.
    """
    recovered = gap_recovered(quality)
    return None if recovered is None else float(trapezoid(recovered, share))


def call_performance_threshold(share: Floats, quality: Floats, recovered: float) -> float | None:
    """CPT(x): the least share of strong calls that recovers a share x of the gap.

    Straight between points. Chance has x. None where PGR is.

    `share`: float64[points], as of `apgr`; `quality`: float64[points], as of `gap_recovered`;
    `recovered`: x, in [0, 1].
    """
    reached = gap_recovered(quality)
    if reached is None:
        return None
    first = int(np.argmax(reached >= recovered))
    if first == 0:
        return 0.0
    around = slice(first - 1, first + 1)
    return float(np.interp(recovered, reached[around], share[around]))
