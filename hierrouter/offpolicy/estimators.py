"""What a policy would earn, from another one's log.

In: a `Log`, what was seen at its states, alpha. Out: `Estimate`s: importance sampling, plain and
self-normalised, fitted Q evaluation, and doubly robust. No estimator sees a tree. Intervals are
clustered by question: a question that was asked twice counts as one. Not covered: whether the log
can say anything at all, see `weights`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.offpolicy.clustered import LEVEL, Clustered, clustered_mean, jackknife
from hierrouter.offpolicy.fitted import FittedValues, Make, fitted_values, ridge
from hierrouter.offpolicy.log import Log
from hierrouter.offpolicy.states import LoggedStates
from hierrouter.offpolicy.weights import Weights


@dataclass(frozen=True)
class Estimate:
    """An estimate of the value of a policy: its mean R.

    Attributes:
        estimator: its name.
        value: NaN where no episode is one that the policy could have played.
        error: standard error.
        low, high: of a 95% interval.
    """

    estimator: str
    value: float
    error: float
    low: float
    high: float

    @classmethod
    def of(cls, estimator: str, found: Clustered) -> Estimate:
        """With its interval."""
        return cls(estimator, found.value, found.error, *found.interval(LEVEL))


def estimates(
    log: Log, states: LoggedStates, alpha: float, make: Make = ridge
) -> tuple[Estimate, ...]:
    """By every estimator.

    Args:
        log: of at least 2 questions.
        states: of the same episodes.
        alpha: of the reward R = Q - alpha * C.
        make: the regression of the fitted values.
    """
    reward, weights = log.reward(alpha), Weights.of(log, states)
    fitted = fitted_values(log, states, reward, make)
    found = {
        "IPS": ips(log, weights, reward),
        "IPS per decision": ips_per_decision(log, weights, reward),
        "SNIPS": snips(log, weights, reward),
        "SNIPS per decision": snips_per_decision(log, weights, reward),
        "FQE": fqe(states, fitted),
        "DR": doubly_robust(log, states, weights, reward, fitted.held_out),
    }
    return tuple(Estimate.of(name, estimate) for name, estimate in found.items())


def ips(log: Log, weights: Weights, reward: NDArray[np.float64]) -> Clustered:
    """Inverse propensity score: the mean of w * R over whole episodes.

    Horvitz and Thompson, JASA 47 (1952); for episodes Precup, Sutton and Singh, Eligibility Traces
    for Off-Policy Policy Evaluation (ICML 2000). Unbiased where the log takes everything that the
    policy takes, and the propensities are right.

    Args:
        reward: float64[episodes, L], see `Log.reward`.
    """
    return clustered_mean(weights.whole * reward.sum(axis=1), log.query)


def ips_per_decision(log: Log, weights: Weights, reward: NDArray[np.float64]) -> Clustered:
    """The same with each call's reward weighted by the calls up to it alone (Precup et al. 2000).

    It differs from `ips` by the cost of earlier calls; Q comes last, after all of them.

    Args:
        reward: float64[episodes, L], see `Log.reward`.
    """
    return clustered_mean((weights.so_far * reward).sum(axis=1), log.query)


def snips(log: Log, weights: Weights, reward: NDArray[np.float64]) -> Clustered:
    """Self-normalised: the sum of w * R over the sum of w.

    Swaminathan and Joachims, The Self-Normalized Estimator for Counterfactual Learning (NeurIPS
    2015). Biased by about -E[w^2 (R - V)] / n, and steadier than `ips`: no estimate is larger than
    the largest R.

    Args:
        reward: float64[episodes, L], see `Log.reward`.
    """
    return _self_normalised(weights.whole[:, None], reward.sum(axis=1, keepdims=True), log.query)


def snips_per_decision(log: Log, weights: Weights, reward: NDArray[np.float64]) -> Clustered:
    """Self-normalised hop by hop: the weighted per-decision estimator of Precup et al. (2000).

    Args:
        reward: float64[episodes, L], see `Log.reward`.
    """
    return _self_normalised(weights.so_far, reward, log.query)


def fqe(states: LoggedStates, fitted: FittedValues) -> Clustered:
    """Fitted Q evaluation, the direct method: the mean expected return at the first states.

    Its error is that of a jackknife over folds of questions, each fitted anew: it holds the draw of
    questions and of calls, and not that the regression is of the wrong kind.
    """
    first = states.chances[:, 0]
    value = np.einsum("ea,ea->e", first, fitted.all[:, 0])
    across = np.einsum("ea,fea->fe", first, fitted.across[:, :, 0])
    left = fitted.fold != np.arange(len(across))[:, None]
    return jackknife(float(value.mean()), (across * left).sum(axis=1) / left.sum(axis=1))


def doubly_robust(
    log: Log,
    states: LoggedStates,
    weights: Weights,
    reward: NDArray[np.float64],
    expected: NDArray[np.float64],
) -> Clustered:
    """The expected returns, corrected by what was off in the log, call by call.

    Jiang and Li, Doubly Robust Off-policy Value Evaluation for Reinforcement Learning (ICML 2016),
    equation 10, written as a sum. Unbiased where the propensities are right, whatever `expected`
    is, and where `expected` is right, whatever the propensities are.

    Args:
        reward: float64[episodes, L], see `Log.reward`.
        expected: float64[episodes, L, A], expected return of each action; it must not have been
            fitted on the episode's own question.
    """
    state_value = (states.chances * expected).sum(axis=2)
    call_value = np.take_along_axis(expected, log.action[:, :, None], axis=2)[:, :, 0]
    steps = weights.before * state_value + weights.so_far * (reward - call_value)
    return clustered_mean(np.where(log.alive, steps, 0.0).sum(axis=1), log.query)


def _self_normalised(
    weight: NDArray[np.float64], reward: NDArray[np.float64], query: NDArray[np.int64]
) -> Clustered:
    """The sum over columns of weighted means, with the error of its linearisation.

    Args:
        weight: float64[episodes, columns].
        reward: float64[episodes, columns].
    """
    scale = weight.mean(axis=0)
    if not scale.all():
        return Clustered(math.nan, math.nan, 1)
    means = (weight * reward).mean(axis=0) / scale
    influence = (weight * (reward - means) / scale).sum(axis=1)
    off = clustered_mean(influence, query)
    return Clustered(float(means.sum()), off.error, off.freedom)
