"""Fitted Q evaluation: right where its features say enough, wrong by a known amount elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from hierrouter.evaluation.outcome import Actions
from hierrouter.serving.off_policy import (
    FOLDS,
    Clustered,
    Log,
    LoggedStates,
    Weights,
    fit,
    fitted_values,
    fqe,
    question_folds,
)
from hierrouter.serving.off_policy_study import Setting
from hierrouter_cache.tree import Routes
from tests.hierrouter.serving.worlds import (
    ALPHA,
    Estimator,
    bandit,
    coverage,
    expected_returns,
    narrowed,
    off,
    on_logs,
    seen,
    truth,
    world,
)

KINDS = 3  # of questions; those of a kind look alike and are treated alike


def by_kind(*, allow_stop: bool = False) -> Setting:
    """Questions of three kinds; a state shows its kind and nothing else, one column each."""
    setting = world(queries=60, allow_stop=allow_stop)
    kind = np.arange(60) % KINDS
    shown = np.repeat(np.eye(KINDS)[kind][:, None], setting.tree.routes.states, axis=1)
    return replace(
        setting,
        tree=narrowed(setting.tree, shown),
        logging=setting.logging[kind],
        target=setting.target[kind],
    )


def direct(features: slice) -> Estimator:
    """The value by regressions on some of the features: of ordinary least squares."""

    def estimator(
        log: Log, states: LoggedStates, weights: Weights, reward: np.ndarray
    ) -> Clustered:
        shown = replace(states, features=tabular(log, states)[:, features])
        everyone = np.ones(len(log), dtype=bool)
        values = fit(log, shown, reward, everyone, LinearRegression)
        first = np.einsum("ea,ea->e", states.chances[:, 0], values[:, 0])
        return Clustered(float(first.mean()), 0.0, 1)

    return estimator


def tabular(log: Log, states: LoggedStates) -> np.ndarray:
    """float32[states, nodes * kinds + 1]: a column for each node and kind, and one of zeros."""
    node = np.zeros(len(states.features), dtype=np.int64)
    node[states.row[log.alive]] = log.node[log.alive]
    kind = states.features[:, :KINDS].argmax(axis=1)
    columns = log.actions.routes.states * KINDS
    one_hot = np.eye(columns + 1)[node * KINDS + kind]
    return one_hot.astype(np.float32)


@pytest.mark.parametrize("allow_stop", [False, True])
def test_with_a_column_for_each_cell_it_is_unbiased(allow_stop: bool) -> None:
    setting = by_kind(allow_stop=allow_stop)
    bias, error = off(on_logs(setting, 300, 150, direct(slice(None))), truth(setting))
    assert abs(bias) <= 4 * error
    assert error < 0.01


def test_blind_to_the_state_it_is_off_by_what_the_logger_knew() -> None:
    score = np.array([[1.0, 0.0], [0.0, 1.0]])
    setting = bandit(score, logging=[0.5, 0.5], target=[0.5, 0.5])
    knowing = np.array([[[0.9, 0.1]], [[0.2, 0.8]]])  # the logger calls who is right
    setting = replace(setting, logging=knowing)
    setting = replace(setting, tree=narrowed(setting.tree, np.zeros((2, 1, KINDS))))
    expected = 0.5 * 0.9 / (0.9 + 0.2) + 0.5 * 0.8 / (0.8 + 0.1)
    found = on_logs(setting, 300, 150, direct(slice(-1, None)))
    bias, error = off(found, expected)
    assert abs(bias) <= 4 * error
    assert truth(setting) == 0.5
    assert off(found, 0.5)[0] > 20 * error


def test_where_every_state_is_its_own_it_is_exact() -> None:
    setting = world(queries=4)
    states = setting.tree.routes.states
    own = np.eye(4 * states).reshape(4, states, -1)
    setting = replace(setting, tree=narrowed(setting.tree, own))
    log = setting.play(4_000, np.random.default_rng(0))
    seen_states, _ = seen(setting, log)
    everyone = np.ones(len(log), dtype=bool)
    reward = log.reward(ALPHA)
    found = fit(log, seen_states, reward, everyone, LinearRegression)
    wanted = expected_returns(setting)[log.query[:, None], log.node]
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_its_interval_holds_the_truth_where_its_features_say_enough() -> None:
    setting = by_kind()
    kinds = replace(setting, tree=narrowed(setting.tree, setting.tree.embedding))

    def estimator(
        log: Log, states: LoggedStates, weights: Weights, reward: np.ndarray
    ) -> Clustered:
        shown = replace(states, features=tabular(log, states))
        return fqe(shown, fitted_values(log, shown, reward, LinearRegression))

    assert coverage(on_logs(kinds, 200, 60, estimator), truth(kinds)) >= 0.9


def test_no_question_is_judged_by_what_was_fitted_on_it() -> None:
    query = np.random.default_rng(0).integers(25, size=300)
    fold = question_folds(query)
    assert set(fold) == set(range(FOLDS))
    assert all(len(set(fold[query == number])) == 1 for number in range(25))
    setting = world(queries=12, seed=5)
    log = setting.play(100, np.random.default_rng(1))
    states, _ = seen(setting, log)
    reward = log.reward(ALPHA)
    before = fitted_values(log, states, reward, LinearRegression)
    of_one = log.query == log.query[0]
    lied = replace(log, quality=np.where(of_one, 1 - log.quality, log.quality))
    after = fitted_values(lied, states, lied.reward(ALPHA), LinearRegression)
    np.testing.assert_array_equal(after.held_out[of_one], before.held_out[of_one])
    assert (after.held_out[~of_one] != before.held_out[~of_one]).any()
    assert (after.all[of_one] != before.all[of_one]).any()


def test_two_questions_make_two_folds() -> None:
    fold = question_folds(np.array([7, 7, 3]))
    assert fold[0] == fold[1] != fold[2]


def test_what_was_never_taken_is_expected_to_earn_the_mean() -> None:
    log = Log(
        actions=Actions(Routes(3, 1)),
        query=np.arange(4),
        action=np.array([[0], [0], [1], [1]]),
        propensity=np.full((4, 1), 0.5),
        length=np.ones(4, dtype=np.int64),
        quality=np.array([1.0, 0.5, 0.0, 0.5]),
        cost=np.zeros((4, 1)),
    )
    states = LoggedStates(
        row=np.zeros((4, 1), dtype=np.int64),
        features=np.zeros((1, 1), dtype=np.float32),
        target=np.full((1, 3), 1 / 3),
    )
    found = fit(log, states, log.reward(0.0), np.ones(4, dtype=bool), LinearRegression)
    np.testing.assert_allclose(found[:, 0], np.tile([0.75, 0.25, 0.5], (4, 1)), atol=1e-6)
