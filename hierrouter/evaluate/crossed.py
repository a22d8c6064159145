"""Other seeds and other queries.

In: what each seed of a router does on each query. Out: an interval for the mean over all seeds and
all queries that there could be. Seeds and queries are crossed, not nested: every seed sees every
query. Not covered: these very seeds on other queries, see `bootstrap`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats


def crossed_interval(
    values: NDArray[np.float64], level: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean +- t * standard error, for seeds and queries both drawn at random.

    The model is x[s, q] = mean + seed[s] + query[q] + rest[s, q], independent, with variances
    v_seed, v_query and v_rest. Estimated without bias, from mean squares, is the variance of the
    mean, v_seed / S + v_query / N + v_rest / (S N); it is not let fall below what seeds alone or
    queries alone make visible. Degrees of freedom are Satterthwaite's (Searle, Casella and
    McCulloch, Variance Components, 1992, chapter 4).

    Args:
        values: float64[..., seeds, queries], at least 2 of each.
        level: in (0, 1).

    Returns:
        low and high, float64[...] each.
    """
    seeds, queries = values.shape[-2:]
    mean = values.mean(axis=(-2, -1), keepdims=True)
    by_seed = values.mean(axis=-1, keepdims=True) - mean
    by_query = values.mean(axis=-2, keepdims=True) - mean
    rest = values - mean - by_seed - by_query
    # Variances of the mean of all: as seen between seeds, between queries, and of what is in both.
    from_seeds = np.square(by_seed).sum(axis=(-2, -1)) / (seeds * (seeds - 1))
    from_queries = np.square(by_query).sum(axis=(-2, -1)) / (queries * (queries - 1))
    in_both = np.square(rest).mean(axis=(-2, -1)) / ((seeds - 1) * (queries - 1))
    variance = np.maximum(from_seeds + from_queries - in_both, np.maximum(from_seeds, from_queries))
    spread = from_seeds**2 / (seeds - 1) + from_queries**2 / (queries - 1)
    freedom = np.divide(variance**2, spread, out=np.ones_like(spread), where=spread > 0)
    half = stats.t.ppf((1 + level) / 2, freedom) * np.sqrt(variance)
    centre = mean[..., 0, 0]
    return centre - half, centre + half
