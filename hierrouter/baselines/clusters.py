"""Clusters of questions, and the best arm of each.

In: `Arms` of the train fold. Out: a router that takes, for the cluster nearest to a question, the
arm with the highest mean R on the questions of that cluster. Source: the Avengers (Zhang et al.
2025, arXiv 2505.19797), with cost as in Avengers-Pro (Zhang et al. 2025, arXiv 2508.12631). Left
out: repeated sampling with a vote, and more than one nearest cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from sklearn.cluster import KMeans
from sklearn.preprocessing import normalize

from hierrouter.baselines.arms import Arms, Play
from hierrouter.baselines.baseline import Fitted, Tuned, best_of
from hierrouter.baselines.static import best_arm

STARTS = 4


@dataclass(frozen=True)
class Clusters:
    """The best arm of each k-means cluster.

    Attributes:
        sizes: numbers of clusters, at most as many as there are different questions.
    """

    sizes: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    name: ClassVar[str] = "clusters"
    source: ClassVar[str] = "Zhang et al. 2025, arXiv 2505.19797, arXiv 2508.12631"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        different = len(np.unique(normalize(train.seen.question), axis=0))
        seed = int(rng.integers(2**31))
        candidates: list[tuple[dict[str, int], Fitted]] = [
            ({"clusters": size}, _fitted(train, alpha, size, seed))
            for size in sorted({min(size, different) for size in self.sizes})
        ]
        return best_of(candidates, validation, alpha)


def _fitted(train: Arms, alpha: float, size: int, seed: int) -> Fitted:
    model = KMeans(size, n_init=STARTS, random_state=seed)
    of_query = model.fit_predict(normalize(train.seen.question))
    reward, cost = train.reward(alpha), train.cost
    arm = np.array(
        [
            best_arm(reward[of_query == cluster], cost[of_query == cluster])
            for cluster in range(size)
        ]
    )
    return lambda seen: Play.of(seen, arm[model.predict(normalize(seen.question))])
