"""Dual encoder: questions near the arms that suit them.

RouterDC (Chen et al. 2024, arXiv 2409.19886): an encoder of questions and a vector for each arm,
trained with two contrastive losses. One draws a question to its best arms and away from its worst;
the other draws questions of a cluster together. Here a small network over the frozen embeddings
stands for the fine-tuned language model; the vectors of arms may have any length; clusters are
those of the embeddings, without t-SNE; all other arms, and all other questions of a batch, are
negatives; and a question counts as much as its best and its worst arms differ in R.

In: embeddings of questions and rewards on them. Out: the arm whose vector is nearest by inner
product. Not covered: an encoder that learns with the router.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn import functional

from hierrouter.baselines.arms import Arms, Play, Seen
from hierrouter.baselines.baseline import Fitted, Tuned, best_of
from hierrouter.baselines.contrast import arm_loss, question_loss
from hierrouter.baselines.descent import Array, descend, random_map
from hierrouter.baselines.space import columns, strongest


@dataclass(frozen=True)
class DualEncoder:
    """Grid: how many arms suit a question, and the steps of training.

    Attributes:
        positives: best arms of a question, at most all but one.
        steps: of Adam; rising.
        batch: queries a step.
        clusters: of the train questions, at most as many as there are.
        cluster_weight: of the loss between questions.
        hidden: width of the network.
        rank: length of the vectors.
    """

    positives: tuple[int, ...] = (1, 3)
    steps: tuple[int, ...] = (100, 300)
    batch: int = 256
    clusters: int = 8
    cluster_weight: float = 1.0
    hidden: int = 64
    rank: int = 32
    learning_rate: float = 0.003
    name: ClassVar[str] = "dual encoder"
    source: ClassVar[str] = "Chen et al. 2024, arXiv 2409.19886"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """Train on `train`; positives and steps by mean R on `validation`."""
        cluster = self._clusters(columns(train.seen.question), rng)
        counts = sorted({min(count, train.seen.arms - 1) for count in self.positives})
        candidates = [
            candidate
            for count in counts
            for candidate in self._trained(train, alpha, count, cluster, rng)
        ]
        return best_of(candidates, validation, alpha)

    def _clusters(self, question: Array, rng: np.random.Generator) -> NDArray[np.int32]:
        """int32[queries]: the cluster of each question."""
        distinct = len(np.unique(question, axis=0))
        means = KMeans(
            min(self.clusters, distinct), n_init=1, random_state=int(rng.integers(2**31))
        )
        labels: NDArray[np.int32] = means.fit_predict(question)
        return labels

    def _trained(
        self,
        train: Arms,
        alpha: float,
        positives: int,
        cluster: NDArray[np.int32],
        rng: np.random.Generator,
    ) -> Iterator[tuple[dict[str, Any], Fitted]]:
        question = torch.from_numpy(columns(train.seen.question))
        reward = torch.from_numpy(train.reward(alpha).astype(np.float32))
        group = torch.from_numpy(cluster)

        def loss(weights: Sequence[Tensor]) -> Tensor:
            rows = torch.from_numpy(rng.integers(0, len(question), self.batch))
            place = _encoded(question[rows], *weights[:2])
            to_arms = arm_loss(place @ weights[2].T, reward[rows], positives)
            return to_arms + self.cluster_weight * question_loss(place, group[rows])

        # Arms start as equals, so that the cheapest is chosen where there is nothing to learn.
        start = [
            random_map(rng, question.shape[1], self.hidden, 1.0),
            random_map(rng, self.hidden, self.rank, self.hidden**-0.5),
            np.zeros((train.seen.arms, self.rank), dtype=np.float32),
        ]
        for steps, weights in descend(start, loss, self.steps, self.learning_rate):
            play = partial(_play, weights=weights, cost=train.cost.mean(axis=0))
            yield {"positives": positives, "steps": steps}, play


def _encoded(question: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return functional.normalize(torch.tanh(question @ first) @ second, dim=1)


def _play(seen: Seen, weights: Sequence[Array], cost: NDArray[np.float64]) -> Play:
    first, second, arms = (torch.from_numpy(weight) for weight in weights)
    question = torch.from_numpy(columns(seen.question))
    return strongest(seen, (_encoded(question, first, second) @ arms.T).numpy(), cost)
