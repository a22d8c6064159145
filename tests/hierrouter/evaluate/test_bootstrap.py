"""Intervals: where they lie, how wide they are, and that pairing works."""

from __future__ import annotations

import numpy as np
import pytest

from hierrouter.evaluate.bootstrap import (
    CHUNK,
    difference_interval,
    interval,
    percentile_interval,
    resampled_means,
)


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).random(400)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def test_the_interval_is_as_wide_as_the_normal_one(values: np.ndarray) -> None:
    low, high = interval(values, rng=rng())
    error = values.std() / np.sqrt(len(values))
    assert low < values.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.05)


def test_a_higher_level_is_wider(values: np.ndarray) -> None:
    inner, outer = (interval(values, level=level, rng=rng()) for level in (0.8, 0.99))
    assert outer[0] < inner[0] < inner[1] < outer[1]


def test_the_same_generator_gives_the_same_interval(values: np.ndarray) -> None:
    assert interval(values, rng=rng()) == interval(values, rng=rng())


def test_policies_are_resampled_together(values: np.ndarray) -> None:
    means = resampled_means(np.stack([values, values + 0.25]), CHUNK + 1, rng())
    np.testing.assert_allclose(means[1] - means[0], 0.25)


def test_a_constant_difference_has_no_width(values: np.ndarray) -> None:
    low, high = difference_interval(values + 0.25, values, rng=rng())
    assert low == pytest.approx(0.25) == high


def test_every_resample_has_as_many_draws_as_queries() -> None:
    means = resampled_means(np.ones((1, 7)), 2 * CHUNK + 3, rng())
    np.testing.assert_allclose(means, 1)
    assert means.shape == (1, 2 * CHUNK + 3)


def test_resamples_differ_between_chunks(values: np.ndarray) -> None:
    means = resampled_means(values[None], 2 * CHUNK, rng())[0]
    assert len(np.unique(means)) > 1.9 * CHUNK


def test_percentiles_over_the_last_axis() -> None:
    low, high = percentile_interval(np.tile(np.arange(101.0), (3, 1)), level=0.9)
    np.testing.assert_allclose(low, 5)
    np.testing.assert_allclose(high, 95)


def test_nothing_to_resample() -> None:
    with pytest.raises(ValueError, match="no queries"):
        resampled_means(np.empty((2, 0)), 10, rng())
