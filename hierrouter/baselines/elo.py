"""Elo ratings in which similar questions weigh more.

Similarity-weighted ranking of RouteLLM (Ong et al. 2024, arXiv 2406.18665): arms have strengths of
a Bradley-Terry model, and for each question the comparisons made on similar questions weigh more.
Here every arm is compared with every other on every train query, a draw is half a win for both,
and R decides. In such a full tournament the order of Bradley-Terry strengths is the order of
weighted wins (Zermelo 1929; Ford 1957), so wins are counted and no strengths are fitted.

In: embeddings of questions and rewards on them. Out: the arm with the most wins near the question.
Not covered: ratings as numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hierrouter.baselines.arms import Arms, Play, Seen
from hierrouter.baselines.baseline import Tuned, best_of
from hierrouter.baselines.space import strongest, unit


@dataclass(frozen=True)
class Elo:
    """Grid: how much similar questions count, and what difference in R is a draw.

    Attributes:
        base: a comparison weighs base to the power of the cosine of the two questions (the source
            divides it by the highest one); 1 is plain Elo, 10 the source's choice.
        draw: differences in R up to this one are draws; equal rewards always are.
    """

    base: tuple[float, ...] = (10.0, 1.0, 1e3, 1e6, 1e12)
    draw: tuple[float, ...] = (0.0, 0.05, 0.2)
    name: ClassVar[str] = "Elo"
    source: ClassVar[str] = "Ong et al. 2024, arXiv 2406.18665"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """Count wins on `train`; base and draws by mean R on `validation`."""
        question, cost = unit(train.seen.question), train.cost.mean(axis=0)
        won = {draw: wins(train.reward(alpha), draw) for draw in self.draw}
        candidates = [
            (
                {"base": base, "draw": draw},
                partial(_play, question=question, won=won[draw], base=base, cost=cost),
            )
            for base, draw in product(self.base, self.draw)
        ]
        return best_of(candidates, validation, alpha)


def wins(reward: NDArray[np.float64], draw: float) -> NDArray[np.float64]:
    """float64[queries, arms]: how many other arms each one beats, and half of those it draws with.

    Args:
        reward: float64[queries, arms].
        draw: differences up to this one are draws.
    """
    leads = (reward[:, [arm]] - reward for arm in range(reward.shape[1]))
    points = [(lead > draw).sum(axis=1) + (abs(lead) <= draw).sum(axis=1) / 2 for lead in leads]
    return np.stack(points, axis=1) - 0.5  # an arm draws with itself


def _play(
    seen: Seen,
    question: NDArray[np.float32],
    won: NDArray[np.float64],
    base: float,
    cost: NDArray[np.float64],
) -> Play:
    cosine = (unit(seen.question) @ question.T).astype(np.float64)
    weight = base ** (cosine - cosine.max(axis=1, keepdims=True))
    return strongest(seen, (weight @ won) / weight.sum(axis=1, keepdims=True), cost)
