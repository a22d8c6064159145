"""Matrix factorisation learns from who won; a dual encoder puts questions near their arms."""

from itertools import product

import numpy as np
import torch
from torch.nn.functional import softplus

from hierrouter.learning.baselines import factors
from tests.hierrouter.learning.baselines import known
from tests.hierrouter.learning.baselines.known import choices, fitted


def test_it_finds_the_right_arm_of_each_group():
    train, validation, held_out = (known.planted_arms(60, seed=seed) for seed in range(3))
    for battles, weighed in product(("all", "best"), (True, False)):
        subject = factors.Factorisation((battles,), (100,), weighed=weighed, learning_rate=0.1)
        tuned = fitted(subject, train, validation)
        assert (choices(held_out, tuned.play) == known.group_of(60, 3)).all()


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
    train = known.arms_with(quality, np.ones_like(quality), np.zeros((len(quality), 4), np.float32))
    subject = factors.Factorisation(**{"steps": (100,), "learning_rate": 0.1, **settings})
    tuned = fitted(subject, train, train.select(known.EMPTY), alpha=0.0)
    (choice,) = set(choices(train, tuned.play).tolist())
    return choice


def test_the_loss_is_that_of_the_battles_that_were_not_drawn():
    lead, gap = torch.tensor([0.0, 2.0, -1.0]), torch.tensor([0.1, 0.0, -0.3])
    plain = (softplus(torch.tensor(0.0)) + softplus(torch.tensor(-1.0))) / 2
    assert torch.isclose(factors.lost_battles(lead, gap, False), plain)
    weighed = softplus(torch.tensor(0.0)) / 4 + softplus(torch.tensor(-1.0)) * 3 / 4
    assert torch.isclose(factors.lost_battles(lead, gap, True), weighed)


def test_an_encoder_finds_what_no_linear_map_does():
    side = np.random.default_rng(0).choice([-1.0, 1.0], (400, 2))
    first = side.prod(axis=1) > 0  # the right arm is the exclusive or of two coordinates
    quality = np.stack([first, ~first], axis=1).astype(np.float64)
    fold = known.arms_with(quality, np.ones((400, 2)), side.astype(np.float32))
    train, held_out = fold.select(np.arange(300)), fold.select(np.arange(300, 400))
    small = factors.DualEncoder(
        positives=(1,), steps=(100,), batch=64, hidden=16, learning_rate=0.03
    )
    found = choices(held_out, fitted(small, train).play)
    assert (found == np.where(first[300:], 0, 1)).mean() > 0.95


def test_the_arm_loss_contrasts_each_best_arm_with_all_worse_ones():
    likeness, reward = torch.tensor([[0.5, 0.0, 0.2]]), torch.tensor([[1.0, 0.0, 0.5]])
    share = torch.softmax(likeness, dim=1)[0]
    assert torch.isclose(factors.arm_loss(likeness, reward, 1), -share[0].log())
    two = [likeness[0, arm].exp() / (likeness[0, [arm, 1]].exp().sum()) for arm in (0, 2)]
    assert torch.isclose(factors.arm_loss(likeness, reward, 2), -(two[0].log() + two[1].log()) / 2)
    # A question on which arms do not differ does not count.
    beside = torch.cat([likeness, torch.tensor([[3.0, 0.0, 0.0]])])
    rewards = torch.cat([reward, torch.full((1, 3), 0.5)])
    assert torch.isclose(factors.arm_loss(beside, rewards, 1), -share[0].log())


def test_the_question_loss_is_low_where_groups_lie_together():
    place = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    together, apart = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    assert factors.question_loss(place, together) < factors.question_loss(place, apart)
