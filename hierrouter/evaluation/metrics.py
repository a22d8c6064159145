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


def area_under(cost: Floats, quality: Floats, low: float, high: float) -> float:
    """The area under the hull of some points, above quality 0, between two costs.

    For a budget c let q(c) be the best mean quality at a mean cost of at most c, mixtures of the
    points included, and 0 where c is below the cheapest point: no answer is worth nothing. The
    area is the integral of q from `low` to `high`; divided by high - low it is the mean quality
    over these budgets (AIQ of RouterBench, Hu et al. 2024).

    Trap: it depends on the range as much as on the points, and compares only over the same one. A
    range far beyond the dearest point measures the best quality, and little else. Raises
    ValueError: the range is empty.

    `cost`: float64[corners], of the `frontier` of the points: cost and quality rise; `quality`:
    float64[corners].
    """
    if not low < high:
        raise ValueError(f"an area needs a range of costs, got {low:g} to {high:g}")
    begin = max(low, float(cost[0]))
    if begin >= high:
        return 0.0
    inside = cost[(cost > begin) & (cost < high)]
    at = np.concatenate([[begin], inside, [high]])
    return float(trapezoid(np.interp(at, cost, quality), at))


def cost_save(
    cost: Floats, quality: Floats, static_cost: float, static_quality: float
) -> float | None:
    """CostSave: the share of its cost that is saved at the quality of the best static arm.

    1 - c / static_cost, where c is the least mean cost at which a mixture of the points is at
    least as good. Below 0 where that is dearer; None where no point is as good, or the static arm
    is free.

    Trap: the best static arm is the one with the highest mean quality, not reward, and it must be
    chosen on the train fold. The points of a sweep are many tries at one number: the best of them
    on this fold is not the best of them on the next.

    `cost`: float64[corners], of the `frontier` of one method's policies: cost and quality rise;
    `quality`: float64[corners].
    """
    if static_cost <= 0 or quality[-1] < static_quality:
        return None
    needed = np.interp(static_quality, quality, cost)
    return float(1 - needed / static_cost)


def perf_gain(
    cost: Floats, quality: Floats, static_cost: float, static_quality: float
) -> float | None:
    """PerfGain: the quality gained at no more cost than the best static arm.

    The best mean quality of a mixture of the points at a mean cost of at most `static_cost`, less
    `static_quality`. Below 0 where that is worse; None where even the cheapest point is dearer.

    Trap: as of `cost_save`; and the gain of a dear static arm is bounded by 1 - static_quality.

    `cost`: float64[corners], as of `cost_save`; `quality`: float64[corners].
    """
    if cost[0] > static_cost:
        return None
    reached = np.interp(static_cost, cost, quality)
    return float(reached - static_quality)


def pareto_distance(
    cost: float, quality: float, frontier_cost: Floats, frontier_quality: Floats, scale: float
) -> float:
    """ParetoDist: how far a policy is from the frontier of some points.

    The Euclidean distance from (cost / scale, quality) to the nearest point of the hull, its edges
    included; 0 where none of these is as good at no more cost: the policy is not behind.

    Trap: cost and quality have no common unit, so `scale`, the cost that counts as one unit of
    quality, decides what is near. State it; the width of the cost range of a table is usual.
    Nearest need not mean at equal cost.

    `frontier_cost`: float64[points]; `frontier_quality`: float64[points]; `scale`: above 0, in
    money.
    """
    hull = frontier(frontier_cost, frontier_quality)
    corner_cost, corner_quality = frontier_cost[hull], frontier_quality[hull]
    if cost < corner_cost[0] or quality > np.interp(cost, corner_cost, corner_quality):
        return 0.0
    point = np.array([cost / scale, quality])
    corner = np.stack([corner_cost / scale, corner_quality], axis=1)
    begin, edge = corner[:-1], np.diff(corner, axis=0)
    along = ((point - begin) * edge).sum(axis=1) / (edge**2).sum(axis=1)
    nearest = begin + np.clip(along, 0, 1)[:, None] * edge
    return float(np.linalg.norm(np.concatenate([corner, nearest]) - point, axis=1).min())


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
