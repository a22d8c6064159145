"""The answer that looks best is given, and all are paid for."""

from __future__ import annotations

import numpy as np
import pytest

from hierrouter.learning.baselines.arms import Arms, value_of
from hierrouter.learning.baselines.cascades import BestOf
from tests.hierrouter.learning.baselines.answered import answered, folds

QUERIES = 240
COST = np.array([1.0, 2.0, 1.0])


def complementary() -> Arms:
    """One of the first two arms is right, and answers show which; the third is never right."""
    right = np.random.default_rng(1).random(QUERIES) < 0.6
    quality = np.stack([right, ~right, np.zeros(QUERIES)], axis=1).astype(np.float64)
    return answered(quality, COST, looks=quality.astype(np.int64))


def fitted(alpha: float, seed: int = 0) -> BestOf:
    train, validation, _ = folds(complementary())
    return BestOf().fit(train, validation, alpha, np.random.default_rng(seed))


def test_the_right_answer_is_picked() -> None:
    _, _, test = folds(complementary())
    tuned = fitted(0.05)
    assert tuned.settings == {"arms": ["arm-0", "arm-1"]}
    assert value_of(tuned.play, test, 0.05) == pytest.approx(1 - 0.05 * 3)
    assert np.array_equal(tuned.play(test.seen).called, np.tile([1, 1, 0], (len(test), 1)))


def test_one_where_more_do_not_pay() -> None:
    assert fitted(0.5).settings == {"arms": ["arm-0"]}


def test_of_equal_arms_the_cheapest_is_asked() -> None:
    train, validation, _ = folds(answered(np.ones((60, 3)), np.array([3.0, 1.0, 2.0])))
    tuned = BestOf().fit(train, validation, 0.0, np.random.default_rng(0))
    assert tuned.settings == {"arms": ["arm-1"]}
