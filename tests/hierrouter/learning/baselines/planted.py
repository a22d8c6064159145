"""Arms with a known best choice.

Questions come in groups, visible as a direction of their embedding. In group g the arm of that
number is right and the others are wrong. Arm number k costs about (k + 1) / 10.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hierrouter.learning.baselines.arms import Arms, Seen

EMPTY = np.zeros(0, dtype=np.int64)


def planted_arms(queries: int, arms: int = 3, seed: int = 0, noise: float = 0.3) -> Arms:
    """Arms of a fold; question `i` is of group `i % arms`.

    Args:
        noise: length of the random part of an embedding; its direction has length 1.
    """
    rng = np.random.default_rng(seed)
    group = group_of(queries, arms)
    right = np.eye(arms)[group]
    cost = (1 + np.arange(arms)) / 10 + rng.uniform(0, 0.01, (queries, arms))
    return arms_with(right, cost, _questions(group, arms, noise, rng))


def group_of(queries: int, arms: int) -> NDArray[np.int64]:
    """int64[queries]: the group of each question, which is its right arm."""
    return np.arange(queries) % arms


def arms_with(
    quality: NDArray[np.float64], cost: NDArray[np.float64], question: NDArray[np.float32]
) -> Arms:
    """Arms of one call each, float64[queries, arms] twice."""
    queries, arms = quality.shape
    seen = Seen(
        question=question,
        datasets=("one",) * queries,
        calls=np.eye(arms, dtype=np.bool_),
        answers=None,
    )
    return Arms(
        names=tuple(f"arm-{number}" for number in range(arms)),
        seen=seen,
        call_cost=cost,
        rate=(1 + np.arange(arms)) / 1000,
        quality=quality,
        accuracy=(quality > 0.5).astype(np.float64),
    )


def choices(arms: Arms, play) -> NDArray[np.int64]:
    """int64[queries]: the arm that a router takes."""
    return play(arms.seen).answer.argmax(axis=1)


def _questions(
    group: NDArray[np.int64], arms: int, noise: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    dim = 2 * arms
    random = rng.normal(0, noise / dim**0.5, (len(group), dim))
    return (np.eye(arms, dim)[group] + random).astype(np.float32)
