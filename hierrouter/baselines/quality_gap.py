"""A small arm where it is as good as a large one.

HybridLLM (Ding et al. 2024, arXiv 2404.14618): a classifier says from the question how likely the
small model's answer is at most a margin worse than the large one's; below a threshold the large one
is asked. As in the source the margin is the one that makes the labels most varied: the median of
the quality gap, where that is above 0. Here a logistic regression on the frozen embedding stands
for the fine-tuned language model, and one answer of each model for ten.

In: embeddings of questions and the quality of arms on them. Out: one of two arms. Not covered:
more than two; which two, and the threshold, is chosen on the validation fold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from hierrouter.baselines.arms import Arms, Play, Seen
from hierrouter.baselines.baseline import Fitted, Tuned, best_of
from hierrouter.baselines.space import columns


@dataclass(frozen=True)
class QualityGap:
    """Grid: pairs of arms and thresholds.

    Attributes:
        pairs: how many are tried: those that would have the highest mean R on the train fold if
            the better of the two were always chosen.
        threshold: probabilities above which the small arm is taken; at 1 it never is.
        strength: inverse of the regularisation (C of scikit-learn).
    """

    pairs: int = 12
    threshold: tuple[float, ...] = (0.5, 0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
    strength: float = 10.0
    name: ClassVar[str] = "quality gap"
    source: ClassVar[str] = "Ding et al. 2024, arXiv 2404.14618"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """Learn gaps on `train`; pair and threshold by mean R on `validation`."""
        pairs = promising_pairs(train.reward(alpha), train.cost.mean(axis=0), self.pairs)
        candidates = [candidate for pair in pairs for candidate in self._thresholds(train, *pair)]
        return best_of(candidates, validation, alpha)

    def _thresholds(
        self, train: Arms, small: int, large: int
    ) -> Iterator[tuple[dict[str, Any], Fitted]]:
        gap = train.quality[:, large] - train.quality[:, small]
        margin = max(0.0, float(np.median(gap)))
        good = gap <= margin
        learner = LogisticRegression(C=self.strength, max_iter=1000)
        model = None if good.all() else learner.fit(columns(train.seen.question), good)
        names = {"small": train.names[small], "large": train.names[large], "margin": margin}
        for threshold in self.threshold:
            play = partial(_play, model=model, small=small, large=large, threshold=threshold)
            yield {**names, "threshold": threshold}, play


def promising_pairs(
    reward: NDArray[np.float64], cost: NDArray[np.float64], most: int
) -> list[tuple[int, int]]:
    """Pairs of a cheaper and a dearer arm by the mean reward of their better one, highest first.

    Args:
        reward: float64[queries, arms].
        cost: float64[arms], its mean.
        most: how many pairs are returned; a pair of an arm and itself counts as one.
    """
    order = np.argsort(cost, kind="stable")
    small, large = np.triu_indices(len(order))
    better = np.array([np.maximum(reward[:, [arm]], reward).mean(axis=0) for arm in order])
    best = np.argsort(-better[small, order[large]], kind="stable")[:most]
    return [(int(order[small[pair]]), int(order[large[pair]])) for pair in best]


def _play(
    seen: Seen, model: LogisticRegression | None, small: int, large: int, threshold: float
) -> Play:
    good = model.predict_proba(columns(seen.question))[:, 1] if model else np.ones(len(seen))
    return Play.of(seen, np.where(good > threshold, small, large))
