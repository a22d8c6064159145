"""The scorer learns from words, agreement, length and the question."""

from __future__ import annotations

import numpy as np
import pytest

from hierrouter.learning.baselines.answers import AnswerScorer, fit_scorer
from hierrouter.learning.baselines.arms import Arms
from tests.hierrouter.learning.baselines.answered import answered, folds

QUERIES = 400
COST = np.ones(3)


def scores(scorer: AnswerScorer, arms: Arms, arm: int, read: np.ndarray) -> np.ndarray:
    query = np.arange(len(arms))
    return scorer.judge(arms.seen).score(
        query, np.full(len(arms), arm), np.tile(read, (len(arms), 1))
    )


def fitted(arms: Arms) -> tuple[AnswerScorer, Arms]:
    train, _, test = folds(arms)
    return fit_scorer(train, np.random.default_rng(0)), test


def drawn(share: float = 0.5) -> np.ndarray:
    return np.random.default_rng(1).random((QUERIES, 3)) < share


def test_words_tell_right_from_wrong() -> None:
    right = drawn()
    scorer, test = fitted(answered(right.astype(np.float64), COST, looks=right.astype(np.int64)))
    for arm in range(3):
        assert (
            np.abs(scores(scorer, test, arm, np.zeros(3, bool)) - test.quality[:, arm]).max() < 0.1
        )


def test_who_agrees_is_right() -> None:
    """Right answers are equal, wrong ones all differ: the more agree, the better."""
    right = drawn(0.6)
    says = np.where(right, -1, np.arange(QUERIES * 3).reshape(QUERIES, 3))
    scorer, test = fitted(answered(right.astype(np.float64), COST, says=says))
    alone = scores(scorer, test, 0, np.array([True, False, False]))
    after = scores(scorer, test, 0, np.array([True, True, True]))
    agreed = (test.seen.answers.group[:, 1:] == test.seen.answers.group[:, :1]).any(axis=1)
    assert after[agreed].mean() > 0.9
    assert after[~agreed].mean() < alone.mean() - 0.1
    assert abs(alone.mean() - 0.6) < 0.1


def test_nothing_is_learned_where_nothing_can_be() -> None:
    scorer, test = fitted(answered(drawn(0.3).astype(np.float64), COST))
    assert abs(scores(scorer, test, 0, np.zeros(3, bool)).mean() - 0.3) < 0.1


def test_the_question_counts() -> None:
    kind = np.random.default_rng(2).integers(0, 2, QUERIES)
    quality = np.stack([kind, 1 - kind, np.zeros(QUERIES)], axis=1).astype(np.float64)
    scorer, test = fitted(answered(quality, COST, question=kind))
    for arm in range(3):
        found = scores(scorer, test, arm, np.zeros(3, bool))
        assert np.abs(found - test.quality[:, arm]).max() < 0.3


def test_a_constant_quality_is_expected() -> None:
    scorer, test = fitted(answered(np.full((80, 3), 0.25), COST))
    assert scores(scorer, test, 1, np.zeros(3, bool)) == pytest.approx(0.25)


def test_the_same_seed_gives_the_same_scores() -> None:
    arms = answered(drawn().astype(np.float64), COST)
    first, second = (fit_scorer(arms, np.random.default_rng(5)) for _ in range(2))
    read = np.array([True, False, True])
    assert np.array_equal(scores(first, arms, 0, read), scores(second, arms, 0, read))
