"""LinUCB: a bandit that sees only what it tries.

Li et al. 2010 (arXiv 1003.0146), disjoint linear models: for each arm a ridge regression of R on
features of the question; the arm with the highest upper confidence bound is tried. It goes over the
train fold once, in random order, and sees the reward of the arm it tried, never those of the
others. Afterwards it takes the arm with the highest estimate. Features are principal components of
the questions at unit variance: one reward a query is too little for all of an embedding.

In: questions one after the other. Out: the greedy arm. Not covered: what the exploration cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hierrouter.baselines.arms import Arms, Play, Seen
from hierrouter.baselines.baseline import Tuned, best_of
from hierrouter.baselines.space import strongest, unit
from hierrouter.evaluate.bounds import cheapest_best


@dataclass(frozen=True)
class LinUCB:
    """Grid: how much it explores, and how many features it looks at.

    Attributes:
        width: of the confidence bound in R (the source's alpha).
        features: principal components beside a constant, at most as many as there are.
    """

    width: tuple[float, ...] = (0.3, 0.1, 1.0)
    features: tuple[int, ...] = (16, 4, 64)
    name: ClassVar[str] = "LinUCB"
    source: ClassVar[str] = "Li et al. 2010, arXiv 1003.0146"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """One pass over `train` for each setting; the setting by mean R on `validation`."""
        order = rng.permutation(len(train))
        mean, axes = principal_axes(unit(train.seen.question), max(self.features))
        reward, features = train.reward(alpha)[order], _features(train.seen, mean, axes)[order]
        candidates = []
        for width, count in product(self.width, self.features):
            theta = explore(features[:, : count + 1], reward, train.rate, width)
            play = partial(_play, mean=mean, axes=axes[:, :count], theta=theta, rate=train.rate)
            candidates.append(({"width": width, "features": count}, play))
        return best_of(candidates, validation, alpha)


def explore(
    features: NDArray[np.float64],
    reward: NDArray[np.float64],
    rate: NDArray[np.float64],
    width: float,
) -> NDArray[np.float64]:
    """float64[arms, features]: weights of each arm after one pass (algorithm 1 of the source).

    Args:
        features: float64[queries, features], in the order in which they come.
        reward: float64[queries, arms]; one of each row is read.
        rate: float64[arms], a token's price; of arms with equal bounds the cheapest is tried.
        width: of the confidence bound.
    """
    arms, count = reward.shape[1], features.shape[1]
    inverse, gained = np.tile(np.eye(count), (arms, 1, 1)), np.zeros((arms, count))
    for query, seen in zip(features, reward, strict=True):
        turned = inverse @ query
        variance = turned @ query
        bound = (gained * turned).sum(axis=1) + width * np.sqrt(variance)
        arm = int(cheapest_best(bound[None], rate[None])[0])
        # The inverse of a matrix to which query * query' was added (Sherman-Morrison).
        inverse[arm] -= np.outer(turned[arm], turned[arm]) / (1 + variance[arm])
        gained[arm] += seen[arm] * query
    weights: NDArray[np.float64] = np.einsum("aij,aj->ai", inverse, gained)
    return weights


def principal_axes(
    vectors: NDArray[np.float32], most: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean float64[dim] and axes float64[dim, count] on which the vectors have unit variance.

    Args:
        vectors: float32[n, dim].
        most: axes at most; those without variance are left out.
    """
    mean = vectors.mean(axis=0, dtype=np.float64)
    _, size, axes = np.linalg.svd(vectors - mean, full_matrices=False)
    kept = size[:most] > np.finfo(np.float32).eps * len(vectors)
    deviation = size[:most][kept] / np.sqrt(len(vectors))
    return mean, axes[:most][kept].T / deviation


def _features(
    seen: Seen, mean: NDArray[np.float64], axes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """float64[queries, 1 + axes]: a constant and the place on each axis."""
    return np.hstack([np.ones((len(seen), 1)), (unit(seen.question) - mean) @ axes])


def _play(
    seen: Seen,
    mean: NDArray[np.float64],
    axes: NDArray[np.float64],
    theta: NDArray[np.float64],
    rate: NDArray[np.float64],
) -> Play:
    return strongest(seen, _features(seen, mean, axes) @ theta.T, rate)
