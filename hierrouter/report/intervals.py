"""Means over queries with their intervals.

In: values of policies on the queries of a dataset. Out: an `Estimate` a row, all from the same
resamples. Not covered: which values these are (`build`, `swept`), and how resamples are drawn
(`hierrouter.evaluate.bootstrap`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluate.bootstrap import percentile_interval, resampled_means
from hierrouter.report.certainty import Estimate
from hierrouter.report.results import Bootstrap

# Rows resampled together: bounds the memory at 16 bytes * ROWS_AT_ONCE * resamples.
ROWS_AT_ONCE = 256


def estimates(values: NDArray[np.float64], bootstrap: Bootstrap, stream: int) -> list[Estimate]:
    """Mean and interval of each row.

    Args:
        values: float64[rows, queries].
        bootstrap: how intervals are made.
        stream: see `draws`.
    """
    found: list[Estimate] = []
    for start in range(0, len(values), ROWS_AT_ONCE):
        part = values[start : start + ROWS_AT_ONCE]
        means = resampled_means(part, bootstrap.n, draws(bootstrap, stream))
        low, high = percentile_interval(means, values.shape[1], bootstrap.level)
        ends = zip(part.mean(axis=1).tolist(), low.tolist(), high.tolist(), strict=True)
        found.extend(Estimate(*numbers) for numbers in ends)
    return found


def stream_of_all(datasets: Sequence[str]) -> int:
    """The stream of all queries, see `draws`: after those of the datasets.

    Args:
        datasets: dataset of each query.
    """
    return len(set(datasets))


def draws(bootstrap: Bootstrap, stream: int) -> np.random.Generator:
    """What resamples of a dataset are drawn from: the same for all its figures.

    Args:
        stream: number of the dataset, which keeps the resamples of datasets apart.
    """
    return np.random.default_rng([bootstrap.seed, stream])
