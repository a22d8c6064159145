"""Several differences at once.

In: the differences of one router to many policies, query by query. Out: intervals that hold all
together with the level asked for, where intervals one at a time would miss one of 15 in every third
report. Max-t: the critical value is that of the largest |t| in a resample, so policies that do
much the same count as little more than one (Romano and Wolf 2005, Econometrica 73(4); Montiel Olea
and Plagborg-Moller 2019, Journal of Applied Econometrics 34(1)).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hierrouter.evaluate.bootstrap import resampled_means

# Differences resampled together: bounds the memory at 8 bytes * AT_ONCE * resamples.
AT_ONCE = 256


def simultaneous_intervals(
    differences: NDArray[np.float64], n: int, level: float, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean +- c * standard error of each difference, with one c for all.

    c is the `level` quantile over resamples of max |mean* - mean| / error, no less than that of one
    difference, taken as a normal deviate and replaced by Student's for the same probability, which
    few queries need.

    Args:
        differences: float64[comparisons, queries], paired by query; at least 2 queries.
        n: number of resamples.
        level: probability that all intervals hold, in (0, 1).
        rng: source of the draws.

    Returns:
        low and high, float64[comparisons] each; equal where a difference is the same on every
        query.
    """
    queries = differences.shape[1]
    mean = differences.mean(axis=1)
    error = differences.std(axis=1) / math.sqrt(queries)
    resampled = np.quantile(_largest(differences, mean, error, n, rng), level)
    # Resamples of a few queries take few values: their quantile can be less than one needs alone.
    critical = max(resampled, stats.norm.isf((1 - level) / 2))
    student = stats.t.isf(stats.norm.sf(critical), queries - 1)
    half = student * error * math.sqrt(queries / (queries - 1))
    return mean - half, mean + half


def _largest(
    differences: NDArray[np.float64],
    mean: NDArray[np.float64],
    error: NDArray[np.float64],
    n: int,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """float64[n]: the largest |t| of each resample; what never varies has none."""
    largest = np.zeros(n)
    varies = np.flatnonzero(error > np.finfo(np.float64).eps * np.abs(mean))
    state = rng.bit_generator.state
    for start in range(0, len(varies), AT_ONCE):
        part = varies[start : start + AT_ONCE]
        rng.bit_generator.state = state  # the same resamples for every part
        off = np.abs(resampled_means(differences[part], n, rng) - mean[part, None])
        np.maximum(largest, (off / error[part, None]).max(axis=0), out=largest)
    return largest
