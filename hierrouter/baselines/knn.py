"""Nearest neighbours of the question.

In: `Arms` of the train fold. Out: a router that takes the arm with the highest mean R among the
questions of the train fold nearest by cosine. Source: the kNN router of RouterBench (Hu et al.
2024, arXiv 2403.12031), found hard to beat by Li 2025 (arXiv 2505.12601). Theirs predict quality
alone; here quality and cost are predicted apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
from sklearn.neighbors import KNeighborsRegressor

from hierrouter.baselines.arms import Arms
from hierrouter.baselines.baseline import Fitted, Tuned, best_of
from hierrouter.baselines.predicted import best_predicted, targets


@dataclass(frozen=True)
class NearestNeighbours:
    """Quality and cost of every arm: the mean over the nearest questions.

    Attributes:
        neighbours: how many to look at, at most as many as there are.
        weights: "uniform", or "distance" for one over the cosine distance.
    """

    neighbours: tuple[int, ...] = (3, 5, 10, 20, 40, 80)
    weights: tuple[str, ...] = ("uniform", "distance")
    name: ClassVar[str] = "kNN"
    source: ClassVar[str] = "Hu et al. 2024, arXiv 2403.12031; Li 2025, arXiv 2505.12601"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        sizes = sorted({min(size, len(train)) for size in self.neighbours})
        candidates = [
            ({"neighbours": size, "weights": weights}, _fitted(train, alpha, size, weights))
            for size, weights in product(sizes, self.weights)
        ]
        return best_of(candidates, validation, alpha)


def _fitted(train: Arms, alpha: float, size: int, weights: str) -> Fitted:
    model = KNeighborsRegressor(size, weights=weights, metric="cosine", algorithm="brute")
    model.fit(train.seen.question, targets(train))
    return best_predicted(model.predict, train, alpha)
