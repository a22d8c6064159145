"""A mean over episodes whose questions come again.

In: a number for each episode, and the question of each. Out: `Clustered`: the mean, its standard
error with one question as one cluster, and an interval. Not covered: where the numbers come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.95


@dataclass(frozen=True)
class Clustered:
    """An estimate with the error of its mean.

    Attributes:
        value: the estimate; NaN where the log says nothing.
        error: its standard error.
        freedom: degrees of freedom of that error: clusters less 1.
    """

    value: float
    error: float
    freedom: int

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Low and high, by Student's t."""
        half = float(stats.t.ppf((1 + level) / 2, self.freedom)) * self.error
        return self.value - half, self.value + half


def clustered_mean(values: NDArray[np.float64], cluster: NDArray[np.int64]) -> Clustered:
    """The mean of all values, with the linearised error of a mean of clusters of unequal size.

    Cochran, Sampling Techniques (1977), chapter 9A.

    Args:
        values: float64[n].
        cluster: int64[n], of each value; at least 2 distinct ones.
    """
    mean = float(values.mean())
    _, place = np.unique(cluster, return_inverse=True)
    off = np.bincount(place, weights=values - mean)
    clusters = len(off)
    variance = float(np.square(off).sum()) * clusters / (clusters - 1)
    return Clustered(mean, math.sqrt(variance) / len(values), clusters - 1)


def jackknife(value: float, replicates: NDArray[np.float64]) -> Clustered:
    """An estimate with the error of a jackknife that leaves out one of K groups at a time.

    Kott, The Delete-a-Group Jackknife, Journal of Official Statistics 17(4), 2001.

    Args:
        value: from all groups.
        replicates: float64[K], each without one group.
    """
    groups = len(replicates)
    variance = (groups - 1) / groups * float(np.square(replicates - replicates.mean()).sum())
    return Clustered(value, math.sqrt(variance), groups - 1)
