"""LinUCB: learns from the rewards of what it tried, and from no others."""

import numpy as np

from hierrouter.learning.baselines.simple import LinUCB, explore, principal_axes
from tests.hierrouter.learning.baselines.planted import choices, group_of, planted_arms


def test_it_finds_the_right_arm_of_each_group():
    train, validation, held_out = planted_arms(300), planted_arms(60, seed=1), planted_arms(60)
    tuned = LinUCB().fit(train, validation, 0.1, np.random.default_rng(0))
    assert (choices(held_out, tuned.play) == group_of(60, 3)).all()


def test_an_arm_that_is_not_tried_is_not_learned():
    reward = np.tile([0.5, np.nan, np.nan], (20, 1))  # reading another one would spread
    weights = explore(np.ones((20, 1)), reward, np.arange(3.0), width=0.0)
    assert weights[:, 0].round(3).tolist() == [0.476, 0.0, 0.0]  # 20 * 0.5 / (20 + 1)


def test_it_explores_what_promises_nothing_yet():
    reward = np.tile([0.5, 1.0], (20, 1))
    features = np.ones((20, 1))
    timid, bold = (explore(features, reward, np.arange(2.0), width) for width in (0.0, 1.0))
    assert timid[1, 0] == 0
    assert bold[1, 0] > bold[0, 0]


def test_weights_are_those_of_a_ridge_regression_on_what_was_tried():
    rng = np.random.default_rng(0)
    features, reward = rng.normal(0, 1, (30, 4)), rng.normal(0, 1, (30, 1))
    expected = np.linalg.solve(features.T @ features + np.eye(4), features.T @ reward[:, 0])
    assert np.allclose(explore(features, reward, np.ones(1), 0.5)[0], expected)


def test_axes_have_unit_variance_and_none_is_without():
    rng = np.random.default_rng(0)
    vectors = rng.normal(0, 1, (50, 3)).astype(np.float32) @ rng.normal(0, 1, (3, 6))
    mean, axes = principal_axes(vectors.astype(np.float32), 10)
    assert axes.shape == (6, 3)
    assert np.allclose(np.cov(((vectors - mean) @ axes).T, ddof=0), np.eye(3), atol=1e-3)
