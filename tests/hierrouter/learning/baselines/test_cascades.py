"""Routers that read answers: cascades, and cascade routing."""

import numpy as np
import pytest

from hierrouter.learning.baselines import cascades
from hierrouter.learning.baselines.answers import require_answers
from hierrouter.learning.baselines.arms import (
    Arms,
    Baseline,
    FitResult,
    Play,
    RouterInputs,
    mean_reward,
)
from hierrouter.learning.baselines.cascades import CASCADES
from tests.hierrouter.learning.baselines import known
from tests.hierrouter.learning.baselines.known import answered

ALPHA = 0.03
CASCADE, BY_CONFIDENCE, BY_AGREEMENT = CASCADES
COST = np.array([1.0, 10.0, 10.0])


def tuned_on(baseline: Baseline, arms: Arms, alpha: float) -> tuple[FitResult, Arms]:
    """The baseline, and the fold to look at."""
    train, validation, test = known.folds(arms)
    return known.fitted(baseline, train, validation, alpha), test


def half_right(calls: np.ndarray | None = None) -> Arms:
    """The first arm is cheap, right on half of the queries, and its answers show when.

    The second is always right, the third never; no question and no other answer shows anything.
    """
    right = np.random.default_rng(1).random(240) < 0.5
    quality = np.stack([right, np.ones(240), np.zeros(240)], axis=1)
    looks = np.stack([right, 2 * np.ones(240), 2 * np.ones(240)], axis=1)
    return answered(quality, COST, looks=looks, calls=calls)


def two_kinds() -> Arms:
    """Of one kind of question the cheap arm is always wrong, of the other half of the time.

    Its answers to the second kind show which; the second arm is always right, the third never.
    """
    rng = np.random.default_rng(1)
    kind = rng.integers(0, 2, 480)
    right = (rng.random(480) < 0.5) & (kind == 1)
    quality = np.stack([right, np.ones(480), np.zeros(480)], axis=1)
    looks = np.stack([right, *[2 * np.ones(480)] * 2], axis=1)
    return answered(quality, COST, looks=looks, question=kind)


EQUAL = answered(np.ones((60, 3)), np.array([3.0, 1.0, 2.0]))


@pytest.mark.parametrize(
    ("baseline", "arms", "alpha", "asked"),
    [(CASCADE, half_right(), 0.2, "arm-0"), (CASCADE, EQUAL, 0.0, "arm-1")],
    ids=lambda value: getattr(value, "name", ""),
)
def test_one_is_asked_where_more_do_not_pay_and_of_equal_ones_the_cheapest(
    baseline: Baseline, arms: Arms, alpha: float, asked: str
) -> None:
    settings = tuned_on(baseline, arms, alpha)[0].settings
    assert (settings["arms"], settings.get("thresholds", [])) == ([asked], [])


def test_a_router_that_reads_for_nothing_is_found_out() -> None:
    right = np.random.default_rng(1).random((400, 5)) < 0.7
    says = np.where(right, -1, np.arange(400 * 5).reshape(400, 5))  # wrong answers all differ
    _, _, test = known.folds(answered(right, np.arange(1.0, 6.0), says=says))

    def thief(seen: RouterInputs) -> Play:
        said = require_answers(seen).group
        return Play.of(seen, (said[:, 0] != said[:, 1]).astype(np.int64))

    with pytest.raises(AssertionError):
        known.assert_reads_what_it_pays(thief, test.seen)


def test_a_cascade_goes_on_where_the_answer_looks_wrong() -> None:
    tuned, test = tuned_on(CASCADE, half_right(), ALPHA)
    assert tuned.settings["arms"] == ["arm-0", "arm-1"]
    wrong = 1 - test.quality[:, 0].mean()
    assert mean_reward(tuned.play, test, ALPHA) == pytest.approx(1 - ALPHA * (1 + 10 * wrong))
    free, test = tuned_on(CASCADE, half_right(), 0.0)
    assert mean_reward(free.play, test, 0.0) == 1


def test_a_call_that_two_arms_share_is_paid_once() -> None:
    """The second arm makes the first one's call and another one."""
    calls = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1]], dtype=bool)
    tuned, test = tuned_on(CASCADE, half_right(calls), ALPHA)
    play = tuned.play(test.seen)
    on = test.quality[:, 0] == 0
    assert play.called[:, 0].tolist() == [1] * len(test)
    assert np.array_equal(play.called[:, 1], on)
    assert play.outcome(test, "").cost == pytest.approx(1 + 10 * on)


def test_routing_skips_the_cheap_arm_where_the_question_says_so_and_a_cascade_cannot() -> None:
    tuned, test = tuned_on(cascades.CascadeRouting(), two_kinds(), ALPHA)
    hopeless = test.seen.question[:, 0] > 0.5
    best = 1 - ALPHA * np.where(hopeless, 10, 1 + 10 * (test.quality[:, 0] == 0)).mean()
    value = mean_reward(tuned.play, test, ALPHA)
    assert value == pytest.approx(best, abs=0.01)
    assert tuned.play(test.seen).called[hopeless, 0].mean() < 0.1
    cascade, _ = tuned_on(CASCADE, two_kinds(), ALPHA)
    assert value > mean_reward(cascade.play, test, ALPHA) + 0.005


@pytest.mark.parametrize("trust", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("quality", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("price", [0.0, 0.05, 0.5, 3.0])
def test_at_reservation_asking_gains_its_price(trust: float, quality: float, price: float) -> None:
    value = float(cascades.reservation(np.array(quality), np.array(price), trust))
    better, worse = quality + trust * (1 - quality), quality * (1 - trust)
    gain = quality * max(0, better - value) + (1 - quality) * max(0, worse - value)
    assert gain == pytest.approx(price)


def test_what_one_answer_says_counts_for_the_others() -> None:
    """Two arms are right together or not at all, a third one otherwise; all cost the same."""
    right = np.random.default_rng(2).random(480) < 0.6
    quality = np.stack([right, right, ~right], axis=1)
    tuned, test = tuned_on(
        cascades.CascadeRouting(), answered(quality, np.ones(3), looks=quality), 0.05
    )
    play = tuned.play(test.seen)
    assert (play.answer * test.quality).sum() == len(test)
    assert play.called.sum(axis=1).max() == 2


def test_a_cascade_by_confidence_ends_with_a_sure_answer() -> None:
    """As `half_right`, but only how sure an arm is shows when; of some answers nobody tells."""
    right = np.random.default_rng(1).random(240) < 0.5
    quality = np.stack([right, np.ones(240), np.zeros(240)], axis=1)
    sure = np.where(quality == 1, 0.4, 0.2) + np.random.default_rng(2).uniform(0, 0.1, (240, 3))
    sure[::10] = np.nan
    tuned, test = tuned_on(BY_CONFIDENCE, answered(quality, COST, sure=sure), ALPHA)
    assert tuned.settings["arms"] == ["arm-0", "arm-1"]
    known.assert_reads_what_it_pays(tuned.play, test.seen)
    told = ~np.isnan(test.seen.answers.sure[:, 0])
    right = test.quality[:, 0] == 1
    played = tuned.play(test.seen)
    assert np.array_equal(played.answer[told, 0] == 1, right[told])
    assert played.answer[~told, 1].all()  # as often right as wrong where nobody tells
    blind, _ = tuned_on(BY_CONFIDENCE, half_right(), ALPHA)
    assert blind.settings["arms"] == ["arm-1"]  # nobody tells, so it only pays to ask the best


def test_a_cascade_by_agreement_asks_until_two_say_the_same() -> None:
    right = np.random.default_rng(1).random((400, 3)) < 0.6
    right[:, 2] = True
    says = np.where(right, -1, np.arange(1200).reshape(400, 3))
    arms = answered(right, np.array([1.0, 1.0, 12.0]), says=says)
    tuned, test = tuned_on(BY_AGREEMENT, arms, ALPHA)
    assert tuned.settings["arms"] in (["arm-0", "arm-1", "arm-2"], ["arm-1", "arm-0", "arm-2"])
    known.assert_reads_what_it_pays(tuned.play, test.seen)
    agree = test.quality[:, 0] + test.quality[:, 1] == 2
    assert np.array_equal(tuned.play(test.seen).called[:, 2] == 0, agree)
