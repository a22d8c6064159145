"""A cascade goes on where an answer looks wrong, and pays for every call once."""

from __future__ import annotations

import numpy as np
import pytest

from hierrouter.learning.baselines.arms import Arms, value_of
from hierrouter.learning.baselines.cascades import Cascade
from tests.hierrouter.learning.baselines.answered import answered, folds

QUERIES = 240
COST = np.array([1.0, 10.0, 10.0])
ALPHA = 0.03


def half_right(calls: np.ndarray | None = None, cost: np.ndarray = COST) -> Arms:
    """The first arm is cheap, right on half of the queries, and its answers show when.

    The second is always right, the third never; no question and no other answer shows anything.
    """
    right = np.random.default_rng(1).random(QUERIES) < 0.5
    quality = np.stack([right, np.ones(QUERIES), np.zeros(QUERIES)], axis=1)
    looks = np.stack([right, 2 * np.ones(QUERIES), 2 * np.ones(QUERIES)], axis=1)
    return answered(quality.astype(np.float64), cost, looks=looks.astype(np.int64), calls=calls)


def test_it_goes_on_where_the_answer_looks_wrong() -> None:
    train, validation, test = folds(half_right())
    tuned = Cascade().fit(train, validation, ALPHA, np.random.default_rng(0))
    assert tuned.settings["arms"] == ["arm-0", "arm-1"]
    wrong = 1 - test.quality[:, 0].mean()
    assert value_of(tuned.play, test, ALPHA) == pytest.approx(1 - ALPHA * (1 + 10 * wrong))


def test_it_asks_one_arm_where_more_do_not_pay() -> None:
    train, validation, _ = folds(half_right())
    tuned = Cascade().fit(train, validation, 0.2, np.random.default_rng(0))
    assert tuned.settings == {"arms": ["arm-0"], "thresholds": []}
    free = Cascade().fit(train, validation, 0.0, np.random.default_rng(0))
    assert value_of(free.play, validation, 0.0) == 1


def test_a_shared_call_is_paid_once() -> None:
    """The second arm makes the first one's call and another one."""
    calls = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]], dtype=bool)
    train, validation, test = folds(half_right(calls))
    tuned = Cascade().fit(train, validation, ALPHA, np.random.default_rng(0))
    play = tuned.play(test.seen)
    on = test.quality[:, 0] == 0
    assert play.called[:, 0].tolist() == [1] * len(test)
    assert np.array_equal(play.called[:, 1], on)
    assert play.outcome(test, "").cost == pytest.approx(1 + 10 * on)


def test_of_equal_arms_the_cheapest_is_asked() -> None:
    arms = answered(np.ones((60, 3)), np.array([3.0, 1.0, 2.0]))
    train, validation, _ = folds(arms)
    tuned = Cascade().fit(train, validation, 0.0, np.random.default_rng(0))
    assert tuned.settings == {"arms": ["arm-1"], "thresholds": []}
