"""Elo: wins near the question decide, as Bradley-Terry strengths would."""

import numpy as np
from sklearn.linear_model import LogisticRegression

from hierrouter.learning.baselines.simple import Elo, wins
from tests.hierrouter.learning.baselines.planted import (
    EMPTY,
    arms_with,
    choices,
    group_of,
    planted_arms,
)


def test_it_finds_the_right_arm_of_each_group():
    train, validation, held_out = (planted_arms(60, seed=seed) for seed in range(3))
    tuned = Elo().fit(train, validation, 0.1, np.random.default_rng(0))
    assert (choices(held_out, tuned.play) == group_of(60, 3)).all()
    assert tuned.settings["base"] > 1


def test_plain_elo_takes_the_arm_that_wins_most():
    quality = np.array([[0, 1, 0.5], [0, 1, 0.5], [1, 0, 0.5]])
    train = arms_with(quality, np.ones((3, 3)), np.eye(3, dtype=np.float32))
    tuned = Elo(base=(1.0,), draw=(0.0,)).fit(
        train, train.select(EMPTY), 0.1, np.random.default_rng(0)
    )
    assert choices(train, tuned.play).tolist() == [1, 1, 1]


def test_a_win_counts_one_and_a_draw_half():
    assert wins(np.array([[0.5, 0.5, 0.0]]), 0.0).tolist() == [[1.5, 1.5, 0.0]]
    assert wins(np.array([[0.5, 0.45, 0.0]]), 0.1).tolist() == [[1.5, 1.5, 0.0]]


def test_wins_are_ordered_as_bradley_terry_strengths():
    rng = np.random.default_rng(0)
    for _ in range(5):
        reward = rng.normal(0, 1, (40, 4)) + rng.normal(0, 0.5, 4)
        by_strength = wins(reward, 0.0).sum(axis=0)[_strengths(reward).argsort()]
        assert (np.diff(by_strength) >= 0).all()


def _strengths(reward):
    first, second = np.triu_indices(reward.shape[1], 1)
    arms = np.eye(reward.shape[1])
    battles = np.tile(arms[first] - arms[second], (len(reward), 1))
    won = (reward[:, first] > reward[:, second]).ravel()
    return LogisticRegression(C=1e6, fit_intercept=False).fit(battles, won).coef_[0]
