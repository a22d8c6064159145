"""Ridge and logistic regression for each arm.

In: `Arms` of the train fold. Out: routers that predict quality and cost of each arm from the
question's embedding and take the highest predicted R. Source: the linear utility predictor of Li
2025 (arXiv 2505.12601), and a classifier of right answers for each model (Shnitzer et al. 2023,
arXiv 2309.15789; theirs are nearest neighbours). Here it is a fractional logit (Papke and
Wooldridge 1996, J. Applied Econometrics 11:619): Q in [0, 1] is the weight of a right answer and
1 - Q that of a wrong one, which is plain logistic regression where Q is 0 or 1. Cost is always
predicted by ridge regression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from hierrouter.baselines.arms import Arms
from hierrouter.baselines.baseline import Fitted, Tuned, best_of
from hierrouter.baselines.predicted import Predict, best_predicted, targets

STEPS = 1_000  # far more than the solver needs on vectors of length 1


@dataclass(frozen=True)
class RidgePerArm:
    """Least squares with a penalty on the weights, on embeddings of length 1.

    Attributes:
        penalties: of the squared weights.
    """

    penalties: tuple[float, ...] = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
    name: ClassVar[str] = "ridge"
    source: ClassVar[str] = "Li 2025, arXiv 2505.12601"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        candidates: list[tuple[dict[str, float], Fitted]] = [
            ({"penalty": penalty}, best_predicted(_ridge(train, penalty), train, alpha))
            for penalty in self.penalties
        ]
        return best_of(candidates, validation, alpha)


@dataclass(frozen=True)
class LogisticPerArm:
    """The probability of a right answer, fractional where Q is.

    Attributes:
        penalties: of the squared weights; that of the cost is `cost_penalty`.
    """

    penalties: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    cost_penalty: float = 1.0
    name: ClassVar[str] = "logistic"
    source: ClassVar[str] = "Shnitzer et al. 2023, arXiv 2309.15789"
    reads_answers: ClassVar[bool] = False

    def fit(self, train: Arms, validation: Arms, alpha: float, rng: np.random.Generator) -> Tuned:
        """See `Baseline`."""
        ridge = _ridge(train, self.cost_penalty)
        candidates: list[tuple[dict[str, float], Fitted]] = [
            ({"penalty": penalty}, best_predicted(_logistic(train, penalty, ridge), train, alpha))
            for penalty in self.penalties
        ]
        return best_of(candidates, validation, alpha)


def _ridge(train: Arms, penalty: float) -> Predict:
    model = make_pipeline(Normalizer(), Ridge(penalty))
    predict: Predict = model.fit(train.seen.question, targets(train)).predict
    return predict


def _logistic(train: Arms, penalty: float, ridge: Predict) -> Predict:
    """Quality by a fractional logit, cost by what `ridge` says of it."""
    quality = [_probability(train.seen.question, column, penalty) for column in train.quality.T]

    def predict(question: NDArray[np.float32]) -> NDArray[np.float64]:
        cost = ridge(question)[:, len(quality) :]
        return np.concatenate([np.stack([of(question) for of in quality], axis=1), cost], axis=1)

    return predict


def _probability(
    question: NDArray[np.float32], quality: NDArray[np.float64], penalty: float
) -> Predict:
    """From questions to float64[queries]; what is always the same is predicted as such."""
    if quality.min() == quality.max():
        return lambda asked: np.full(len(asked), quality[0])
    weight = np.concatenate([quality, 1 - quality])
    right = np.arange(len(weight)) < len(quality)
    used = weight > 0
    model = make_pipeline(Normalizer(), LogisticRegression(C=1 / penalty, max_iter=STEPS))
    model.fit(
        np.concatenate([question, question])[used],
        right[used],
        logisticregression__sample_weight=weight[used],
    )
    return lambda asked: model.predict_proba(asked)[:, 1]
