"""The cost-quality frontier of a few policies.

In: points (cost, quality). Out: the upper-left convex hull, i.e. the points that are optimal for
some alpha >= 0 under R = Q - alpha * C. Convex, because a mixture of two policies is a policy
too. Not covered: the hulls of many queries at once (`hulls`); drawing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def frontier(cost: NDArray[np.float64], quality: NDArray[np.float64]) -> NDArray[np.int64]:
    """Positions of the points on the hull, from the cheapest to the best.

    Of points on the same spot the first is kept; points on an edge, which are nowhere the only
    best ones, are left out.

    Args:
        cost: float64[points].
        quality: float64[points].

    Returns:
        int64[hull], cost and quality both strictly rising, slopes strictly falling.
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


def _slope(cost: NDArray[np.float64], quality: NDArray[np.float64], left: int, right: int) -> float:
    return float((quality[right] - quality[left]) / (cost[right] - cost[left]))
