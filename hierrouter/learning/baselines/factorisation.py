"""Matrix factorisation: it rates arms for a question by battles between them, as RouteLLM does."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hierrouter.evaluation.bounds import cheapest_best
from hierrouter.learning.baselines.arms import (
    REWARD_DIGITS,
    Arms,
    Candidates,
    GridSearch,
    Play,
    RouterInputs,
)

Battles = Literal["all", "best"]


@dataclass(frozen=True)
class Factorisation(GridSearch):
    """Strengths of arms by matrix factorisation: question vector times map times arm vector.

    The strengths are fitted to who wins battles of two arms on a question. The grid is over who
    fights whom, and over the number of training steps.

    Attributes:
        battles: "all" arms against all, or the "best" arm of a query against all others.
        steps: of Adam, each over all train queries; ascending.
        rank: length of the vectors.
        weighed: weigh a win by its gain in R; False is the method of the source.
        learning_rate: Adam's.
    """

    battles: tuple[Battles, ...] = ("all", "best")
    steps: tuple[int, ...] = (50, 150, 400)
    rank: int = 32
    weighed: bool = True
    learning_rate: float = 0.01
    name: ClassVar[str] = "matrix factorisation"
    source: ClassVar[str] = "Ong et al. 2024, arXiv 2406.18665"

    def candidates(self, train: Arms, alpha: float, rng: np.random.Generator) -> Candidates:
        """One training for each kind of battles; a candidate after each number of steps."""
        question = torch.from_numpy(_unit_vectors_and_constant(train.seen.question))
        reward = torch.from_numpy(train.reward(alpha).astype(np.float32))
        best = torch.from_numpy(cheapest_best(train.reward(alpha), train.cost))[:, None]
        for battles in self.battles:
            initial = rng.normal(0, self.rank**-0.5, (question.shape[1], self.rank))
            question_map = torch.tensor(initial.astype(np.float32), requires_grad=True)
            # Arms start as equals, so that without anything to learn the cheapest is chosen.
            arm_vectors = torch.zeros((train.seen.arms, self.rank), requires_grad=True)
            adam = torch.optim.Adam([question_map, arm_vectors], lr=self.learning_rate)
            for step in range(1, max(self.steps) + 1):
                # Every arm meets another one, the same on all questions.
                others = torch.from_numpy(rng.permutation(len(arm_vectors)))
                opponent = (best if battles == "best" else others).expand(reward.shape)
                strength = question @ question_map @ arm_vectors.T
                lead = strength - strength.gather(1, opponent)
                gap = reward - reward.gather(1, opponent)
                adam.zero_grad()
                battle_loss(lead, gap, self.weighed).backward()  # type: ignore[no-untyped-call]
                adam.step()
                if step in self.steps:
                    weights = (question_map @ arm_vectors.T).detach().numpy()
                    play = partial(_strongest_arm, weights, train.cost.mean(axis=0))
                    yield {"battles": battles, "steps": step}, play


def battle_loss(lead: Tensor, gap: Tensor, weighed: bool) -> Tensor:
    """Mean negative log-likelihood of the winners.

    Args:
        lead: float32[...], strength of one arm less that of its opponent.
        gap: float32[...], its reward less the opponent's; 0 is no battle.
        weighed: weigh a battle by the size of its gap.
    """
    weight = gap.abs() if weighed else (gap != 0).float()
    loss = torch.nn.functional.softplus(-torch.sign(gap) * lead)
    return (weight * loss).sum() / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)


def _unit_vectors_and_constant(question: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[queries, dim + 1]: the vectors at length 1 (zeros stay), and a constant."""
    length = np.linalg.norm(question, axis=1, keepdims=True)
    unit = np.divide(question, np.where(length > 0, length, 1), dtype=np.float32)
    return np.pad(unit, ((0, 0), (0, 1)), constant_values=1)


def _strongest_arm(
    weights: NDArray[np.float32], cost: NDArray[np.float64], inputs: RouterInputs
) -> Play:
    """Take the strongest arm for each question; of equals the cheapest on average.

    Args:
        weights: float32[dim + 1, arms].
        cost: float64[arms], mean cost.
        inputs: the queries.
    """
    vectors = _unit_vectors_and_constant(inputs.question)
    strength = (vectors @ weights).astype(np.float64).round(REWARD_DIGITS)
    return Play.of(inputs, cheapest_best(strength, np.broadcast_to(cost, strength.shape)))
