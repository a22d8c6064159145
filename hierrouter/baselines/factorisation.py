"""Matrix factorisation: who beats whom on what.

The router of RouteLLM with the best quality (Ong et al. 2024, arXiv 2406.18665): a vector for each
arm, a linear map of the question into the same space, and a logistic model of which of two arms
wins. Here winning is a higher R, a win weighs what it is worth, and a train query is not one battle
of two arms: every arm meets every other, or the best one meets all others, as LLMRouter has it
(github.com/ulab-uiuc/LLMRouter). Vectors are not normalised.

In: embeddings of questions and who won on them. Out: the arm with the highest strength for the
question. Not covered: how much better it is; only wins are learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hierrouter.baselines.arms import Arms, Play, Seen
from hierrouter.baselines.baseline import Fitted, Tuned, best_of
from hierrouter.baselines.descent import Array, descend, random_map
from hierrouter.baselines.space import columns, strongest
from hierrouter.evaluate.bounds import cheapest_best

Battles = Literal["all", "best"]


@dataclass(frozen=True)
class Factorisation:
    """Grid: who meets whom, and the steps of training.

    Attributes:
        battles: "all" with all, or the "best" arm of a query with all others.
        steps: of Adam, over all train queries each; rising.
        rank: length of the vectors.
        weighed: a win counts as much as it gains in R; False is the source's way.
    """

    battles: tuple[Battles, ...] = ("all", "best")
    steps: tuple[int, ...] = (50, 150, 400)
    rank: int = 32
    weighed: bool = True
    learning_rate: float = 0.01
    name: ClassVar[str] = "matrix factorisation"
    source: ClassVar[str] = "Ong et al. 2024, arXiv 2406.18665"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """Learn from wins on `train`; battles and steps by mean R on `validation`."""
        candidates = [
            candidate
            for battles in self.battles
            for candidate in self._trained(train, alpha, battles, rng)
        ]
        return best_of(candidates, validation, alpha)

    def _trained(
        self, train: Arms, alpha: float, battles: Battles, rng: np.random.Generator
    ) -> Iterator[tuple[dict[str, Any], Fitted]]:
        question = torch.from_numpy(columns(train.seen.question))
        reward = torch.from_numpy(train.reward(alpha).astype(np.float32))
        best = torch.from_numpy(cheapest_best(train.reward(alpha), train.cost))[:, None]

        def loss(weights: Sequence[Tensor]) -> Tensor:
            into, arms = weights
            drawn = torch.from_numpy(rng.permutation(len(arms)))
            opponent = (best if battles == "best" else drawn).expand(reward.shape)
            lead, gap = (
                value - value.gather(1, opponent) for value in (question @ into @ arms.T, reward)
            )
            return lost_battles(lead, gap, self.weighed)

        # Arms start as equals, so that the cheapest is chosen where there is nothing to learn.
        start = [
            random_map(rng, question.shape[1], self.rank, self.rank**-0.5),
            np.zeros((train.seen.arms, self.rank), dtype=np.float32),
        ]
        for steps, (into, arms) in descend(start, loss, self.steps, self.learning_rate):
            play = partial(_play, into=into, arms=arms, cost=train.cost.mean(axis=0))
            yield {"battles": battles, "steps": steps}, play


def lost_battles(lead: Tensor, gap: Tensor, weighed: bool) -> Tensor:
    """Mean negative log-likelihood of who won.

    Args:
        lead: float32[...], strength of one arm less that of its opponent.
        gap: float32[...], its reward less the opponent's; 0 is no battle.
        weighed: a battle counts as much as its gap is wide.
    """
    weight = gap.abs() if weighed else (gap != 0).float()
    loss = torch.nn.functional.softplus(-torch.sign(gap) * lead)
    return (weight * loss).sum() / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)


def _play(seen: Seen, into: Array, arms: Array, cost: NDArray[np.float64]) -> Play:
    return strongest(seen, columns(seen.question) @ into @ arms.T, cost)
