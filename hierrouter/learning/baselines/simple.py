"""Baselines that do not read the question."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.bounds import cheapest_best
from hierrouter.learning.baselines.arms import Arms, FitResult, Play, RouterInputs


@dataclass(frozen=True)
class Random:
    """Every arm with the same probability; valued in expectation, not drawn."""

    name: ClassVar[str] = "random"
    source: ClassVar[str] = "chance"
    reads_answers: ClassVar[bool] = False

    def fit(
        self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator
    ) -> FitResult:
        """Fit nothing."""

        def play(inputs: RouterInputs) -> Play:
            return Play.mixed(inputs, np.full((len(inputs), inputs.arms), 1 / inputs.arms))

        return FitResult(play, {})


@dataclass(frozen=True)
class BestStatic:
    """The arm with the highest mean R on the train fold, for every question; ties: lower cost."""

    name: ClassVar[str] = "best static"
    source: ClassVar[str] = "highest mean R on the train fold"
    reads_answers: ClassVar[bool] = False

    def fit(
        self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator
    ) -> FitResult:
        """Choose the arm on `train`."""
        return best_static(train, alpha)


@dataclass(frozen=True)
class DatasetOracle:
    """The best arm of each dataset of the train fold; the best overall for an unknown dataset."""

    name: ClassVar[str] = "dataset oracle"
    source: ClassVar[str] = "highest mean R on the train fold, by dataset; it is told the dataset"
    reads_answers: ClassVar[bool] = False

    def fit(
        self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator
    ) -> FitResult:
        """Choose the arms on `train`."""
        datasets = np.array(train.seen.datasets)
        reward = train.reward(alpha)
        best: dict[str, int] = {}
        for name in dict.fromkeys(train.seen.datasets):
            rows = datasets == name
            best[name] = best_arm(reward[rows], train.cost[rows])
        best_overall = best_arm(reward, train.cost)

        def play(inputs: RouterInputs) -> Play:
            arm = [best.get(name, best_overall) for name in inputs.datasets]
            return Play.of(inputs, np.array(arm, dtype=np.int64))

        return FitResult(play, {"arms": {name: train.names[arm] for name, arm in best.items()}})


def best_static(train: Arms, alpha: float) -> FitResult:
    """Always the arm with the highest mean R on `train`; also what other baselines fall back to."""
    return always(train, best_arm(train.reward(alpha), train.cost))


def always(train: Arms, arm: int) -> FitResult:
    """The same arm for every question."""
    return FitResult(
        lambda inputs: Play.of(inputs, np.full(len(inputs), arm, dtype=np.int64)),
        {"arm": train.names[arm]},
    )


def best_arm(value: NDArray[np.float64], cost: NDArray[np.float64]) -> int:
    """The arm with the highest mean value; ties: lower mean cost.

    Args:
        value: float64[rows, arms].
        cost: float64[rows, arms].
    """
    mean_value = value.mean(axis=0, keepdims=True)
    mean_cost = cost.mean(axis=0, keepdims=True)
    return int(cheapest_best(mean_value, mean_cost)[0])
