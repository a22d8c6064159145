"""Estimators over a thousand logs, against what theory says of them."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from hierrouter.serving import estimators as est
from tests.hierrouter.serving.worlds import (
    Estimator,
    Found,
    Seen,
    bandit,
    expected_returns,
    on_logs,
    played,
    seen,
    world,
)

LOGS = 1_000
SURE = 4  # standard errors


def weighted(estimator: Any) -> Estimator:
    return lambda seen: estimator(seen.log, seen.weights, seen.reward)


def robust(expected: np.ndarray) -> Estimator:
    """Doubly robust with these expected returns at all states, float64[queries, states, A]."""
    return lambda seen: est.doubly_robust(
        *vars(seen).values(), expected[seen.log.query[:, None], seen.log.node]
    )


def mistold(estimator: Estimator) -> Estimator:
    """On a log whose propensities are not those that it was made with."""

    def wrong(seen: Seen) -> est.Clustered:
        told = np.where(seen.log.alive, seen.log.propensity**0.5, 1.0)
        log = replace(seen.log, propensity=told)
        return estimator(replace(seen, log=log, weights=est.Weights.of(log, seen.states)))

    return wrong


@pytest.mark.parametrize("allow_stop", [False, True])
def test_what_is_unbiased(allow_stop: bool) -> None:
    """Weights with the right propensities; doubly robust with any model, or any propensities."""
    setting = world(allow_stop=allow_stop)
    garbage = np.random.default_rng(9).normal(size=setting.target.shape)
    for estimator in (
        weighted(est.ips),
        weighted(est.ips_per_decision),
        robust(garbage),
        mistold(robust(expected_returns(setting))),
    ):
        found = on_logs(setting, 20, LOGS, estimator)
        assert abs(found.bias) <= SURE * found.error
        assert found.error < 0.1


def test_what_is_biased() -> None:
    """Weights with wrong propensities; doubly robust where both are wrong."""
    setting = world()
    garbage = 1 + np.random.default_rng(9).normal(size=setting.target.shape)
    for estimator in (mistold(weighted(est.ips)), mistold(robust(garbage))):
        found = on_logs(setting, 20, LOGS, estimator)
        assert abs(found.bias) > 2 * SURE * found.error


def test_self_normalising_is_biased_as_theory_says_and_less_with_every_episode() -> None:
    score = np.tile([0.0, 1.0], (1_000, 1))
    setting = bandit(score, logging=[0.8, 0.2], target=[0.2, 0.8])
    for episodes in (5, 50):
        found = on_logs(setting, episodes, LOGS, weighted(est.snips))
        assert abs(found.bias - exact_bias(episodes)) <= SURE * found.error
        assert found.bias < -SURE * found.error
    value = setting.truth
    first_order = -(0.8 * 0.25**2 * (0 - value) + 0.2 * 4**2 * (1 - value))
    assert 5_000 * exact_bias(5_000) == pytest.approx(first_order, rel=0.01)


def exact_bias(episodes: int) -> float:
    """Of the self-normalised estimate above: a sum over how many episodes call the right model."""
    right = np.arange(episodes + 1)
    estimate = 4 * right / (4 * right + 0.25 * (episodes - right))
    return float(binom.pmf(right, episodes, 0.2) @ estimate) - 0.8


@pytest.mark.parametrize("estimator", [est.snips, est.snips_per_decision])
def test_self_normalising_is_consistent(estimator: Any) -> None:
    setting = world()
    [value] = on_logs(setting, 200_000, 1, weighted(estimator)).values
    assert value == pytest.approx(setting.truth, abs=0.01)


def test_per_decision_differs_by_the_cost_of_earlier_calls_alone() -> None:
    setting = world(hops=3)
    log, _, weights, _ = vars(played(setting, 50)).values()
    for whole, by_call in ((est.ips, est.ips_per_decision), (est.snips, est.snips_per_decision)):
        free, dear = (
            [found(log, weights, log.reward(alpha)).value for found in (whole, by_call)]
            for alpha in (0.0, 0.5)
        )
        assert free[0] == pytest.approx(free[1])
        assert dear[0] != pytest.approx(dear[1], rel=0.01)


@pytest.mark.parametrize("name", ["ips", "snips", "robust"])
def test_intervals_hold_the_truth_as_often_as_they_say(name: str) -> None:
    setting = world(queries=2_000)
    noise = np.random.default_rng(3).normal(0, 0.2, setting.target.shape)
    near = robust(expected_returns(setting) + noise)
    estimator = near if name == "robust" else weighted(getattr(est, name))
    assert 0.93 <= on_logs(setting, 200, LOGS, estimator).coverage <= 0.98


def test_a_question_asked_often_counts_as_one() -> None:
    setting = world(queries=2_000)
    same = replace(setting, logging=setting.target)
    clustered, alone = [], []
    for source in np.random.SeedSequence(0).spawn(300):
        rng = np.random.default_rng(source)
        position = np.repeat(rng.integers(len(setting.tree), size=40), 10)
        each = seen(setting, same.play_on(position, rng))
        clustered.append(weighted(est.ips)(each))
        unaware = replace(each.log, query=np.arange(len(position)))
        alone.append(weighted(est.ips)(replace(each, log=unaware)))
    assert Found(clustered, setting.truth).coverage >= 0.91
    assert Found(alone, setting.truth).coverage < 0.8


def test_the_error_is_that_of_the_mean_where_no_question_comes_twice() -> None:
    values = np.random.default_rng(0).normal(size=50)
    found = est.clustered_mean(values, np.arange(50))
    assert found.error == pytest.approx(values.std(ddof=1) / np.sqrt(50))
    twice = est.clustered_mean(np.repeat(values, 2), np.repeat(np.arange(50), 2))
    assert (twice.value, twice.error) == pytest.approx((found.value, found.error))


def test_every_estimator_is_right_on_the_policy_that_logged() -> None:
    setting = world(queries=30, allow_stop=True)
    same = replace(setting, target=setting.logging)
    log = same.play(300, np.random.default_rng(0))
    mean = log.reward(same.alpha).sum(axis=1).mean()
    for found in same.evaluate(log).estimates:
        weighs = found.estimator not in ("FQE", "DR")
        assert found.value == pytest.approx(mean, abs=1e-9 if weighs else 0.1)
        assert found.low < mean < found.high


def reaches_a_tree(name: str) -> bool:
    nodes = ast.walk(ast.parse((Path(est.__file__).parent / f"{name}.py").read_text()))
    taken = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    rooms = {(node.module or "").rpartition(".")[0] for node in taken}
    named = {alias.name for node in taken for alias in node.names}
    return "RouteTree" in named or bool(rooms & {"hierrouter.replay", "hierrouter.serving"})


def test_no_estimator_can_get_hold_of_a_tree() -> None:
    assert not reaches_a_tree("estimators")
    assert reaches_a_tree("off_policy")  # the guard can fail
