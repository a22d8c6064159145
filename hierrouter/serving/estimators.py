"""Estimators of what a policy would earn, from another policy's log.

This module does not import trees, so that no estimator can read a call that was not made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold

from hierrouter.evaluation.intervals import SHARES, ValueRange, influence_interval
from hierrouter.evaluation.outcome import Actions, Booleans, Floats, Integers
from hierrouter_cache.errors import InputError

INTERVAL_LEVEL = 0.95
# Level of the interval that decides whether weights average 1. It is high, because every log is
# checked, and a false alarm would make users distrust a good one.
WEIGHT_CHECK_LEVEL = 0.999
MIN_WARNED_SHARE = 0.001  # of the episodes; rarer actions are not worth a warning
MAX_CROSS_FITTING_FOLDS = 10

MakeRegression = Callable[[], RegressorMixin]
# Linear, with a penalty that leave-one-out errors choose.
RIDGE_REGRESSION: MakeRegression = partial(RidgeCV, np.logspace(-3, 3, 7))


@dataclass(frozen=True)
class Log:
    """Complete episodes, one a row (paper section 3.1), and how probable each choice was.

    L is the largest number of choices. With return, giving an earlier answer is a choice without
    cost, so there may be one more choice than calls.

    Attributes:
        actions: the meaning of the numbers in `action`.
        query: int64[episodes], number of the question; the same question has the same number.
        action: int64[episodes, L]; 0 after the end.
        propensity: float64[episodes, L], in (0, 1]: the probability with which the logging policy
            took the action at its state; 1 after the end.
        length: int64[episodes], number of choices, 1 to L.
        quality: float64[episodes], Q of the answer that was returned.
        cost: float64[episodes, L], of each call, in money; 0 after the end.
    """

    actions: Actions
    query: Integers
    action: Integers
    propensity: Floats
    length: Integers
    quality: Floats
    cost: Floats

    def __len__(self) -> int:
        return len(self.length)

    @property
    def hops(self) -> int:
        """L, the largest number of choices."""
        return self.actions.steps

    @cached_property
    def alive(self) -> Booleans:
        """bool[episodes, L]: whether a choice was made."""
        return np.arange(self.hops) < self.length[:, None]

    @cached_property
    def node(self) -> Integers:
        """int64[episodes, L]: the node of each choice; 0 after the end."""
        node = np.zeros_like(self.action)
        for hop in range(1, self.hops):
            alive = self.alive[:, hop]
            called = self.actions.model(self.action[alive, hop - 1])
            node[alive, hop] = self.actions.layout.child(node[alive, hop - 1], called)
        return node

    @cached_property
    def spent(self) -> Floats:
        """float64[episodes, L]: C_t, the cost before each choice."""
        spent = np.zeros_like(self.cost)
        spent[:, 1:] = self.cost[:, :-1].cumsum(axis=1)
        return spent

    def reward(self, alpha: float) -> Floats:
        """Return the reward of each choice: float64[episodes, L]; a row's sum is R = Q - alpha * C.

        The paper pays R at the end. Here the cost of a call is charged when it is made, and Q is
        paid with the last choice. The sum is the same, but an estimator that goes step by step need
        not predict costs that are known already.
        """
        reward = -alpha * self.cost
        reward[np.arange(len(self)), self.length - 1] += self.quality
        return reward


@dataclass(frozen=True)
class LoggedStates:
    """The distinct states that the episodes of a log passed.

    Attributes:
        row: int64[episodes, L], the state before each choice; any state after the end.
        features: float32[states, dim + (L - 1) * M + 1], see `logged_states`.
        target: float64[states, A], the action probabilities of the policy to be evaluated.
    """

    row: Integers
    features: NDArray[np.float32]
    target: Floats

    @cached_property
    def chances(self) -> Floats:
        """float64[episodes, L, A]: action probabilities of the policy to be evaluated."""
        return self.target[self.row]


def logged_states(
    log: Log,
    row: Integers,
    node: Integers,
    spent: Floats,
    embedding: NDArray[np.float32],
    target: Floats,
) -> LoggedStates:
    """Return the states of a log with their features.

    Features are the embedding, the model of each hop so far (one-hot), and the cost so far.

    Args:
        log: the episodes.
        row: int64[episodes, L], the state before each choice.
        node: int64[states], node numbers.
        spent: float64[states], C_t; it is divided by the largest.
        embedding: float32[states, dim].
        target: float64[states, A'], action probabilities of the policy to be evaluated. If it never
            stops early and the log does, it gets zeros for the M actions that stop.
    """
    layout = log.actions.layout
    states = log.actions.states
    called = np.zeros((states, log.hops - 1, layout.call_actions), dtype=np.float32)
    for state in range(states):
        for hop, model in enumerate(layout.path(state)):
            called[state, hop, model] = 1.0
    cost = spent / (spent.max(initial=0.0) or 1.0)
    columns = [embedding, called.reshape(states, -1)[node], cost[:, None]]
    missing = log.actions.count - target.shape[1]  # M if the policy lacks stops, else 0
    return LoggedStates(
        row=row,
        features=np.concatenate(columns, axis=1).astype(np.float32),
        target=np.insert(target, [layout.call_actions] * missing, 0.0, axis=1),
    )


@dataclass(frozen=True)
class Evaluation:
    """The estimates that one log gives for a policy.

    Attributes:
        estimates: of its value, the mean R, by the name of the estimator.
        overlap: how much of the log is about the policy.
        episodes: in the log.
        queries: distinct questions in the log.
    """

    estimates: Mapping[str, Estimate]
    overlap: Overlap
    episodes: int
    queries: int


def evaluate(log: Log, states: LoggedStates, alpha: float) -> Evaluation:
    """Estimate the value of a policy from a log, by each estimator.

    Args:
        log: the episodes.
        states: of the same episodes, with the policy's action probabilities.
        alpha: of the reward R = Q - alpha * C.

    Raises:
        InputError: all episodes are of one question.
    """
    queries = len(np.unique(log.query))
    if queries < 2:
        raise InputError("a log of one question has no interval; log at least 2 questions")
    reward = log.reward(alpha)
    weights = Weights.of(log, states)
    expected = cross_fit(log, states, reward)
    return Evaluation(
        estimates={
            "SNIPS": snips(log, weights, reward),
            "DR": doubly_robust(log, states, weights, reward, expected),
        },
        overlap=Overlap.of(log, states),
        episodes=len(log),
        queries=queries,
    )


@dataclass(frozen=True)
class Weights:
    """Importance weights: ratios of two policies' probabilities.

    Attributes:
        step: float64[episodes, L], pi(a_t | s_t) / mu(a_t | s_t); 1 after the end.
    """

    step: Floats

    @classmethod
    def of(cls, log: Log, states: LoggedStates) -> Weights:
        """Return the weights of the policy to be evaluated over the logging policy."""
        target = np.take_along_axis(states.chances, log.action[:, :, None], axis=2)[:, :, 0]
        return cls(np.where(log.alive, target / log.propensity, 1.0))

    @cached_property
    def cumulative(self) -> Floats:
        """float64[episodes, L]: the product up to each choice, including it."""
        return self.step.cumprod(axis=1)

    @cached_property
    def before(self) -> Floats:
        """float64[episodes, L]: the product before each choice; 1 at the first."""
        before = np.ones_like(self.step)
        before[:, 1:] = self.cumulative[:, :-1]
        return before

    @property
    def episode(self) -> Floats:
        """float64[episodes]: the product of all choices of an episode.

        Its expectation is 1 if the logging policy may take every action that the policy takes.
        """
        return self.cumulative[:, -1]


def snips(log: Log, weights: Weights, reward: Floats) -> Estimate:
    """Estimate the value by the self-normalised inverse propensity score.

    It is the sum of w * R over the sum of w, by episode; its error is that of its linearisation. It
    is biased by about -E[w^2 (R - V)] / n, and never larger than the largest R.

    Args:
        log: the episodes.
        weights: of the same episodes.
        reward: float64[episodes, L], see `Log.reward`.

    Source: Swaminathan and Joachims, The Self-Normalized Estimator for Counterfactual Learning
    (NeurIPS 2015).
    """
    mean, difference = weighted_mean_and_difference(
        np.zeros(len(log)), weights.episode, reward.sum(axis=1), log.query
    )
    return Estimate(mean, difference.error, difference.influence, SHARES)


def doubly_robust(
    log: Log, states: LoggedStates, weights: Weights, reward: Floats, expected: Floats
) -> Estimate:
    """Estimate the value by expected returns, corrected step by step with their weighted errors.

    It is unbiased if the propensities are right, whatever `expected` is, and if `expected` is
    right, whatever the propensities are.

    Args:
        log: the episodes.
        states: of the same episodes.
        weights: of the same episodes.
        reward: float64[episodes, L], see `Log.reward`.
        expected: float64[episodes, L, A], expected return of each action. It must not have been
            fitted on the episode's own question.

    Source: Jiang and Li, Doubly Robust Off-policy Value Evaluation for Reinforcement Learning (ICML
    2016), equation 10, written as a sum.
    """
    state_value = (states.chances * expected).sum(axis=2)
    action_value = np.take_along_axis(expected, log.action[:, :, None], axis=2)[:, :, 0]
    steps = weights.before * state_value + weights.cumulative * (reward - action_value)
    return clustered_mean(np.where(log.alive, steps, 0.0).sum(axis=1), log.query, SHARES)


def weighted_mean_and_difference(
    own: Floats, weight: Floats, value: Floats, query: Integers
) -> tuple[float, Estimate]:
    """Return the self-normalised mean of `value`, and the mean of `own` less that; see `snips`.

    Args:
        own: float64[n].
        weight: float64[n], of the same episodes.
        value: float64[n], of the same episodes; read only if the weight is above 0.
        query: int64[n], number of each question, at least 2 distinct ones.

    Returns:
        NaN for both if all weights are 0.
    """
    scale = weight.mean()
    if not scale:
        return math.nan, Estimate(math.nan, math.nan, np.zeros(1))
    weighted = np.where(weight > 0, value, 0.0)  # the others may be NaN
    mean = float((weight * weighted).mean() / scale)
    difference = clustered_mean(own - weight * (weighted - mean) / scale, query)
    return mean, replace(difference, value=difference.value - mean)


@dataclass(frozen=True)
class Estimate:
    """An estimate of a mean, with its standard error.

    Attributes:
        value: the estimate; NaN if the log has no data for it.
        error: its standard error.
        influence: float64[clusters], what each cluster adds to the value, times their number.
        within: values that a further cluster may have in any case; None if nothing is known.
    """

    value: float
    error: float
    influence: Floats = field(compare=False, repr=False)
    within: ValueRange | None = None

    def interval(self, level: float = INTERVAL_LEVEL) -> tuple[float, float]:
        """Return low and high end of its interval, see `influence_interval`."""
        return influence_interval(self.value, self.influence, self.within, level)


def clustered_mean(values: Floats, cluster: Integers, within: ValueRange | None = None) -> Estimate:
    """Estimate the mean, with the linearised error of a mean of clusters of unequal size.

    Args:
        values: float64[n].
        cluster: int64[n], number of each value's cluster; at least 2 distinct ones.
        within: values that a further cluster may have in any case.

    Source: Cochran, Sampling Techniques (1977), chapter 9A.
    """
    mean = float(values.mean())
    _, position = np.unique(cluster, return_inverse=True)
    deviations = np.bincount(position, weights=values - mean)  # summed by cluster
    clusters = len(deviations)
    variance = float(np.square(deviations).sum()) * clusters / (clusters - 1)
    influence = deviations * clusters / len(values)
    return Estimate(mean, math.sqrt(variance) / len(values), influence, within)


def cross_fit(
    log: Log, states: LoggedStates, reward: Floats, make: MakeRegression = RIDGE_REGRESSION
) -> Floats:
    """Predict the return of each action from the other folds' questions.

    Args:
        log: the episodes.
        states: of the same episodes.
        reward: float64[episodes, L], see `Log.reward`.
        make: makes a new regression; one is fitted for each hop, action and fold.

    Returns:
        float64[episodes, L, A], expected returns.
    """
    fold = question_folds(log.query)
    values = np.zeros((*log.action.shape, log.actions.count))
    for number in range(fold.max() + 1):
        held_out = fold == number
        values[held_out] = fit(log, states, reward, ~held_out, make)[held_out]
    return values


def question_folds(query: Integers) -> Integers:
    """Assign each episode to a fold, all episodes of a question to the same one.

    Args:
        query: int64[episodes], at least 2 distinct ones.

    Returns:
        int64[episodes], the number of the fold.
    """
    fold = np.zeros(len(query), dtype=np.int64)
    splitter = GroupKFold(min(MAX_CROSS_FITTING_FOLDS, len(np.unique(query))))
    for number, (_, held_out) in enumerate(splitter.split(query, groups=query)):
        fold[held_out] = number
    return fold


def fit(
    log: Log,
    states: LoggedStates,
    reward: Floats,
    learn_from: Booleans,
    make: MakeRegression = RIDGE_REGRESSION,
) -> Floats:
    """Predict the return of each action, learned from some of the episodes.

    This is fitted Q evaluation with a finite horizon: the target of a choice is its reward plus the
    value of the next state, which was predicted before, because the last hop is fitted first.

    Args:
        log: the episodes.
        states: of the same episodes.
        reward: float64[episodes, L], see `Log.reward`.
        learn_from: bool[episodes].
        make: makes a new regression.

    Returns:
        float64[episodes, L, A], expected returns, of all episodes.

    Source: Le, Voloshin and Yue, Batch Policy Learning under Constraints (ICML 2019).
    """
    values = np.zeros((*log.action.shape, log.actions.count))
    chances = states.chances
    next_value = np.zeros(len(log))
    for hop in reversed(range(log.length.max())):
        alive = log.alive[:, hop]
        inputs = states.features[states.row[alive, hop]]
        action = log.action[alive, hop]
        target = (reward[:, hop] + next_value)[alive]
        is_training = learn_from[alive]
        for number in range(log.actions.count):
            rows = is_training & (action == number)
            # One row determines no line, so it is predicted as a constant.
            regression = make() if rows.sum() > 1 else DummyRegressor()
            if not rows.any():  # an action that was never taken is expected to earn the mean
                rows = is_training
            if rows.any():
                regression.fit(inputs[rows], target[rows])
                values[alive, hop, number] = regression.predict(inputs)
        next_value = np.einsum("ea,ea->e", chances[:, hop], values[:, hop])
    return values


@dataclass(frozen=True)
class Overlap:
    """How much of a log is about the policy to be evaluated.

    Attributes:
        effective: number of episodes, see `effective_count`.
        largest: the largest weight of an episode.
        mean: of the weights.
        misses: whether they clearly do not average 1. Then the log lacks actions of the policy, or
            the propensities are not those of the logging policy.
        share_never_taken: the share of the policy's episodes in which it takes an action that the
            log never has at that node.
    """

    effective: float
    largest: float
    mean: float
    misses: bool
    share_never_taken: float

    @classmethod
    def of(cls, log: Log, states: LoggedStates) -> Overlap:
        """Measure the overlap of a log with the policy in its states."""
        weights = Weights.of(log, states)
        mean = clustered_mean(weights.episode, log.query)
        low, high = mean.interval(WEIGHT_CHECK_LEVEL)
        return cls(
            effective=effective_count(weights.episode),
            largest=float(weights.episode.max()),
            mean=mean.value,
            misses=not low <= 1 <= high,
            share_never_taken=_share_never_taken(log, states, weights.before),
        )


def effective_count(weight: Floats) -> float:
    """Return how many equal weights would have the same variance: (sum w)^2 / sum w^2.

    Args:
        weight: float64[n].

    Source: Kish, Survey Sampling (1965).
    """
    return float(weight.sum() ** 2 / max(np.square(weight).sum(), np.finfo(float).tiny))


def _share_never_taken(log: Log, states: LoggedStates, before: Floats) -> float:
    """Estimate in which share of its episodes the policy does what no episode does at that node.

    Args:
        log: the episodes.
        states: of the same episodes.
        before: float64[episodes, L], see `Weights.before`.
    """
    actions = log.actions.count
    never = 0.0
    for hop in range(log.hops):
        alive = log.alive[:, hop]
        nodes, position = np.unique(log.node[alive, hop], return_inverse=True)
        is_taken = np.zeros((len(nodes), actions), dtype=bool)
        is_taken[position, log.action[alive, hop]] = True
        share = np.zeros((len(nodes), actions))
        np.add.at(share, position, before[alive, hop, None] * states.chances[alive, hop])
        # Divided by all episodes: the weights before this hop already lack the share that was never
        # taken earlier, so no episode is counted twice.
        never += float(share[~is_taken].sum()) / len(log)
    return min(1.0, never)
