"""What most arms say is given, and all are paid for."""

from __future__ import annotations

import numpy as np
import pytest

from hierrouter.learning.baselines.arms import Arms, Play, Seen, value_of
from hierrouter.learning.baselines.cascades import MajorityVote, vote
from tests.hierrouter.learning.baselines.answered import answered, assert_reads_what_it_pays, folds

QUERIES = 400
RNG = np.random.default_rng(0)


def crowd() -> Arms:
    """Five arms that are right on 7 queries of 10, each by itself; wrong answers all differ."""
    right = np.random.default_rng(1).random((QUERIES, 5)) < 0.7
    says = np.where(right, -1, np.arange(QUERIES * 5).reshape(QUERIES, 5))
    return answered(right.astype(np.float64), np.arange(1.0, 6.0), says=says)


def test_many_are_wiser_than_one() -> None:
    train, validation, test = folds(crowd())
    tuned = MajorityVote().fit(train, validation, 0.0, RNG)
    assert tuned.settings["arms"] == [f"arm-{number}" for number in range(5)]
    two_agree = (test.quality.sum(axis=1) >= 2).astype(float)
    one = test.quality.sum(axis=1) == 1
    two_agree[one] = test.quality[one, 0]
    assert value_of(tuned.play, test, 0.0) == pytest.approx(two_agree.mean())


def test_all_are_paid() -> None:
    _, _, test = folds(crowd())
    assert np.array_equal(vote((0, 2, 3), test.seen).called, np.tile([1, 0, 1, 1, 0], (100, 1)))


def test_one_where_more_do_not_pay() -> None:
    train, validation, _ = folds(crowd())
    assert MajorityVote().fit(train, validation, 0.2, RNG).settings == {"arms": ["arm-0"]}


@pytest.mark.parametrize(
    ("says", "chosen"),
    [([7, 8, 8], 1), ([8, 7, 8], 0), ([7, 8, 9], 0), ([8, 8, 8], 0)],
)
def test_equal_answers_are_counted_and_a_tie_goes_to_the_first(
    says: list[int], chosen: int
) -> None:
    arms = answered(np.zeros((1, 3)), np.ones(3), says=np.array([says]))
    assert vote((0, 1, 2), arms.seen).answer.argmax() == chosen


def test_a_shared_call_is_paid_once() -> None:
    calls = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=bool)
    arms = answered(np.ones((4, 3)), np.array([5.0, 1.0, 2.0]), calls=calls)
    assert vote((0, 1, 2), arms.seen).outcome(arms, "").cost.tolist() == [8.0] * 4


def test_a_router_that_reads_for_nothing_is_found_out() -> None:
    _, _, test = folds(crowd())

    def thief(seen: Seen) -> Play:
        best = vote((0, 1, 2), seen).answer.argmax(axis=1)
        return Play.of(seen, best)

    with pytest.raises(AssertionError):
        assert_reads_what_it_pays(thief, test.seen)
