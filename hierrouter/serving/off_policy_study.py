"""Estimators against the truth, log after log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.evaluation.outcome import Actions
from hierrouter.serving.logs import simulated, states_in_tree
from hierrouter.serving.off_policy import (
    Estimate,
    Log,
    LoggedStates,
    Make,
    Overlap,
    estimates,
    ridge,
)
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import RouteTree

OnLog = Callable[[int, int], None]


@dataclass(frozen=True)
class Evaluation:
    """What one log says of a policy.

    Attributes:
        estimates: of its value, one an estimator.
        overlap: how much of the log is about it.
        episodes: in the log.
        queries: distinct questions in it.
    """

    estimates: tuple[Estimate, ...]
    overlap: Overlap
    episodes: int
    queries: int


@dataclass(frozen=True)
class Score:
    """How an estimator did on many logs.

    Attributes:
        estimator: its name.
        logs: on which it gave a value.
        bias: mean of value - truth.
        bias_error: standard error of that mean.
        deviation: standard deviation of the values over logs.
        rmse: root of the mean of (value - truth)^2.
        coverage: share of the logs whose interval holds the truth.
    """

    estimator: str
    logs: int
    bias: float
    bias_error: float
    deviation: float
    rmse: float
    coverage: float


@dataclass(frozen=True)
class Setting:
    """Where logs come from and what they are to tell.

    Attributes:
        tree: the questions.
        actions: what the logging policy chooses from.
        logging: float64[queries, states, A], the policy that logs.
        target: float64[queries, states, A], the policy to be valued.
        alpha: of the reward.
    """

    tree: RouteTree
    actions: Actions
    logging: NDArray[np.float64]
    target: NDArray[np.float64]
    alpha: float

    def play(self, episodes: int, rng: np.random.Generator) -> Log:
        """A fresh log; each episode draws its question anew, from all of them."""
        position = rng.integers(len(self.tree), size=episodes)
        return simulated(self.tree, self.actions, self.logging, position, rng)

    def evaluate(self, log: Log, make: Make = ridge) -> Evaluation:
        """What a log of these questions says, without a look at the tree's rewards."""
        return evaluate(log, states_in_tree(log, self.tree, self.target), self.alpha, make)


def evaluate(log: Log, states: LoggedStates, alpha: float, make: Make = ridge) -> Evaluation:
    """What a log says of a policy: estimates of its value, and their grounds.

    Args:
        states: of the same episodes.
        alpha: of the reward.
        make: the regression of the fitted values.

    Raises:
        InputError: all episodes are of one question.
    """
    queries = len(np.unique(log.query))
    if queries < 2:
        raise InputError("a log of one question has no interval; log at least 2 questions")
    return Evaluation(
        estimates=estimates(log, states, alpha, make),
        overlap=Overlap.of(log, states),
        episodes=len(log),
        queries=queries,
    )


def repeated(
    setting: Setting,
    episodes: int,
    repeats: int,
    seed: int,
    on_log: OnLog = lambda done, total: None,
) -> tuple[Log, list[Evaluation]]:
    """The first log, and what each of several fresh logs says.

    Args:
        episodes: of each log.
        repeats: how many logs, at least 1.
        seed: each log has a generator of its own that follows from it.
        on_log: told (done, total) after each.
    """
    first, found = None, []
    for done, source in enumerate(np.random.SeedSequence(seed).spawn(repeats), start=1):
        log = setting.play(episodes, np.random.default_rng(source))
        found.append(setting.evaluate(log))
        first = first or log
        on_log(done, repeats)
    assert first is not None
    return first, found


def scores(evaluations: Sequence[Evaluation], truth: float) -> tuple[Score, ...]:
    """How each estimator did on these logs.

    Args:
        truth: the value that all of them estimate.
    """
    columns = zip(*(found.estimates for found in evaluations), strict=True)
    return tuple(_score(column, truth) for column in columns)


def _score(found: Sequence[Estimate], truth: float) -> Score:
    given = [estimate for estimate in found if np.isfinite(estimate.value)]
    values = np.array([estimate.value for estimate in given])
    holds = [estimate.low <= truth <= estimate.high for estimate in given]
    several = len(given) > 1
    deviation = float(values.std(ddof=1)) if several else float("nan")
    nothing = float("nan")
    return Score(
        estimator=found[0].estimator,
        logs=len(given),
        bias=float(values.mean() - truth) if given else nothing,
        bias_error=deviation / np.sqrt(len(given)) if several else nothing,
        deviation=deviation,
        rmse=float(np.sqrt(np.square(values - truth).mean())) if given else nothing,
        coverage=float(np.mean(holds)) if given else nothing,
    )
