"""From what is predicted of each arm to a choice.

In: a function from question embeddings to the quality and the cost of every arm. Out: a `Fitted`
router that takes the highest predicted R. Not covered: who predicts (`knn`, `regression`, `mlp`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hierrouter.baselines.arms import Arms, Play, Seen
from hierrouter.baselines.baseline import DIGITS, Fitted
from hierrouter.evaluate.bounds import cheapest_best

Predict = Callable[[NDArray[np.float32]], NDArray[np.float64]]


def targets(arms: Arms) -> NDArray[np.float64]:
    """float64[queries, 2 * arms]: quality of every arm, then cost of every arm."""
    return np.concatenate([arms.quality, arms.cost], axis=1)


def best_predicted(predict: Predict, train: Arms, alpha: float) -> Fitted:
    """The arm with the highest predicted R = Q - alpha * C; ties: lower predicted cost.

    Args:
        predict: float32[queries, dim] to float64[queries, 2 * arms], laid out as `targets`.
        train: what it was fitted on; what is the same on all of its queries is predicted as such.
    """
    learned = targets(train)
    always = learned.min(axis=0) == learned.max(axis=0)

    def play(seen: Seen) -> Play:
        predicted = np.where(always, learned[0], predict(seen.question))
        quality, cost = np.split(predicted, 2, axis=1)
        utility = np.round(quality - alpha * cost, DIGITS)
        return Play.of(seen, cheapest_best(utility, cost.round(DIGITS)))

    return play
