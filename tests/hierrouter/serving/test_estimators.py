"""Estimators over a thousand logs, against what theory says of them."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

import hierrouter.serving
from hierrouter.serving.logs import states_in_tree
from hierrouter.serving.off_policy import (
    Clustered,
    Log,
    LoggedStates,
    Weights,
    clustered_mean,
    doubly_robust,
    evaluate,
    ips,
    ips_per_decision,
    snips,
    snips_per_decision,
)
from hierrouter.serving.off_policy_study import Setting
from tests.hierrouter.serving.worlds import (
    Estimator,
    bandit,
    coverage,
    expected_returns,
    off,
    on_logs,
    seen,
    spread,
    truth,
    world,
)

LOGS = 1_000
SURE = 4  # standard errors


def weighted(estimator: object) -> Estimator:
    return lambda log, states, weights, reward: estimator(log, weights, reward)  # type: ignore[operator]


def robust(setting: Setting, expected: np.ndarray) -> Estimator:
    """Doubly robust with these expected returns at all states, float64[queries, states, A]."""

    def estimator(
        log: Log, states: LoggedStates, weights: Weights, reward: np.ndarray
    ) -> Clustered:
        values = expected[log.query[:, None], log.node]
        return doubly_robust(log, states, weights, reward, values)

    return estimator


def mistold(estimator: Estimator) -> Estimator:
    """On a log whose propensities are not those that it was made with."""

    def wrong(log: Log, states: LoggedStates, weights: Weights, reward: np.ndarray) -> Clustered:
        told = replace(log, propensity=np.where(log.alive, log.propensity**0.5, 1.0))
        return estimator(told, states, Weights.of(told, states), reward)

    return wrong


@pytest.mark.parametrize("allow_stop", [False, True])
@pytest.mark.parametrize("estimator", [ips, ips_per_decision])
def test_importance_sampling_is_unbiased(estimator: object, allow_stop: bool) -> None:
    setting = world(allow_stop=allow_stop)
    bias, error = off(on_logs(setting, 20, LOGS, weighted(estimator)), truth(setting))
    assert abs(bias) <= SURE * error
    assert error < 0.03


def test_wrong_propensities_make_it_biased() -> None:
    setting = world()
    bias, error = off(on_logs(setting, 20, LOGS, mistold(weighted(ips))), truth(setting))
    assert abs(bias) > 2 * SURE * error


def test_self_normalising_is_biased_as_theory_says_and_less_with_every_episode() -> None:
    score = np.tile([0.0, 1.0], (1_000, 1))
    setting = bandit(score, logging=[0.8, 0.2], target=[0.2, 0.8])
    value = truth(setting)
    for episodes in (5, 50):
        found = on_logs(setting, episodes, LOGS, weighted(snips))
        bias, error = off(found, value)
        assert abs(bias - exact_bias(episodes)) <= SURE * error
        assert bias < -SURE * error
    first_order = -(0.8 * 0.25**2 * (0 - value) + 0.2 * 4**2 * (1 - value))
    assert 5_000 * exact_bias(5_000) == pytest.approx(first_order, rel=0.01)
    bias, error = off(on_logs(setting, 5, LOGS, weighted(ips)), value)
    assert abs(bias) <= SURE * error


def exact_bias(episodes: int) -> float:
    """Of the self-normalised estimate above: a sum over how many episodes call the right model."""
    right = np.arange(episodes + 1)
    estimate = 4 * right / (4 * right + 0.25 * (episodes - right))
    return float(binom.pmf(right, episodes, 0.2) @ estimate) - 0.8


@pytest.mark.parametrize("estimator", [snips, snips_per_decision])
def test_self_normalising_is_consistent(estimator: object) -> None:
    setting = world()
    [found] = on_logs(setting, 200_000, 1, weighted(estimator))
    assert found.value == pytest.approx(truth(setting), abs=0.01)


def test_per_decision_differs_by_the_cost_of_earlier_calls_alone() -> None:
    setting = world(hops=3)
    log = setting.play(50, np.random.default_rng(0))
    _, weights = seen(setting, log)
    free, dear = log.reward(0.0), log.reward(0.5)
    for whole, by_call in ((ips, ips_per_decision), (snips, snips_per_decision)):
        assert whole(log, weights, free).value == pytest.approx(by_call(log, weights, free).value)
        assert whole(log, weights, dear).value != pytest.approx(
            by_call(log, weights, dear).value, rel=0.01
        )


@pytest.mark.parametrize("allow_stop", [False, True])
def test_doubly_robust_is_unbiased_with_garbage_for_a_model(allow_stop: bool) -> None:
    setting = world(allow_stop=allow_stop)
    garbage = np.random.default_rng(9).normal(size=setting.target.shape)
    bias, error = off(on_logs(setting, 20, LOGS, robust(setting, garbage)), truth(setting))
    assert abs(bias) <= SURE * error


@pytest.mark.parametrize("allow_stop", [False, True])
def test_doubly_robust_is_unbiased_with_wrong_propensities(allow_stop: bool) -> None:
    setting = world(allow_stop=allow_stop)
    right = robust(setting, expected_returns(setting))
    bias, error = off(on_logs(setting, 20, LOGS, mistold(right)), truth(setting))
    assert abs(bias) <= SURE * error


def test_doubly_robust_is_biased_where_both_are_wrong() -> None:
    setting = world()
    garbage = 1 + np.random.default_rng(9).normal(size=setting.target.shape)
    wrong = mistold(robust(setting, garbage))
    bias, error = off(on_logs(setting, 20, LOGS, wrong), truth(setting))
    assert abs(bias) > 2 * SURE * error


def test_a_good_model_makes_doubly_robust_the_steadiest() -> None:
    setting = world(queries=40)
    near = expected_returns(setting) + np.random.default_rng(3).normal(0, 0.1, setting.target.shape)
    plain, corrected = (
        spread(on_logs(setting, 40, LOGS, estimator))
        for estimator in (weighted(ips), robust(setting, near))
    )
    assert corrected < 0.7 * plain


def test_what_the_log_never_does_is_missing_by_its_share_of_the_value() -> None:
    setting = world()
    logging = setting.logging.copy()
    logging[:, 0] = [1.0, 0.0]  # never model 1 first
    lame = replace(setting, logging=logging)
    missing = (setting.target[:, 0, 1] * expected_returns(setting)[:, 0, 1]).mean()
    bias, error = off(on_logs(lame, 20, LOGS, weighted(ips)), truth(setting))
    assert abs(bias + missing) <= SURE * error
    assert abs(bias) > SURE * error


@pytest.mark.parametrize("name", ["ips", "snips", "robust"])
def test_intervals_hold_the_truth_as_often_as_they_say(name: str) -> None:
    setting = world(queries=2_000)
    near = expected_returns(setting) + np.random.default_rng(3).normal(0, 0.2, setting.target.shape)
    chosen = {"ips": weighted(ips), "snips": weighted(snips), "robust": robust(setting, near)}
    found = coverage(on_logs(setting, 200, LOGS, chosen[name]), truth(setting))
    assert 0.93 <= found <= 0.98


def test_a_question_asked_often_counts_as_one() -> None:
    setting = world(queries=2_000)
    same = replace(setting, logging=setting.target)
    clustered, alone = [], []
    for source in np.random.SeedSequence(0).spawn(300):
        rng = np.random.default_rng(source)
        position = np.repeat(rng.integers(len(setting.tree), size=40), 10)
        log = same.play_on(position, rng)
        _, weights = seen(setting, log)
        reward = log.reward(setting.alpha)
        clustered.append(ips(log, weights, reward))
        unaware = replace(log, query=np.arange(len(position)))
        alone.append(ips(unaware, weights, reward))
    assert coverage(clustered, truth(setting)) >= 0.91
    assert coverage(alone, truth(setting)) < 0.8


def test_the_error_is_that_of_the_mean_where_no_question_comes_twice() -> None:
    values = np.random.default_rng(0).normal(size=50)
    found = clustered_mean(values, np.arange(50))
    assert found.error == pytest.approx(values.std(ddof=1) / np.sqrt(50))
    twice = clustered_mean(np.repeat(values, 2), np.repeat(np.arange(50), 2))
    assert (twice.value, twice.error) == pytest.approx((found.value, found.error))


def test_a_log_of_nothing_that_the_policy_does_says_nothing() -> None:
    setting = bandit(np.eye(2), logging=[1.0, 0.0], target=[0.0, 1.0])
    log = setting.play(10, np.random.default_rng(0))
    _, weights = seen(setting, log)
    reward = log.reward(0.0)
    assert ips(log, weights, reward).value == 0
    assert np.isnan(snips(log, weights, reward).value)


def test_every_estimator_is_right_on_the_policy_that_logged() -> None:
    setting = world(queries=30, allow_stop=True)
    same = replace(setting, target=setting.logging)
    log = same.play(300, np.random.default_rng(0))
    states = states_in_tree(log, same.tree, same.target)
    mean = log.reward(same.alpha).sum(axis=1).mean()
    for found in evaluate(log, states, same.alpha).estimates:
        weighs = found.estimator not in ("FQE", "DR")
        assert found.value == pytest.approx(mean, abs=1e-9 if weighs else 0.1)
        assert found.low < mean < found.high


def imported(name: str) -> set[str]:
    source = Path(hierrouter.serving.__file__).parent / f"{name}.py"
    nodes = ast.walk(ast.parse(source.read_text()))
    taken = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {node.module or "" for node in taken} | {a.name for node in taken for a in node.names}


def reaches_a_tree(name: str) -> bool:
    rooms = {module.rpartition(".")[0] for module in imported(name)}
    return "RouteTree" in imported(name) or bool(
        rooms & {"hierrouter.replay", "hierrouter.serving"}
    )


def test_no_estimator_can_get_hold_of_a_tree() -> None:
    assert not reaches_a_tree("off_policy")
    assert reaches_a_tree("off_policy_study")  # the guard can fail
