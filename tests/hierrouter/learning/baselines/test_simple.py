"""Routers that do not read the question, and matrix factorisation."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

from hierrouter.learning.baselines import simple
from tests.hierrouter.learning.baselines import known
from tests.hierrouter.learning.baselines.known import arms_with, choices, fitted

QUALITY = np.array([[1.0, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1]])
COST = np.tile([2.0, 1.0, 3.0], (4, 1))


def fold(quality=QUALITY, cost=COST, datasets=("one", "one", "two", "two")):
    arms = arms_with(quality, cost, np.zeros((len(quality), 2), np.float32))
    return replace(arms, seen=replace(arms.seen, datasets=datasets))


def arm_of(baseline, train, alpha=0.0):
    return choices(train, fitted(baseline, train, alpha=alpha).play).tolist()


def test_chance_is_the_mean_over_arms():
    outcome = fitted(simple.Random(), fold()).play(fold().seen).outcome(fold(), "random")
    assert outcome.quality == pytest.approx(QUALITY.mean(axis=1))
    assert outcome.cost == pytest.approx(2.0)


def test_cheapest_has_the_lowest_cost_largest_the_highest_rate_best_the_highest_reward():
    assert arm_of(simple.Cheapest(), fold()) == [1] * 4
    assert arm_of(simple.Largest(), fold()) == [2] * 4
    assert arm_of(simple.Largest(), replace(fold(), rate=np.array([2.0, 2.0, 1.0]))) == [1] * 4
    # Of equally good arms the cheapest is the best.
    assert arm_of(simple.BestStatic(), fold()) == [1] * 4
    assert arm_of(simple.BestStatic(), fold(np.ones((4, 3)))) == [1] * 4
    dear = fold(np.tile([0.5, 0.9, 1.0], (4, 1)), np.tile([0.0, 1.0, 3.0], (4, 1)))
    assert [arm_of(simple.BestStatic(), dear, alpha)[0] for alpha in (0, 0.2, 1)] == [2, 1, 0]


def test_the_best_of_each_dataset_and_over_all_for_an_unknown_one():
    train = fold(np.array([[1.0, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 1]]))
    assert arm_of(simple.DatasetOracle(), train) == [0, 0, 2, 2]
    tuned = fitted(simple.DatasetOracle(), train, alpha=0.0)
    unknown = replace(train, seen=replace(train.seen, datasets=("one", "two", "three", "three")))
    assert choices(unknown, tuned.play).tolist() == [0, 2, 0, 0]
    assert tuned.settings == {"arms": {"one": "arm-0", "two": "arm-2"}}


def test_it_finds_the_right_arm_of_each_group():
    train, validation, held_out = (known.planted_arms(60, seed=seed) for seed in range(3))
    for battles, weighed in product(("all", "best"), (True, False)):
        subject = simple.Factorisation((battles,), (100,), weighed=weighed, learning_rate=0.1)
        tuned = fitted(subject, train, validation)
        assert (choices(held_out, tuned.play) == known.group_of(60, 3)).all()


def test_which_arm_wins_most_depends_on_weights_and_on_the_battles():
    # One arm wins twice by little, the other once by much.
    quality = np.array([[0.6, 0.5], [0.6, 0.5], [0.0, 1.0]])
    assert (_only_choice(quality, weighed=False), _only_choice(quality)) == (0, 1)
    # The second best everywhere wins battles of all, but none of the best.
    quality = np.array([[1.0, 0.9, 0.0], [0.0, 0.9, 1.0]])
    assert _only_choice(quality, battles=("all",)) == 1
    assert _only_choice(quality, battles=("best",)) != 1


def _only_choice(quality, **settings):
    """The arm taken where all questions look the same."""
    train = known.arms_with(quality, np.ones_like(quality), np.zeros((len(quality), 4), np.float32))
    subject = simple.Factorisation(**{"steps": (100,), "learning_rate": 0.1, **settings})
    tuned = fitted(subject, train, train.select(known.EMPTY), alpha=0.0)
    (choice,) = set(choices(train, tuned.play).tolist())
    return choice


def test_the_loss_is_that_of_the_battles_that_were_not_drawn():
    lead, gap = torch.tensor([0.0, 2.0, -1.0]), torch.tensor([0.1, 0.0, -0.3])
    plain = (softplus(torch.tensor(0.0)) + softplus(torch.tensor(-1.0))) / 2
    assert torch.isclose(simple.lost_battles(lead, gap, False), plain)
    weighed = softplus(torch.tensor(0.0)) / 4 + softplus(torch.tensor(-1.0)) * 3 / 4
    assert torch.isclose(simple.lost_battles(lead, gap, True), weighed)
