"""How sure the share of the gap closed is.

In: rewards of the router, of a fixed route and of the oracle, query by query. Out: an interval for
(R(router) - R(fixed)) / (R(oracle) - R(fixed)), all three resampled together. Not covered: the
share itself, see `bounds.gap_closed`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluate.bootstrap import expanded_tail, resampled_means
from hierrouter.evaluate.bounds import SMALLEST_GAP


def gap_closed_interval(
    router: NDArray[np.float64],
    fixed: NDArray[np.float64],
    oracle: NDArray[np.float64],
    n: int,
    level: float,
    rng: np.random.Generator,
) -> tuple[float, float] | None:
    """Expanded percentiles of the share over resamples of the queries.

    The fixed route is the same in every resample. The best of several is chosen on the queries it
    is judged on, so its mean is too high, and the share too low. Choosing it anew in each resample
    would not cover that choice but repeat the mistake: the best route of a resample is better still
    (see docs/decisions.md). So this is for the share against that very route.

    Args:
        router, fixed, oracle: float64[queries], rewards on the same queries.
        n: number of resamples.
        level: in (0, 1).
        rng: source of the draws.

    Returns:
        low and high; None where the resamples do not bound the share, because the gap is below
        `SMALLEST_GAP` in too many of them.
    """
    means = resampled_means(np.array([router, fixed, oracle]), n, rng)
    gap = means[2] - means[1]
    large = gap >= SMALLEST_GAP
    share = np.full(n, np.nan)
    np.divide(means[0] - means[1], gap, out=share, where=large)
    tail = expanded_tail(len(router), level)
    # A share that is not known may be anything: the lowest for one end, the highest for the other.
    low = float(np.quantile(np.where(large, share, -np.inf), tail, method="lower"))
    high = float(np.quantile(np.where(large, share, np.inf), 1 - tail, method="higher"))
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None
