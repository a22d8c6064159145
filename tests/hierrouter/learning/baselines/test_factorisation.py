"""Matrix factorisation: strengths of arms learned from who won."""

from itertools import product

import numpy as np
import torch

from hierrouter.learning.baselines.factors import Factorisation, lost_battles
from tests.hierrouter.learning.baselines.planted import (
    EMPTY,
    arms_with,
    choices,
    group_of,
    planted_arms,
)


def test_it_finds_the_right_arm_of_each_group():
    train, validation, held_out = (planted_arms(60, seed=seed) for seed in range(3))
    for battles, weighed in product(("all", "best"), (True, False)):
        subject = Factorisation((battles,), (100,), weighed=weighed, learning_rate=0.1)
        tuned = subject.fit(train, validation, 0.1, np.random.default_rng(0))
        assert (choices(held_out, tuned.play) == group_of(60, 3)).all()


def test_a_weighed_win_counts_as_much_as_it_is_worth():
    # One arm wins twice by little, the other once by much.
    quality = np.array([[0.6, 0.5], [0.6, 0.5], [0.0, 1.0]])
    assert (_only_choice(quality, weighed=False), _only_choice(quality)) == (0, 1)


def test_the_second_best_everywhere_wins_battles_of_all_but_none_of_the_best():
    quality = np.array([[1.0, 0.9, 0.0], [0.0, 0.9, 1.0]])
    assert _only_choice(quality, battles=("all",)) == 1
    assert _only_choice(quality, battles=("best",)) != 1


def _only_choice(quality, **settings):
    """The arm taken where all questions look the same."""
    train = arms_with(quality, np.ones_like(quality), np.zeros((len(quality), 4), np.float32))
    subject = Factorisation(**{"steps": (100,), "learning_rate": 0.1, **settings})
    tuned = subject.fit(train, train.select(EMPTY), 0.0, np.random.default_rng(0))
    (choice,) = set(choices(train, tuned.play).tolist())
    return choice


def test_the_loss_is_that_of_the_battles_that_were_not_drawn():
    lead, gap = torch.tensor([0.0, 2.0, -1.0]), torch.tensor([0.1, 0.0, -0.3])
    softplus = torch.nn.functional.softplus
    plain = (softplus(torch.tensor(0.0)) + softplus(torch.tensor(-1.0))) / 2
    assert torch.isclose(lost_battles(lead, gap, False), plain)
    weighed = softplus(torch.tensor(0.0)) / 4 + softplus(torch.tensor(-1.0)) * 3 / 4
    assert torch.isclose(lost_battles(lead, gap, True), weighed)
