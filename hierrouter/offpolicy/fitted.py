"""Fitted Q evaluation: what each call is expected to earn.

In: a `Log` and its `LoggedStates`. Out: `FittedValues`, the expected return of every action at
every logged state under the policy to be valued, by regressions from scikit-learn, one for each hop
and action, from the last hop backwards. Not covered: estimates of the value, see `estimators`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold

from hierrouter.offpolicy.log import Log
from hierrouter.offpolicy.states import LoggedStates

FOLDS = 10
PENALTIES = np.logspace(-3, 3, 7)


class Regression(Protocol):
    """A regression of scikit-learn."""

    def fit(self, inputs: NDArray[np.float32], target: NDArray[np.float64]) -> Any:
        """Learn from inputs float32[n, d] and targets float64[n]."""
        ...

    def predict(self, inputs: NDArray[np.float32]) -> NDArray[np.float64]:
        """float64[n]."""
        ...


Make = Callable[[], Regression]


def ridge() -> Regression:
    """A linear regression whose penalty leave-one-out errors choose."""
    made: Regression = RidgeCV(PENALTIES)
    return made


@dataclass(frozen=True)
class FittedValues:
    """Expected returns at the states of a log, from all of it and across folds of its questions.

    Attributes:
        all: float64[episodes, L, A], fitted on all episodes; 0 after the end.
        across: float64[folds, episodes, L, A], each fitted without one fold.
        fold: int64[episodes], the fold of each episode; a question is in one fold only.
    """

    all: NDArray[np.float64]
    across: NDArray[np.float64]
    fold: NDArray[np.int64]

    @property
    def held_out(self) -> NDArray[np.float64]:
        """float64[episodes, L, A]: each episode by what was fitted without its question."""
        return self.across[self.fold, np.arange(len(self.fold))]


def fitted_values(
    log: Log, states: LoggedStates, reward: NDArray[np.float64], make: Make = ridge
) -> FittedValues:
    """Fit on all episodes, and without each of at most `FOLDS` folds of questions.

    Args:
        reward: float64[episodes, L], see `Log.reward`.
        make: a new regression; it is fitted once a hop, action and fold.
    """
    fold = question_folds(log.query)
    everyone = np.ones(len(log), dtype=bool)
    return FittedValues(
        all=fit(log, states, reward, everyone, make),
        across=np.stack(
            [fit(log, states, reward, fold != number, make) for number in range(fold.max() + 1)]
        ),
        fold=fold,
    )


def question_folds(query: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[episodes]: a fold for each, the same for all episodes of a question.

    Args:
        query: int64[episodes], at least 2 distinct ones.
    """
    fold = np.zeros(len(query), dtype=np.int64)
    splitter = GroupKFold(min(FOLDS, len(np.unique(query))))
    for number, (_, held_out) in enumerate(splitter.split(query, groups=query)):
        fold[held_out] = number
    return fold


def fit(
    log: Log,
    states: LoggedStates,
    reward: NDArray[np.float64],
    learn_from: NDArray[np.bool_],
    make: Make = ridge,
) -> NDArray[np.float64]:
    """float64[episodes, L, A]: expected returns, learned from some of the episodes.

    Fitted Q evaluation (Le, Voloshin and Yue, Batch Policy Learning under Constraints, ICML 2019),
    in its form for a finite horizon: the target of a call is what it earned plus the value of the
    state after it, which the hop after it has fitted already.

    Args:
        reward: float64[episodes, L], see `Log.reward`.
        learn_from: bool[episodes].
    """
    values = np.zeros((*log.action.shape, log.actions.count))
    chances = states.chances
    ahead = np.zeros(len(log))
    for hop in reversed(range(log.length.max())):
        here = log.alive[:, hop]
        inputs, learned = states.features[states.row[here, hop]], learn_from[here]
        target = (reward[:, hop] + ahead)[here]
        action = log.action[here, hop]
        columns = _columns(inputs, action, target, learned, log.actions.count, make)
        values[here, hop] = np.stack(list(columns), axis=1)
        ahead = np.einsum("ea,ea->e", chances[:, hop], values[:, hop])
    return values


def _columns(
    inputs: NDArray[np.float32],
    action: NDArray[np.int64],
    target: NDArray[np.float64],
    learned: NDArray[np.bool_],
    count: int,
    make: Make,
) -> Iterator[NDArray[np.float64]]:
    """float64[states] for each action; what was never taken is expected to earn the mean."""
    for number in range(count):
        chosen = learned & (action == number)
        regression = make() if chosen.sum() > 1 else DummyRegressor()
        fallback = chosen if chosen.any() else learned
        if fallback.any():
            regression.fit(inputs[fallback], target[fallback])
            yield regression.predict(inputs)
        else:
            yield np.zeros(len(inputs))
