"""Routers that do not read the question.

In: `Arms` of the train fold. Out: chance, the cheapest arm, the largest, the best one, and the best
one of each dataset. These are the usual bars, without a source of their own; "cheapest" is by mean
cost on the train fold, "largest" by the rate of its models, which stands for their size. The last
one is told the dataset of every question, which no router is: a perfect classifier. Not covered:
bounds that look at the answers (`hierrouter.evaluate.bounds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hierrouter.baselines.arms import Arms, Play, Seen
from hierrouter.baselines.baseline import Fitted, Tuned
from hierrouter.evaluate.bounds import cheapest_best


@dataclass(frozen=True)
class Random:
    """Every arm with the same probability; valued in expectation, not drawn."""

    name: ClassVar[str] = "random"
    source: ClassVar[str] = "chance"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        return Tuned(
            lambda seen: Play.mixed(seen, np.full((len(seen), seen.arms), 1 / seen.arms)), {}
        )


@dataclass(frozen=True)
class Cheapest:
    """The arm with the lowest mean cost on the train fold, for every question."""

    name: ClassVar[str] = "cheapest"
    source: ClassVar[str] = "lowest mean cost on the train fold"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        return always(train, int(train.cost.mean(axis=0).argmin()))


@dataclass(frozen=True)
class Largest:
    """The arm whose models have the highest rate, for every question; ties: lower cost."""

    name: ClassVar[str] = "largest"
    source: ClassVar[str] = "highest mean rate of its models"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        return always(train, best_arm(train.rate[None], train.cost))


@dataclass(frozen=True)
class BestStatic:
    """The arm with the highest mean R on the train fold, for every question; ties: lower cost."""

    name: ClassVar[str] = "best static"
    source: ClassVar[str] = "highest mean R on the train fold"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        return best_static(train, alpha)


@dataclass(frozen=True)
class DatasetOracle:
    """The best arm of each dataset of the train fold; the best over all for an unknown one."""

    name: ClassVar[str] = "dataset oracle"
    source: ClassVar[str] = "highest mean R on the train fold, by dataset; it is told the dataset"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        datasets = np.array(train.seen.datasets)
        choice = {
            name: _best(train.select(np.flatnonzero(datasets == name)), alpha)
            for name in dict.fromkeys(train.seen.datasets)
        }
        named = {name: train.names[arm] for name, arm in choice.items()}
        return Tuned(_by_dataset(choice, _best(train, alpha)), {"arms": named})


def best_static(train: Arms, alpha: float) -> Tuned:
    """Always the arm with the highest mean R on `train`: what is left where nothing is learned."""
    return always(train, _best(train, alpha))


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


def _best(arms: Arms, alpha: float) -> int:
    return best_arm(arms.reward(alpha), arms.cost)


def _by_dataset(choice: Mapping[str, int], otherwise: int) -> Fitted:
    def play(seen: Seen) -> Play:
        arm = [choice.get(name, otherwise) for name in seen.datasets]
        return Play.of(seen, np.array(arm, dtype=np.int64))

    return play
