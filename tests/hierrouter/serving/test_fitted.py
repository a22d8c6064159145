"""Fitted Q evaluation: right where its features say enough, wrong by a known amount elsewhere."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from benchmarks.off_policy import Setting
from hierrouter.evaluation.outcome import Actions
from hierrouter.serving import estimators as est
from hierrouter_cache.tree import Routes
from tests.hierrouter.serving import worlds

KINDS = 3  # of questions; those of a kind look alike and are treated alike


def by_kind(*, allow_stop: bool = False) -> Setting:
    """Questions of three kinds; a state shows its kind and nothing else, one column each."""
    setting = worlds.world(queries=60, allow_stop=allow_stop)
    kind = np.arange(60) % KINDS
    shown = np.repeat(np.eye(KINDS)[kind][:, None], setting.tree.routes.states, axis=1)
    setting = worlds.shown_as(setting, shown)
    return replace(setting, logging=setting.logging[kind], target=setting.target[kind])


def tabular(seen: worlds.Seen, columns: slice = slice(None)) -> est.LoggedStates:
    """The states with a column for each node and kind, and one of zeros, or some of these."""
    log, states = seen.log, seen.states
    node = np.zeros(len(states.features), dtype=np.int64)
    node[states.row[log.alive]] = log.node[log.alive]
    kind = states.features[:, :KINDS].argmax(axis=1)
    one_hot = np.eye(log.actions.routes.states * KINDS + 1)[node * KINDS + kind]
    return replace(states, features=one_hot[:, columns].astype(np.float32))


def fitted(log: est.Log, states: est.LoggedStates, reward: np.ndarray) -> np.ndarray:
    """By ordinary least squares, on all episodes."""
    return est.fit(log, states, reward, np.ones(len(log), dtype=bool), LinearRegression)


def direct(columns: slice) -> worlds.Estimator:
    """The value by regressions on some of the tabular features."""

    def estimator(seen: worlds.Seen) -> est.Clustered:
        values = fitted(seen.log, tabular(seen, columns), seen.reward)
        first = np.einsum("ea,ea->e", seen.states.chances[:, 0], values[:, 0])
        return est.Clustered(float(first.mean()), 0.0, 1)

    return estimator


@pytest.mark.parametrize("allow_stop", [False, True])
def test_with_a_column_for_each_cell_it_is_unbiased(allow_stop: bool) -> None:
    found = worlds.on_logs(by_kind(allow_stop=allow_stop), 300, 150, direct(slice(None)))
    assert abs(found.bias) <= 4 * found.error
    assert found.error < 0.01


def test_blind_to_the_state_it_is_off_by_what_the_logger_knew() -> None:
    setting = worlds.bandit(np.eye(2), logging=[0.5, 0.5], target=[0.5, 0.5])
    knowing = np.array([[[0.9, 0.1]], [[0.2, 0.8]]])  # the logger calls who is right
    setting = worlds.shown_as(replace(setting, logging=knowing), np.zeros((2, 1, KINDS)))
    expected = 0.5 * 0.9 / (0.9 + 0.2) + 0.5 * 0.8 / (0.8 + 0.1)
    found = worlds.on_logs(setting, 300, 150, direct(slice(-1, None)))
    assert abs(found.values.mean() - expected) <= 4 * found.error
    assert found.truth == 0.5
    assert found.bias > 20 * found.error


def test_where_every_state_is_its_own_it_is_exact() -> None:
    setting = worlds.world(queries=4)
    states = setting.tree.routes.states
    setting = worlds.shown_as(setting, np.eye(4 * states).reshape(4, states, -1))
    log, states, _, reward = vars(worlds.played(setting, 4_000)).values()
    found = fitted(log, states, reward)
    wanted = worlds.expected_returns(setting)[log.query[:, None], log.node]
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_its_interval_holds_the_truth_where_its_features_say_enough() -> None:
    def estimator(seen: worlds.Seen) -> est.Clustered:
        shown = tabular(seen)
        return est.fqe(shown, est.fitted_values(seen.log, shown, seen.reward, LinearRegression))

    assert worlds.on_logs(by_kind(), 200, 60, estimator).coverage >= 0.9


def test_no_question_is_judged_by_what_was_fitted_on_it() -> None:
    query = np.random.default_rng(0).integers(25, size=300)
    fold = est.question_folds(query)
    assert set(fold) == set(range(est.FOLDS))
    assert all(len(set(fold[query == number])) == 1 for number in range(25))
    fold = est.question_folds(np.array([7, 7, 3]))
    assert fold[0] == fold[1] != fold[2]
    setting = worlds.world(queries=12, seed=5)
    log, states, _, reward = vars(worlds.played(setting, 100, seed=1)).values()
    before = est.fitted_values(log, states, reward, LinearRegression)
    of_one = log.query == log.query[0]
    lied = replace(log, quality=np.where(of_one, 1 - log.quality, log.quality))
    after = est.fitted_values(lied, states, lied.reward(worlds.ALPHA), LinearRegression)
    np.testing.assert_array_equal(after.held_out[of_one], before.held_out[of_one])
    assert (after.held_out[~of_one] != before.held_out[~of_one]).any()
    assert (after.all[of_one] != before.all[of_one]).any()


def test_what_was_never_taken_is_expected_to_earn_the_mean() -> None:
    log = est.Log(
        actions=Actions(Routes(3, 1)),
        query=np.arange(4),
        action=np.array([[0], [0], [1], [1]]),
        propensity=np.full((4, 1), 0.5),
        length=np.ones(4, dtype=np.int64),
        quality=np.array([1.0, 0.5, 0.0, 0.5]),
        cost=np.zeros((4, 1)),
    )
    row, features = np.zeros((4, 1), dtype=np.int64), np.zeros((1, 1), dtype=np.float32)
    states = est.LoggedStates(row, features, np.full((1, 3), 1 / 3))
    found = fitted(log, states, log.reward(0.0))
    np.testing.assert_allclose(found[:, 0], np.tile([0.75, 0.25, 0.5], (4, 1)), atol=1e-6)
