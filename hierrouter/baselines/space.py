"""Questions as vectors, arms by their strength.

In: embeddings; a number for each question and arm. Out: embeddings of length 1, and the strongest
arm. Not covered: strengths that are predicted qualities and costs (`predicted`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hierrouter.baselines.arms import Play, Seen
from hierrouter.baselines.baseline import DIGITS
from hierrouter.evaluate.bounds import cheapest_best


def unit(question: NDArray[np.float32]) -> NDArray[np.float32]:
    """The vectors at length 1; a vector of zeros stays."""
    length = np.linalg.norm(question, axis=1, keepdims=True)
    return np.divide(question, np.where(length > 0, length, 1), dtype=np.float32)


def columns(question: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[queries, dim + 1]: the vectors at length 1, and a constant."""
    return np.pad(unit(question), ((0, 0), (0, 1)), constant_values=1)


def strongest(
    seen: Seen, strength: NDArray[np.float32] | NDArray[np.float64], cost: NDArray[np.float64]
) -> Play:
    """The strongest arm for each question; of equals the cheapest.

    Args:
        strength: float[queries, arms].
        cost: float64[arms], of an arm in general.
    """
    value = strength.astype(np.float64).round(DIGITS)
    return Play.of(seen, cheapest_best(value, np.broadcast_to(cost, value.shape)))
