"""A router that learns vectors of questions and arms: matrix factorisation."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hierrouter.evaluation.bounds import cheapest_best
from hierrouter.learning.baselines import arms
from hierrouter.learning.baselines.arms import Arms, Candidates, GridSearch, Play, Seen

Array = NDArray[np.float32]


Battles = Literal["all", "best"]


@dataclass(frozen=True)
class Factorisation(GridSearch):
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

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """One training for each kind of battles, which is looked at after each number of steps."""
        for battles in self.battles:
            yield from self._trained(train, alpha, battles, rng)

    def _trained(
        self, train: Arms, alpha: float, battles: Battles, rng: np.random.Generator
    ) -> Candidates:
        question = torch.from_numpy(arms.columns(train.seen.question))
        reward = torch.from_numpy(train.reward(alpha).astype(np.float32))
        best = torch.from_numpy(cheapest_best(train.reward(alpha), train.cost))[:, None]

        # Arms start as equals, so that the cheapest is chosen where there is nothing to learn.
        drawn = rng.normal(0, self.rank**-0.5, (question.shape[1], self.rank))
        into = torch.tensor(drawn.astype(np.float32), requires_grad=True)
        places = torch.zeros((train.seen.arms, self.rank), requires_grad=True)
        adam, made = torch.optim.Adam([into, places], lr=self.learning_rate), 0
        for steps in self.steps:
            for _ in range(steps - made):
                others = torch.from_numpy(rng.permutation(len(places)))
                opponent = (best if battles == "best" else others).expand(reward.shape)
                lead, gap = (
                    value - value.gather(1, opponent)
                    for value in (question @ into @ places.T, reward)
                )
                adam.zero_grad()
                lost_battles(lead, gap, self.weighed).backward()  # type: ignore[no-untyped-call]
                adam.step()
            made = steps
            learned_into, at = (weight.detach().numpy().copy() for weight in (into, places))
            play = partial(_factored, learned_into, at, train.cost.mean(axis=0))
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


def _factored(into: Array, places: Array, cost: NDArray[np.float64], seen: Seen) -> Play:
    return arms.strongest(seen, arms.columns(seen.question) @ into @ places.T, cost)
