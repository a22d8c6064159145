"""Dual encoder: questions come to lie near the arms that suit them."""

import numpy as np
import torch

from hierrouter.learning.baselines.factors import DualEncoder, arm_loss, question_loss
from tests.hierrouter.learning.baselines.planted import (
    arms_with,
    choices,
)

SMALL = DualEncoder(positives=(1,), steps=(100,), batch=64, hidden=16, learning_rate=0.03)


def test_it_finds_what_no_linear_map_does():
    rng = np.random.default_rng(0)
    side = rng.choice([-1.0, 1.0], (400, 2))
    first = side.prod(axis=1) > 0  # the right arm is the exclusive or of two coordinates
    quality = np.stack([first, ~first], axis=1).astype(np.float64)
    fold = arms_with(quality, np.ones((400, 2)), side.astype(np.float32))
    train, held_out = fold.select(np.arange(300)), fold.select(np.arange(300, 400))
    tuned = SMALL.fit(train, train, 0.1, rng)
    assert (choices(held_out, tuned.play) == np.where(first[300:], 0, 1)).mean() > 0.95


def test_the_arm_loss_contrasts_each_best_arm_with_all_worse_ones():
    likeness, reward = torch.tensor([[0.5, 0.0, 0.2]]), torch.tensor([[1.0, 0.0, 0.5]])
    share = torch.softmax(likeness, dim=1)[0]
    assert torch.isclose(arm_loss(likeness, reward, 1), -share[0].log())
    two = [likeness[0, arm].exp() / (likeness[0, [arm, 1]].exp().sum()) for arm in (0, 2)]
    assert torch.isclose(arm_loss(likeness, reward, 2), -(two[0].log() + two[1].log()) / 2)


def test_a_question_on_which_arms_do_not_differ_does_not_count():
    likeness = torch.tensor([[0.5, 0.0], [3.0, 0.0]])
    reward = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert torch.isclose(arm_loss(likeness, reward, 1), arm_loss(likeness[:1], reward[:1], 1))


def test_the_question_loss_is_low_where_groups_lie_together():
    place = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    together, apart = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    assert question_loss(place, together) < question_loss(place, apart)
