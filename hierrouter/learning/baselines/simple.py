"""Baselines that do not read the question."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hierrouter.learning.baselines.arms import (
    Arms,
    FitResult,
    Play,
    RouterInputs,
    best_arm,
    best_static,
)


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
