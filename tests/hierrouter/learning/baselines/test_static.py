"""Routers that do not read the question."""

from dataclasses import replace

import numpy as np
import pytest

from hierrouter.learning.baselines.simple import (
    BestStatic,
    Cheapest,
    DatasetOracle,
    Largest,
    Random,
)
from tests.hierrouter.learning.baselines.planted import arms_with, choices

QUALITY = np.array([[1.0, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1]])
COST = np.tile([2.0, 1.0, 3.0], (4, 1))


def fold(quality=QUALITY, cost=COST, datasets=("one", "one", "two", "two")):
    arms = arms_with(quality, cost, np.zeros((len(quality), 2), np.float32))
    return replace(arms, seen=replace(arms.seen, datasets=datasets))


def arm_of(baseline, train, alpha=0.0):
    tuned = baseline.fit(train, train, alpha, np.random.default_rng(0))
    return choices(train, tuned.play).tolist()


def test_chance_is_the_mean_over_arms():
    train = fold()
    played = Random().fit(train, train, 0.0, np.random.default_rng(0)).play(train.seen)
    outcome = played.outcome(train, "random")
    assert outcome.quality == pytest.approx(QUALITY.mean(axis=1))
    assert outcome.cost == pytest.approx(2.0)


def test_the_cheapest_has_the_lowest_mean_cost():
    assert arm_of(Cheapest(), fold()) == [1] * 4


def test_the_largest_has_the_highest_rate_and_of_equals_the_lowest_cost():
    train = fold()
    assert arm_of(Largest(), train) == [2] * 4
    assert arm_of(Largest(), replace(train, rate=np.array([2.0, 2.0, 1.0]))) == [1] * 4


def test_the_best_has_the_highest_mean_reward_and_of_equals_the_lowest_cost():
    assert arm_of(BestStatic(), fold()) == [1] * 4
    assert arm_of(BestStatic(), fold(np.ones((4, 3)))) == [1] * 4
    dear = fold(np.tile([0.5, 0.9, 1.0], (4, 1)), np.tile([0.0, 1.0, 3.0], (4, 1)))
    assert [arm_of(BestStatic(), dear, alpha)[0] for alpha in (0, 0.2, 1)] == [2, 1, 0]


def test_the_best_of_each_dataset_and_over_all_for_an_unknown_one():
    train = fold(np.array([[1.0, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 1]]))
    assert arm_of(DatasetOracle(), train) == [0, 0, 2, 2]
    tuned = DatasetOracle().fit(train, train, 0.0, np.random.default_rng(0))
    unknown = replace(train.seen, datasets=("one", "two", "three", "three"))
    assert tuned.play(unknown).answer.argmax(axis=1).tolist() == [0, 2, 0, 0]
    assert tuned.settings == {"arms": {"one": "arm-0", "two": "arm-2"}}
