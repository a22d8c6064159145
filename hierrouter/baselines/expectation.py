"""What a question alone lets expect.

In: questions and one number a query and target, such as the quality of each arm. Out:
`Expectation`: ridge regression or nearest neighbours, whichever errs less on questions left out,
and what it says of each train question when it is fitted on others, for those who learn from its
predictions. Not covered: choosing an arm by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.neighbors import KNeighborsRegressor

PENALTIES = (0.1, 1.0, 10.0, 100.0)
NEIGHBOURS = (10, 30, 100)
FOLDS = 5


@dataclass(frozen=True)
class Expectation:
    """A map from questions to expected values.

    Attributes:
        model: the fitted regression.
        held_out: float64[queries, targets], of the train questions, each from a model that has
            not seen it.
    """

    model: RegressorMixin
    held_out: NDArray[np.float64]

    def predict(self, question: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[queries, targets]."""
        predicted = np.asarray(self.model.predict(_columns(question)), np.float64)
        return predicted.reshape(len(question), -1)


def expectation(
    question: NDArray[np.float32], values: NDArray[np.float64], rng: np.random.Generator
) -> Expectation:
    """Fit it.

    Args:
        question: float32[queries, dim], of the train fold, at least one.
        values: float64[queries, targets].
        rng: cuts the folds.
    """
    columns = _columns(question)
    if len(question) == 1:
        return Expectation(Ridge().fit(columns, values), values)
    folds = KFold(min(FOLDS, len(question)), shuffle=True, random_state=int(rng.integers(2**31)))
    fewest = len(question) - -(-len(question) // folds.n_splits)  # questions to learn from
    tried = [
        Expectation(model, _left_out(model, columns, values, folds)) for model in _models(fewest)
    ]
    best = min(tried, key=lambda found: float(((values - found.held_out) ** 2).sum()))
    return Expectation(best.model.fit(columns, values), best.held_out)


def _left_out(
    model: RegressorMixin,
    columns: NDArray[np.float64],
    values: NDArray[np.float64],
    folds: KFold,
) -> NDArray[np.float64]:
    """float64[queries, targets]; a single target comes back without its axis."""
    predicted = cross_val_predict(model, columns, values, cv=folds)
    return np.asarray(predicted, np.float64).reshape(values.shape)


def _models(questions: int) -> Iterator[RegressorMixin]:
    """What is tried, for at least so many questions to learn from."""
    yield from map(Ridge, PENALTIES)
    for neighbours in sorted({min(count, questions) for count in NEIGHBOURS}):
        yield KNeighborsRegressor(neighbours, weights="distance", algorithm="brute")


def _columns(question: NDArray[np.float32]) -> NDArray[np.float64]:
    """With a column of zeros: the view without texts has none, which a regression refuses."""
    return np.pad(question.astype(np.float64), ((0, 0), (0, 1)))
