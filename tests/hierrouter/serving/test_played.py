"""Logs of the study of the estimators are drawn as their propensities say, and say what is so."""

import numpy as np
import pytest
from scipy.stats import chisquare

from benchmarks.off_policy import logging_table
from hierrouter.evaluation.outcome import Actions, greedy
from hierrouter_cache.tree import Routes
from tests.hierrouter.serving.worlds import ALPHA, world


def test_a_logging_policy_chooses_among_what_is_legal() -> None:
    actions = Actions(Routes(3, 2), allow_stop=True)
    weight = np.random.default_rng(0).gamma(1.0, size=(10, 4, actions.count)) * actions.legal()
    router = weight / weight.sum(axis=2, keepdims=True)
    likeliest = greedy(router, np.array([0.01, 0.02, 0.03]))
    named = {
        name: logging_table(name, actions, router, likeliest)
        for name in ("uniform", "epsilon=0", "epsilon=1", "temperature=1", "temperature=0.01")
    }
    for table in named.values():
        np.testing.assert_allclose(table.sum(axis=2), 1)
        assert not table[:, ~actions.legal()].any()
    np.testing.assert_allclose(named["uniform"][:, 0], 1 / 6)
    np.testing.assert_allclose(named["uniform"][:, 1:, :3], 1 / 3)
    np.testing.assert_array_equal(named["epsilon=0"], likeliest)
    np.testing.assert_allclose(named["epsilon=1"], named["uniform"])
    np.testing.assert_allclose(named["temperature=1"], router)


def test_calls_are_drawn_with_their_propensities() -> None:
    setting = world(queries=2, models=3, hops=1)
    log = setting.play_on(np.repeat([0, 1], 3_000), np.random.default_rng(0))
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
        assert log.reward(ALPHA)[row].sum() == pytest.approx(tree.node_reward(ALPHA)[position, end])
    assert (log.propensity[~log.alive] == 1).all()
    assert not log.cost[~log.alive].any()
