"""Estimators of what a policy would earn, from another policy's log.

Nothing here can get hold of a tree: estimators see what was logged, and no call that was not made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.base import RegressorMixin
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold

from hierrouter.evaluation.outcome import Actions, Booleans, Floats, Integers
from hierrouter_cache.errors import InputError

LEVEL = 0.95
SURE = 0.999  # level of the interval that decides whether weights average 1
SMALLEST_SHARE = 0.001  # of the episodes; what is rarer is not worth a warning
FOLDS = 10

Make = Callable[[], RegressorMixin]  # a new regression of scikit-learn
# Linear, with a penalty that leave-one-out errors choose.
RIDGE: Make = partial(RidgeCV, np.logspace(-3, 3, 7))


@dataclass(frozen=True)
class Log:
    """Whole episodes, one a row (paper section 3.1), and how probable each call was.

    L is the number of choices at most: with return, giving an answer is a choice without cost, and
    there is one more than calls.

    Attributes:
        actions: what the numbers in `action` mean.
        query: int64[episodes], number of the question; the same question has the same number.
        action: int64[episodes, L]; 0 after the end.
        propensity: float64[episodes, L], in (0, 1]: the probability with which the logging policy
            took the action where it took it; 1 after the end.
        length: int64[episodes], choices made, 1 to L.
        quality: float64[episodes], Q of the answer that was given.
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
        """L."""
        return self.actions.steps

    @cached_property
    def alive(self) -> Booleans:
        """bool[episodes, L]: whether a call was made."""
        return np.arange(self.hops) < self.length[:, None]

    @cached_property
    def node(self) -> Integers:
        """int64[episodes, L]: the node at which each call was decided; 0 after the end."""
        node = np.zeros_like(self.action)
        for hop in range(1, self.hops):
            called = self.actions.model(self.action[:, hop - 1])
            node[:, hop] = self.actions.routes.child(node[:, hop - 1], called)
        return np.where(self.alive, node, 0)

    @cached_property
    def spent(self) -> Floats:
        """float64[episodes, L]: C_t, what was spent before each call."""
        spent = np.zeros_like(self.cost)
        spent[:, 1:] = self.cost[:, :-1].cumsum(axis=1)
        return spent

    def reward(self, alpha: float) -> Floats:
        """float64[episodes, L]: what each call earned; a row's sum is R = Q - alpha * C.

        The paper pays R at the end. A call's cost is known when it is made, so it is charged there,
        and Q is paid with the last call: the sum is the same, and an estimator that goes call by
        call need not carry a cost through the calls that follow it.
        """
        reward = -alpha * self.cost
        reward[np.arange(len(self)), self.length - 1] += self.quality
        return reward


@dataclass(frozen=True)
class LoggedStates:
    """The states that the episodes of a log passed, each distinct one once.

    Attributes:
        row: int64[episodes, L], the state before each call; after the end any one.
        features: float32[states, dim + (L - 1) * M + 1], see `logged_states`.
        target: float64[states, A], what the policy to be valued does there.
    """

    row: Integers
    features: NDArray[np.float32]
    target: Floats

    @cached_property
    def chances(self) -> Floats:
        """float64[episodes, L, A]: the policy to be valued before each call."""
        return self.target[self.row]


def logged_states(
    log: Log,
    row: Integers,
    node: Integers,
    spent: Floats,
    embedding: NDArray[np.float32],
    target: Floats,
) -> LoggedStates:
    """The states of a log; features are the embedding, the model of each hop so far, and the cost.

    Args:
        row: int64[episodes, L], the state before each call.
        node: int64[states], node numbers.
        spent: float64[states], C_t; it is divided by the largest.
        embedding: float32[states, dim].
        target: float64[states, A'], the policy to be valued; where it never stops early and the log
            does, it gets zeros for the M actions that stop.
    """
    routes, states = log.actions.routes, log.actions.states
    called = np.zeros((states, log.hops - 1, routes.models), dtype=np.float32)
    for state in range(states):
        for hop, model in enumerate(routes.path(state)):
            called[state, hop, model] = 1.0
    cost = spent / (spent.max(initial=0.0) or 1.0)
    columns = [embedding, called.reshape(states, -1)[node], cost[:, None]]
    missing = log.actions.count - target.shape[1]
    return LoggedStates(
        row=row,
        features=np.concatenate(columns, axis=1).astype(np.float32),
        target=np.insert(target, [routes.models] * missing, 0.0, axis=1),
    )


@dataclass(frozen=True)
class Evaluation:
    """What one log says of a policy.

    Attributes:
        estimates: of its value, its mean R, by the name of the estimator.
        overlap: how much of the log is about it.
        episodes: in the log.
        queries: distinct questions in it.
    """

    estimates: Mapping[str, Clustered]
    overlap: Overlap
    episodes: int
    queries: int


def evaluate(log: Log, states: LoggedStates, alpha: float) -> Evaluation:
    """What a log says of a policy: estimates of its value, and their grounds.

    Args:
        states: of the same episodes.
        alpha: of the reward R = Q - alpha * C.

    Raises:
        InputError: all episodes are of one question.
    """
    queries = len(np.unique(log.query))
    if queries < 2:
        raise InputError("a log of one question has no interval; log at least 2 questions")
    reward, weights = log.reward(alpha), Weights.of(log, states)
    expected = cross_fitted(log, states, reward)
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
    """Ratios of two policies' probabilities.

    Attributes:
        step: float64[episodes, L], pi(a_t | s_t) / mu(a_t | s_t); 1 after the end.
    """

    step: Floats

    @classmethod
    def of(cls, log: Log, states: LoggedStates) -> Weights:
        """Of the policy to be valued over the policy that logged."""
        likely = np.take_along_axis(states.chances, log.action[:, :, None], axis=2)[:, :, 0]
        return cls(np.where(log.alive, likely / log.propensity, 1.0))

    @cached_property
    def so_far(self) -> Floats:
        """float64[episodes, L]: the product up to and with each call."""
        return self.step.cumprod(axis=1)

    @cached_property
    def before(self) -> Floats:
        """float64[episodes, L]: the product up to each call, without it; 1 at the first."""
        before = np.ones_like(self.step)
        before[:, 1:] = self.so_far[:, :-1]
        return before

    @property
    def whole(self) -> Floats:
        """float64[episodes]: of whole episodes; their expectation is 1 where nothing is missing."""
        return self.so_far[:, -1]


def snips(log: Log, weights: Weights, reward: Floats) -> Clustered:
    """Self-normalised inverse propensity score: the sum of w * R over the sum of w, by episode.

    Swaminathan and Joachims, The Self-Normalized Estimator for Counterfactual Learning (NeurIPS
    2015); its error is that of its linearisation. Biased by about -E[w^2 (R - V)] / n, and no
    estimate is larger than the largest R.

    `reward`: float64[episodes, L], see `Log.reward`.
    """
    mean, off = less_weighted(np.zeros(len(log)), weights.whole, reward.sum(axis=1), log.query)
    return Clustered(mean, off.error, off.freedom)


def doubly_robust(
    log: Log, states: LoggedStates, weights: Weights, reward: Floats, expected: Floats
) -> Clustered:
    """The expected returns, corrected by what was off in the log, call by call.

    Jiang and Li, Doubly Robust Off-policy Value Evaluation for Reinforcement Learning (ICML 2016),
    equation 10, written as a sum. Unbiased where the propensities are right, whatever `expected`
    is, and where `expected` is right, whatever the propensities are.

    `reward`: float64[episodes, L], see `Log.reward`; `expected`: float64[episodes, L, A], expected
    return of each action; it must not have been fitted on the episode's own question.
    """
    state_value = (states.chances * expected).sum(axis=2)
    call_value = np.take_along_axis(expected, log.action[:, :, None], axis=2)[:, :, 0]
    steps = weights.before * state_value + weights.so_far * (reward - call_value)
    return clustered_mean(np.where(log.alive, steps, 0.0).sum(axis=1), log.query)


def less_weighted(
    own: Floats, weight: Floats, value: Floats, query: Integers
) -> tuple[float, Clustered]:
    """The self-normalised mean of `value`, and the mean of `own` less that; see `snips`.

    `own`, `weight`, `value`: float64[n], of the same episodes; `value` where a weight is above 0;
    `query`: int64[n], number of each question, at least 2.
    """
    scale = weight.mean()
    if not scale:
        return math.nan, Clustered(math.nan, math.nan, 1)
    held = np.where(weight > 0, value, 0.0)
    mean = float((weight * held).mean() / scale)
    off = clustered_mean(own - weight * (held - mean) / scale, query)
    return mean, Clustered(off.value - mean, off.error, off.freedom)


@dataclass(frozen=True)
class Clustered:
    """An estimate with the error of its mean.

    Attributes:
        value: the estimate; NaN where the log says nothing.
        error: its standard error.
        freedom: degrees of freedom of that error: clusters less 1.
    """

    value: float
    error: float
    freedom: int

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Low and high, by Student's t."""
        half = float(stats.t.ppf((1 + level) / 2, self.freedom)) * self.error
        return self.value - half, self.value + half


def clustered_mean(values: Floats, cluster: Integers) -> Clustered:
    """The mean of all values, with the linearised error of a mean of clusters of unequal size.

    Cochran, Sampling Techniques (1977), chapter 9A.

    `values`: float64[n]; `cluster`: int64[n], of each value; at least 2 distinct ones.
    """
    mean = float(values.mean())
    _, place = np.unique(cluster, return_inverse=True)
    off = np.bincount(place, weights=values - mean)
    clusters = len(off)
    variance = float(np.square(off).sum()) * clusters / (clusters - 1)
    return Clustered(mean, math.sqrt(variance) / len(values), clusters - 1)


def cross_fitted(log: Log, states: LoggedStates, reward: Floats, make: Make = RIDGE) -> Floats:
    """float64[episodes, L, A]: expected returns, each fitted without a fold that has its question.

    `reward`: float64[episodes, L], see `Log.reward`; `make`: a new regression; it is fitted once a
    hop, action and fold.
    """
    fold = question_folds(log.query)
    values = np.zeros((*log.action.shape, log.actions.count))
    for number in range(fold.max() + 1):
        held_out = fold == number
        values[held_out] = fit(log, states, reward, ~held_out, make)[held_out]
    return values


def question_folds(query: Integers) -> Integers:
    """int64[episodes]: a fold for each, the same for all episodes of a question.

    `query`: int64[episodes], at least 2 distinct ones.
    """
    fold = np.zeros(len(query), dtype=np.int64)
    splitter = GroupKFold(min(FOLDS, len(np.unique(query))))
    for number, (_, held_out) in enumerate(splitter.split(query, groups=query)):
        fold[held_out] = number
    return fold


def fit(
    log: Log, states: LoggedStates, reward: Floats, learn_from: Booleans, make: Make = RIDGE
) -> Floats:
    """float64[episodes, L, A]: expected returns, learned from some of the episodes.

    Fitted Q evaluation (Le, Voloshin and Yue, Batch Policy Learning under Constraints, ICML 2019),
    in its form for a finite horizon: the target of a call is what it earned plus the value of the
    state after it, which the hop after it has fitted already.

    `reward`: float64[episodes, L], see `Log.reward`; `learn_from`: bool[episodes].
    """
    values = np.zeros((*log.action.shape, log.actions.count))
    chances = states.chances
    ahead = np.zeros(len(log))
    for hop in reversed(range(log.length.max())):
        here = log.alive[:, hop]
        inputs, action = states.features[states.row[here, hop]], log.action[here, hop]
        target, learned = (reward[:, hop] + ahead)[here], learn_from[here]
        for number in range(log.actions.count):
            chosen = learned & (action == number)
            regression = make() if chosen.sum() > 1 else DummyRegressor()
            if not chosen.any():  # what was never taken is expected to earn the mean
                chosen = learned
            if chosen.any():
                regression.fit(inputs[chosen], target[chosen])
                values[here, hop, number] = regression.predict(inputs)
        ahead = np.einsum("ea,ea->e", chances[:, hop], values[:, hop])
    return values


@dataclass(frozen=True)
class Overlap:
    """How much of a log is about the policy to be valued.

    Attributes:
        effective: episodes, see `effective`.
        largest: the largest weight of an episode.
        mean: of the weights.
        misses: whether they clearly do not average 1: then the log lacks what the policy does, or
            the propensities are not those of the logging policy.
        share_never_taken: of the episodes of the policy to be valued, those in which it does what
            the log never shows at that node.
    """

    effective: float
    largest: float
    mean: float
    misses: bool
    share_never_taken: float

    @classmethod
    def of(cls, log: Log, states: LoggedStates) -> Overlap:
        """Of the episodes in `log`."""
        weights = Weights.of(log, states)
        whole, mean = weights.whole, clustered_mean(weights.whole, log.query)
        low, high = mean.interval(SURE)
        return cls(
            effective=effective(whole),
            largest=float(whole.max()),
            mean=mean.value,
            misses=not low <= 1 <= high,
            share_never_taken=_never_taken(log, states, weights.before),
        )


def effective(weight: Floats) -> float:
    """(sum w)^2 / sum w^2 of float64[n]: how many equal weights would have the same variance.

    Kish, Survey Sampling (1965).
    """
    return float(weight.sum() ** 2 / max(np.square(weight).sum(), np.finfo(float).tiny))


def _never_taken(log: Log, states: LoggedStates, before: Floats) -> float:
    """Share of the episodes in which the policy does what no episode does at that node."""
    chances, count, never = states.chances, log.actions.count, 0.0
    for hop in range(log.hops):
        here = log.alive[:, hop]
        nodes, place = np.unique(log.node[here, hop], return_inverse=True)
        taken = np.zeros((len(nodes), count), dtype=bool)
        taken[place, log.action[here, hop]] = True
        share = np.zeros((len(nodes), count))
        np.add.at(share, place, before[here, hop, None] * chances[here, hop])
        # Of all episodes: weights before this hop already lack what was never taken there.
        never += float(share[~taken].sum()) / len(log)
    return min(1.0, never)
