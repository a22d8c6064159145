"""Cascade routing begins where the question says, and goes on where the answer says."""

from __future__ import annotations

import numpy as np
import pytest

from hierrouter.learning.baselines.arms import Arms, value_of
from hierrouter.learning.baselines.cascades import Cascade, CascadeRouting, reservation
from tests.hierrouter.learning.baselines.answered import answered, folds

QUERIES = 480
COST = np.array([1.0, 10.0, 10.0])
ALPHA = 0.03


def two_kinds() -> Arms:
    """Of one kind of question the cheap arm is always wrong, of the other half of the time.

    Its answers to the second kind show which; the second arm is always right, the third never.
    """
    rng = np.random.default_rng(1)
    kind = rng.integers(0, 2, QUERIES)
    right = (rng.random(QUERIES) < 0.5) & (kind == 1)
    quality = np.stack([right, np.ones(QUERIES), np.zeros(QUERIES)], axis=1).astype(np.float64)
    looks = np.stack([right, *[2 * np.ones(QUERIES)] * 2], axis=1).astype(np.int64)
    return answered(quality, COST, looks=looks, question=kind)


def fitted(alpha: float, arms: Arms) -> tuple[CascadeRouting, Arms]:
    train, validation, test = folds(arms)
    return CascadeRouting().fit(train, validation, alpha, np.random.default_rng(0)), test


def test_it_skips_the_cheap_arm_where_the_question_says_so() -> None:
    tuned, test = fitted(ALPHA, two_kinds())
    hopeless = test.seen.question[:, 0] > 0.5
    on = test.quality[:, 0] == 0
    best = 1 - ALPHA * (np.where(hopeless, 10, 1 + 10 * on)).mean()
    assert value_of(tuned.play, test, ALPHA) == pytest.approx(best, abs=0.01)
    assert tuned.play(test.seen).called[hopeless, 0].mean() < 0.1


def test_a_fixed_order_cannot_do_that() -> None:
    tuned, test = fitted(ALPHA, two_kinds())
    train, validation, _ = folds(two_kinds())
    cascade = Cascade().fit(train, validation, ALPHA, np.random.default_rng(0))
    assert value_of(tuned.play, test, ALPHA) > value_of(cascade.play, test, ALPHA) + 0.005


def test_one_arm_where_more_do_not_pay() -> None:
    tuned, test = fitted(0.2, two_kinds())
    assert (tuned.play(test.seen).called.sum(axis=1) == 1).all()


@pytest.mark.parametrize("trust", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("quality", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("price", [0.0, 0.05, 0.5, 3.0])
def test_at_the_reservation_value_asking_gains_its_price(
    trust: float, quality: float, price: float
) -> None:
    value = float(reservation(np.array(quality), np.array(price), trust))
    better, worse = quality + trust * (1 - quality), quality * (1 - trust)
    gain = quality * max(0, better - value) + (1 - quality) * max(0, worse - value)
    assert gain == pytest.approx(price)


def test_what_one_answer_says_counts_for_the_others() -> None:
    """Two arms are right together or not at all, a third one otherwise; all cost the same."""
    right = np.random.default_rng(2).random(QUERIES) < 0.6
    quality = np.stack([right, right, ~right], axis=1).astype(np.float64)
    arms = answered(quality, np.full(3, 1.0), looks=quality.astype(np.int64))
    tuned, test = fitted(0.05, arms)
    play = tuned.play(test.seen)
    assert (play.answer * test.quality).sum() == len(test)
    assert play.called.sum(axis=1).max() == 2
