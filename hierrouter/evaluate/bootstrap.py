"""Intervals by resampling queries.

A paired bootstrap: one query is one cluster, everything measured on it (all policies, all seeds)
is drawn together. Values must be averaged within a query first. Intervals are percentiles of the
resampled means. Pure functions of arrays; the generator is passed in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Resamples counted at once: bounds the memory at about 16 bytes * CHUNK * queries.
CHUNK = 512


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
    means = np.empty((values.shape[0], n))
    for start in range(0, n, CHUNK):
        counts = _counts(queries, min(CHUNK, n - start), rng)
        means[:, start : start + len(counts)] = values @ counts.T / queries
    return means


def percentile_interval(
    means: NDArray[np.float64], level: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The central `level` of the resampled means, over the last axis.

    Args:
        means: float64[..., n].
        level: in (0, 1).

    Returns:
        low and high, float64[...] each.
    """
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=-1)
    return low, high


def interval(
    values: NDArray[np.float64], n: int = 10_000, level: float = 0.95, *, rng: np.random.Generator
) -> tuple[float, float]:
    """Percentile interval of the mean of one policy.

    Args:
        values: float64[queries].
    """
    low, high = percentile_interval(resampled_means(values[None], n, rng)[0], level)
    return float(low), float(high)


def difference_interval(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    n: int = 10_000,
    level: float = 0.95,
    *,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Percentile interval of mean(first) - mean(second), paired by query.

    Args:
        first: float64[queries].
        second: float64[queries], the same queries in the same order.
    """
    return interval(first - second, n, level, rng=rng)


def _counts(queries: int, resamples: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """float64[resamples, queries]: how often each query was drawn, with replacement."""
    drawn = rng.integers(queries, size=(resamples, queries))
    drawn += np.arange(resamples)[:, None] * queries
    counts = np.bincount(drawn.ravel(), minlength=resamples * queries)
    return counts.reshape(resamples, queries).astype(np.float64)
