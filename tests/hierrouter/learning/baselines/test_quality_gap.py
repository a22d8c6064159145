"""Quality gap: the small arm where it is about as good as the large one."""

import numpy as np

from hierrouter.learning.baselines.classifiers import QualityGap, promising_pairs
from tests.hierrouter.learning.baselines.planted import (
    EMPTY,
    arms_with,
    choices,
    group_of,
    planted_arms,
)


def _small_and_large(queries, seed):
    """Arm 1 is right always and dear; arm 0 is right in group 0 alone."""
    planted = planted_arms(queries, arms=2, seed=seed)
    small = group_of(queries, 2) == 0
    quality = np.stack([small, np.ones(queries)], axis=1).astype(np.float64)
    return arms_with(quality, planted.cost, planted.seen.question)


def test_it_asks_the_large_arm_only_where_the_small_one_fails():
    train, validation, held_out = (_small_and_large(60, seed) for seed in range(3))
    tuned = QualityGap().fit(train, validation, 0.1, np.random.default_rng(0))
    assert (choices(held_out, tuned.play) == group_of(60, 2)).all()


def test_where_cost_is_all_it_always_asks_the_small_arm():
    train, validation, held_out = (_small_and_large(60, seed) for seed in range(3))
    tuned = QualityGap().fit(train, validation, 100.0, np.random.default_rng(0))
    assert (choices(held_out, tuned.play) == 0).all()


def test_it_takes_the_pair_that_is_best_together():
    # Arms 0 and 2 complete each other; arm 1 is always half right.
    quality = np.array([[1, 0.5, 0], [0, 0.5, 1]] * 10)
    train = arms_with(quality, np.tile([1.0, 2, 3], (20, 1)), np.eye(20, 3, dtype=np.float32))
    assert promising_pairs(quality, np.arange(3.0), 1) == [(0, 2)]
    tuned = QualityGap(pairs=1).fit(train, train.select(EMPTY), 0.0, np.random.default_rng(0))
    assert (tuned.settings["small"], tuned.settings["large"]) == ("arm-0", "arm-2")


def test_the_margin_makes_half_of_the_labels_good():
    quality = np.array([[0.0, gap] for gap in (0.1, 0.2, 0.3, 0.4)])
    train = arms_with(quality, np.tile([1.0, 2], (4, 1)), np.eye(4, dtype=np.float32))
    tuned = QualityGap(pairs=1).fit(train, train.select(EMPTY), 0.0, np.random.default_rng(0))
    assert tuned.settings["margin"] == 0.25


def test_a_small_arm_that_is_always_as_good_is_always_taken():
    train = arms_with(np.ones((4, 2)), np.tile([2.0, 1], (4, 1)), np.eye(4, dtype=np.float32))
    tuned = QualityGap().fit(train, train, 0.0, np.random.default_rng(0))
    assert choices(train, tuned.play).tolist() == [1] * 4
