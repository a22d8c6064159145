"""Logs are drawn as their propensities say, and hold what the tree holds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from hierrouter.evaluation.outcome import Actions, greedy
from hierrouter.serving.off_policy import Score, scores
from hierrouter.serving.off_policy_study import LoggingPolicy, repeated
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Routes
from tests.hierrouter.serving.worlds import ALPHA, truth, world

RATE = np.array([0.01, 0.02, 0.03])


def router(allow_stop: bool = True) -> tuple[Actions, np.ndarray]:
    """The probabilities of some policy at the states of ten queries."""
    actions = Actions(Routes(3, 2), allow_stop)
    weight = np.random.default_rng(0).gamma(1.0, size=(10, 4, actions.count)) * actions.legal()
    return actions, weight / weight.sum(axis=2, keepdims=True)


@pytest.mark.parametrize("allow_stop", [False, True])
@pytest.mark.parametrize("name", ["uniform", "epsilon=0.3", "temperature=2", "temperature=0.01"])
def test_a_logging_policy_chooses_among_what_is_legal(name: str, allow_stop: bool) -> None:
    actions, table = router(allow_stop)
    found = LoggingPolicy.named(name).table(actions, table, RATE)
    np.testing.assert_allclose(found.sum(axis=2), 1)
    assert not found[:, ~actions.legal()].any()
    assert str(LoggingPolicy.named(name)) == name


def test_the_ends_of_the_range() -> None:
    actions, table = router()
    named = {
        name: LoggingPolicy.named(name).table(actions, table, RATE)
        for name in ("uniform", "epsilon=0", "epsilon=1", "temperature=1", "temperature=1000000")
    }
    uniform = named["uniform"]
    np.testing.assert_allclose(uniform[:, 0], 1 / 6)
    np.testing.assert_allclose(uniform[:, 1:, :3], 1 / 3)
    np.testing.assert_array_equal(named["epsilon=0"], greedy(table, RATE))
    np.testing.assert_allclose(named["epsilon=1"], uniform)
    np.testing.assert_allclose(named["temperature=1"], table)
    np.testing.assert_allclose(named["temperature=1000000"][:, 0], uniform[:, 0], atol=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "greedy",
        "epsilon",
        "epsilon=",
        "epsilon=1.5",
        "epsilon=nan",
        "temperature=0",
        "uniform=1",
    ],
)
def test_no_logging_policy(text: str) -> None:
    with pytest.raises(InputError, match=r"unknown logging policy|no number from "):
        LoggingPolicy.named(text)


def test_calls_are_drawn_with_their_propensities() -> None:
    setting = world(queries=2, models=3, hops=1)
    rng = np.random.default_rng(0)
    log = setting.play_on(np.repeat([0, 1], 3_000), rng)
    for query in (0, 1):
        drawn = np.bincount(log.action[log.query == query, 0], minlength=3)
        assert chisquare(drawn, 3_000 * setting.logging[query, 0]).pvalue > 0.001


def test_a_log_says_what_the_tree_says() -> None:
    setting = world(hops=3, allow_stop=True)
    log = setting.play(300, np.random.default_rng(0))
    tree = setting.tree
    assert len(set(log.length)) == 3
    for row, position in enumerate(log.query):
        last = log.length[row] - 1
        place = position, log.node[row, last], log.action[row, last]
        end = tree.routes.child(place[1], setting.actions.model(place[2]))
        assert log.propensity[row, last] == setting.logging[place]
        assert log.quality[row] == tree.score[position, end]
        assert log.cost[row].sum() == pytest.approx(tree.cost[position, end])
        total = log.reward(ALPHA)[row].sum()
        assert total == pytest.approx(tree.node_reward(ALPHA)[position, end])
    after = ~log.alive
    assert (log.propensity[after] == 1).all()
    assert not log.cost[after].any()


def test_the_same_seed_gives_the_same_logs_and_every_log_is_fresh() -> None:
    setting, told = world(queries=30), []
    first, found = repeated(setting, 40, 3, 7, lambda done, total: told.append((done, total)))
    again, same = repeated(setting, 40, 3, 7)
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert [item.estimates for item in found] == [item.estimates for item in same]
    np.testing.assert_array_equal(first.query, again.query)
    assert len({item.estimates[0].value for item in found}) == 3
    assert repeated(setting, 40, 1, 8)[1][0] != found[0]


def test_scores_by_hand() -> None:
    setting = world(queries=30)
    _, found = repeated(setting, 40, 5, 0)
    value = truth(setting)
    [score, *_] = scores(found, value)
    values = [item.estimates[0].value for item in found]
    held = [item.estimates[0].low <= value <= item.estimates[0].high for item in found]
    deviation = np.std(values, ddof=1)
    rmse = np.sqrt(np.mean((np.array(values) - value) ** 2))
    expected = Score(
        "IPS", 5, np.mean(values) - value, deviation / 5**0.5, deviation, rmse, np.mean(held)
    )
    for name, number in vars(expected).items():
        assert getattr(score, name) == (number if name == "estimator" else pytest.approx(number))
