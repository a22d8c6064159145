"""A small neural network for all arms.

In: `Arms` of the train fold. Out: a router that predicts quality and cost of each arm from the
question's embedding with one hidden layer, and takes the highest predicted R. Source: the MLP
router of RouterBench (Hu et al. 2024, arXiv 2403.12031), which has a network for each model; here
the arms share the hidden layer.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

from hierrouter.baselines.arms import Arms
from hierrouter.baselines.baseline import Fitted, Tuned, best_of
from hierrouter.baselines.predicted import best_predicted, targets

BATCH = 200


@dataclass(frozen=True)
class Mlp:
    """One hidden layer, trained by Adam for a given number of steps.

    Attributes:
        steps: of the optimiser; as many passes over the train fold as that takes.
        penalties: of the squared weights.
        hidden: width of the hidden layer.
    """

    steps: tuple[int, ...] = (200, 800)
    penalties: tuple[float, ...] = (0.01, 1.0, 10.0)
    hidden: int = 64
    name: ClassVar[str] = "MLP"
    source: ClassVar[str] = "Hu et al. 2024, arXiv 2403.12031"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        seed = int(rng.integers(2**31))
        candidates = [
            (
                {"steps": steps, "penalty": penalty},
                self._fitted(train, alpha, steps, penalty, seed),
            )
            for steps, penalty in product(self.steps, self.penalties)
        ]
        return best_of(candidates, validation, alpha)

    def _fitted(self, train: Arms, alpha: float, steps: int, penalty: float, seed: int) -> Fitted:
        """Inputs and targets have mean 0 and spread 1, so that quality and cost count alike."""
        batch = min(BATCH, len(train))
        passes = math.ceil(steps / math.ceil(len(train) / batch))
        network = MLPRegressor(
            hidden_layer_sizes=(self.hidden,),
            alpha=penalty,
            batch_size=batch,
            max_iter=passes,
            n_iter_no_change=passes,
            random_state=seed,
        )
        model = TransformedTargetRegressor(
            make_pipeline(Normalizer(), StandardScaler(), network), transformer=StandardScaler()
        )
        with warnings.catch_warnings():
            # It ends after the steps it was given; how many is a setting.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(train.seen.question, targets(train))
        return best_predicted(model.predict, train, alpha)
