"""A support vector machine that names the best arm.

In: `Arms` of the train fold. Out: a router that classifies questions by the arm that is best for
them. Source: the svm router of LLMRouter (github.com/ulab-uiuc/LLMRouter), whose label is the
model with the highest score, the first of equals. Here it is the arm with the highest R, the
cheapest of equals, and kernel and C are tuned.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.svm import SVC

from hierrouter.baselines.arms import Arms, Play
from hierrouter.baselines.baseline import Fitted, Tuned, best_of
from hierrouter.baselines.static import always
from hierrouter.evaluate.bounds import cheapest_best


@dataclass(frozen=True)
class Svm:
    """One machine for each pair of arms, and a vote among them.

    Attributes:
        kernels: of scikit-learn's `SVC`.
        slack: C, the price of a question on the wrong side.
    """

    kernels: tuple[str, ...] = ("linear", "rbf")
    slack: tuple[float, ...] = (1.0, 10.0)
    name: ClassVar[str] = "SVM"
    source: ClassVar[str] = "LLMRouter, github.com/ulab-uiuc/LLMRouter"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        best = cheapest_best(train.reward(alpha), train.cost)
        if (best == best[0]).all():
            return always(train, int(best[0]))
        candidates = [
            ({"kernel": kernel, "C": slack}, _fitted(train, best, kernel, slack))
            for kernel, slack in product(self.kernels, self.slack)
        ]
        return best_of(candidates, validation, alpha)


def _fitted(train: Arms, best: NDArray[np.int64], kernel: str, slack: float) -> Fitted:
    """A tie of votes goes to the lower label, so labels are ranks by mean cost."""
    by_cost = train.cost.mean(axis=0).argsort(kind="stable")
    rank = by_cost.argsort()
    model = make_pipeline(Normalizer(), SVC(C=slack, kernel=kernel))
    model.fit(train.seen.question, rank[best])
    return lambda seen: Play.of(seen, by_cost[model.predict(seen.question)])
