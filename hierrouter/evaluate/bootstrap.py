"""Intervals by resampling queries.

In: values of policies on queries, a generator. Out: means of resamples drawn by
`scipy.stats.bootstrap`, and intervals from them. The bootstrap is paired: one query is one cluster,
everything measured on it (all policies, all seeds) is drawn together; seeds must be averaged within
a query first. Not covered: other seeds (`crossed`), several claims at once (`simultaneous`).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import stats

# Resamples counted at once, fewer where queries are many: the memory is bounded at about
# 24 bytes * DRAWS, and what is counted stays near the processor. Resamples are the same ones.
BATCH = 128
DRAWS = 1 << 22


def resampled_means(
    values: NDArray[np.float64], n: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Means of n resamples of the queries, the same resamples for every row.

    Args:
        values: float64[policies, queries].
        n: number of resamples.
        rng: source of the draws; equal states give equal resamples.

    Returns:
        float64[policies, n].
    """
    queries = values.shape[1]
    if queries == 0:
        raise ValueError("no queries to resample")
    if queries == 1:  # nothing to draw from, which scipy refuses
        return np.repeat(values, n, axis=1)
    resampled = stats.bootstrap(
        (np.arange(queries),),
        partial(_means, values),
        n_resamples=n,
        batch=max(1, min(BATCH, DRAWS // queries)),
        vectorized=True,
        method="percentile",
        rng=rng,
    )
    means: NDArray[np.float64] = resampled.bootstrap_distribution
    return means


def percentile_interval(
    means: NDArray[np.float64], queries: int, level: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Expanded percentiles of the resampled means, over the last axis.

    Plain percentiles are too narrow for few queries: like a normal interval with n in place of
    n - 1. These lie as much further out as Student's interval is wider (Hesterberg 2015, What
    Teachers Should Know About the Bootstrap, The American Statistician 69(4), section 5.3.2).

    Args:
        means: float64[..., n].
        queries: how many each resample is made of.
        level: in (0, 1).

    Returns:
        low and high, float64[...] each.
    """
    tail = expanded_tail(queries, level)
    low, high = np.quantile(means, [tail, 1 - tail], axis=-1)
    return low, high


def expanded_tail(queries: int, level: float = 0.95) -> float:
    """What to cut off at each end: below (1 - level) / 2, the closer to it the more queries."""
    freedom = max(queries - 1, 1)
    wider = math.sqrt(1 + 1 / freedom)
    return float(stats.norm.sf(wider * stats.t.isf((1 - level) / 2, freedom)))


def interval(
    values: NDArray[np.float64], n: int = 10_000, level: float = 0.95, *, rng: np.random.Generator
) -> tuple[float, float]:
    """Interval of the mean of one policy.

    Args:
        values: float64[queries].
    """
    means = resampled_means(values[None], n, rng)[0]
    low, high = percentile_interval(means, len(values), level)
    return float(low), float(high)


def difference_interval(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    n: int = 10_000,
    level: float = 0.95,
    *,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Interval of mean(first) - mean(second), paired by query.

    Args:
        first: float64[queries].
        second: float64[queries], the same queries in the same order.
    """
    return interval(first - second, n, level, rng=rng)


def _means(values: NDArray[np.float64], drawn: NDArray[np.int64], axis: int) -> NDArray[np.float64]:
    """Mean of each row over the queries drawn: float64[policies, resamples].

    How often each query was drawn, times its values: four times faster than looking up the values
    of every draw, and the same to rounding.

    Args:
        drawn: int64[resamples, queries].
        axis: the last, as scipy says.
    """
    queries = drawn.shape[1]
    counts = np.empty(drawn.shape)
    for row, chosen in zip(counts, drawn, strict=True):
        row[:] = np.bincount(chosen, minlength=queries)
    means: NDArray[np.float64] = values @ counts.T / queries
    return means
