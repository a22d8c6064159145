"""After how many calls the router stops, with intervals.

In: a fold, where the router's episodes end, alpha. Out: `DepthRow`s. The queries that stop at a
depth are not the same in every resample, so Q, C and R there are quotients of two resampled means.
Not covered: the table (`depths`), the curve of a sweep (`evaluate.depth.depth_curve`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluate.bootstrap import expanded_tail, resampled_means
from hierrouter.evaluate.depth import Depth, by_depth
from hierrouter.report.intervals import draws
from hierrouter.report.results import Bootstrap
from hierrouter.report.rows import DepthRow
from hierrouter_cache.tree import RouteTree

Ends = list[float | None]


def depth_rows(
    fold: RouteTree,
    endings: NDArray[np.float64],
    alpha: float,
    bootstrap: Bootstrap,
    stream: int,
) -> tuple[DepthRow, ...]:
    """A row for each number of calls from 1 to L.

    Args:
        endings: float64[queries, nodes], rows sum to 1.
        alpha: weight of cost in R.
        bootstrap: how intervals are made.
        stream: of all queries, see `intervals.draws`.
    """
    figures = (np.ones_like(fold.score), fold.score, fold.cost, fold.node_reward(alpha))
    depths = by_depth(fold, endings)
    totals = [
        (endings * figure)[:, fold.routes.level(depth.calls)].sum(axis=1)
        for depth in depths
        for figure in figures
    ]
    means = resampled_means(np.array(totals), bootstrap.n, draws(bootstrap, stream))
    tail = expanded_tail(len(fold), bootstrap.level)
    return tuple(
        _row(depth, alpha, _ends(resampled, tail))
        for depth, resampled in zip(depths, np.split(means, len(depths)), strict=True)
    )


def _row(depth: Depth, alpha: float, ends: tuple[Ends, Ends]) -> DepthRow:
    reward = None
    if depth.quality is not None and depth.cost is not None:
        reward = depth.quality - alpha * depth.cost
    (share_low, *lows), (share_high, *highs) = ends
    return DepthRow(
        calls=depth.calls,
        share=depth.share,
        share_low=share_low or 0.0,
        share_high=share_high or 0.0,
        quality=depth.quality,
        quality_low=lows[0],
        quality_high=highs[0],
        cost=depth.cost,
        cost_low=lows[1],
        cost_high=highs[1],
        reward=reward,
        reward_low=lows[2],
        reward_high=highs[2],
    )


def _ends(means: NDArray[np.float64], tail: float) -> tuple[Ends, Ends]:
    """Ends of the share, and of Q, C and R over it; None where they have none.

    Args:
        means: float64[4, resamples], of the share and of Q, C and R times it.
    """
    share = means[0]
    figures = np.full_like(means, np.nan)
    np.divide(means, share, out=figures, where=share > 0)
    figures[0] = share
    # A mean over no query may be anything: the lowest for one end, the highest for the other.
    low = np.quantile(np.nan_to_num(figures, nan=-np.inf), tail, axis=1, method="lower")
    high = np.quantile(np.nan_to_num(figures, nan=np.inf), 1 - tail, axis=1, method="higher")
    return _known(low), _known(high)


def _known(ends: NDArray[np.float64]) -> Ends:
    return [end if math.isfinite(end) else None for end in ends.tolist()]
