"""Routers that do not read the question, and those that rate arms by battles."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hierrouter.evaluation.bounds import cheapest_best
from hierrouter.learning.baselines import arms
from hierrouter.learning.baselines.arms import Arms, Candidates, GridSearch, Play, Seen, Tuned


@dataclass(frozen=True)
class Random:
    """Every arm with the same probability; valued in expectation, not drawn."""

    name: ClassVar[str] = "random"
    source: ClassVar[str] = "chance"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        return Tuned(
            lambda seen: Play.mixed(seen, np.full((len(seen), seen.arms), 1 / seen.arms)), {}
        )


@dataclass(frozen=True)
class BestStatic:
    """The arm with the highest mean R on the train fold, for every question; ties: lower cost."""

    name: ClassVar[str] = "best static"
    source: ClassVar[str] = "highest mean R on the train fold"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        return best_static(train, alpha)


@dataclass(frozen=True)
class DatasetOracle:
    """The best arm of each dataset of the train fold; the best over all for an unknown one."""

    name: ClassVar[str] = "dataset oracle"
    source: ClassVar[str] = "highest mean R on the train fold, by dataset; it is told the dataset"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        datasets, reward = np.array(train.seen.datasets), train.reward(alpha)
        rows = {name: datasets == name for name in dict.fromkeys(train.seen.datasets)}
        best = {name: best_arm(reward[of], train.cost[of]) for name, of in rows.items()}
        otherwise = best_arm(reward, train.cost)

        def play(seen: Seen) -> Play:
            arm = [best.get(name, otherwise) for name in seen.datasets]
            return Play.of(seen, np.array(arm, dtype=np.int64))

        return Tuned(play, {"arms": {name: train.names[arm] for name, arm in best.items()}})


def best_static(train: Arms, alpha: float) -> Tuned:
    """Always the arm with the highest mean R on `train`: what is left where nothing is learned."""
    return always(train, best_arm(train.reward(alpha), train.cost))


def always(train: Arms, arm: int) -> Tuned:
    """The same arm for every question."""
    return Tuned(
        lambda seen: Play.of(seen, np.full(len(seen), arm, dtype=np.int64)),
        {"arm": train.names[arm]},
    )


def best_arm(value: NDArray[np.float64], cost: NDArray[np.float64]) -> int:
    """The arm with the highest mean value, float64[rows, arms]; ties: lower mean cost."""
    means = value.mean(axis=0, keepdims=True), cost.mean(axis=0, keepdims=True)
    return int(cheapest_best(*means)[0])


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
        question = torch.from_numpy(_columns(train.seen.question))
        reward = torch.from_numpy(train.reward(alpha).astype(np.float32))
        best = torch.from_numpy(cheapest_best(train.reward(alpha), train.cost))[:, None]
        for battles in self.battles:
            # Arms start as equals, so that the cheapest is chosen where there is nothing to learn.
            drawn = rng.normal(0, self.rank**-0.5, (question.shape[1], self.rank))
            into = torch.tensor(drawn.astype(np.float32), requires_grad=True)
            places = torch.zeros((train.seen.arms, self.rank), requires_grad=True)
            adam = torch.optim.Adam([into, places], lr=self.learning_rate)
            for made in range(1, max(self.steps) + 1):
                others = torch.from_numpy(rng.permutation(len(places)))
                opponent = (best if battles == "best" else others).expand(reward.shape)
                lead, gap = (
                    value - value.gather(1, opponent)
                    for value in (question @ into @ places.T, reward)
                )
                adam.zero_grad()
                lost_battles(lead, gap, self.weighed).backward()  # type: ignore[no-untyped-call]
                adam.step()
                if made in self.steps:
                    weights = (into @ places.T).detach().numpy()
                    play = partial(_factored, weights, train.cost.mean(axis=0))
                    yield {"battles": battles, "steps": made}, play


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


def _columns(question: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[queries, dim + 1]: the vectors at length 1 (zeros stay), and a constant."""
    length = np.linalg.norm(question, axis=1, keepdims=True)
    unit = np.divide(question, np.where(length > 0, length, 1), dtype=np.float32)
    return np.pad(unit, ((0, 0), (0, 1)), constant_values=1)


def _factored(weights: NDArray[np.float32], cost: NDArray[np.float64], seen: Seen) -> Play:
    """The strongest arm for each question; of equals the cheapest in general, float64[arms]."""
    strength = (_columns(seen.question) @ weights).astype(np.float64).round(arms.DIGITS)
    return Play.of(seen, cheapest_best(strength, np.broadcast_to(cost, strength.shape)))
