"""The hull of a frontier, and who is called how often."""

import numpy as np

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
