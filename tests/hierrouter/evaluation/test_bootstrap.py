"""Intervals: equal to scipy's, where they lie, how wide they are, and that pairing works."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hierrouter.evaluation.intervals import (
    BATCH,
    expanded_tail,
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
    means = resampled_means(np.stack([values, values + 0.25]), BATCH + 1, rng())
    np.testing.assert_allclose(means[1] - means[0], 0.25)


def test_a_constant_difference_has_no_width(values: np.ndarray) -> None:
    low, high = interval(values + 0.25 - values, rng=rng())
    assert low == pytest.approx(0.25) == high


def test_every_resample_has_as_many_draws_as_queries() -> None:
    means = resampled_means(np.ones((1, 7)), 2 * BATCH + 3, rng())
    np.testing.assert_allclose(means, 1)
    assert means.shape == (1, 2 * BATCH + 3)


def test_fewer_counted_at_once_are_the_same_resamples(
    values: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = resampled_means(values[None], BATCH, rng())
    monkeypatch.setattr("hierrouter.evaluation.intervals.DRAWS", 3 * len(values))
    np.testing.assert_allclose(resampled_means(values[None], BATCH, rng()), together, rtol=1e-12)


def test_resamples_differ_between_chunks(values: np.ndarray) -> None:
    means = resampled_means(values[None], 2 * BATCH, rng())[0]
    assert len(np.unique(means)) > 1.9 * BATCH


def test_percentiles_over_the_last_axis() -> None:
    many = 10**9  # as good as no expansion
    low, high = percentile_interval(np.tile(np.arange(101.0), (3, 1)), many, level=0.9)
    np.testing.assert_allclose(low, 5)
    np.testing.assert_allclose(high, 95)


def test_means_are_those_of_scipy_alone(values: np.ndarray) -> None:
    """The same draws, looked up one by one instead of counted."""
    rows = np.stack([values, values**2])
    alone = stats.bootstrap(
        (np.arange(len(values)),),
        lambda drawn, axis: rows[:, drawn].mean(axis=axis),
        n_resamples=3 * BATCH + 1,
        batch=BATCH,
        vectorized=True,
        method="percentile",
        rng=rng(),
    )
    ours = resampled_means(rows, 3 * BATCH + 1, rng())
    np.testing.assert_allclose(ours, alone.bootstrap_distribution, rtol=1e-12)
    plain = np.quantile(ours, [0.025, 0.975], axis=-1)
    np.testing.assert_allclose(plain, alone.confidence_interval, rtol=1e-12)


def test_few_queries_get_the_width_of_students_interval() -> None:
    """Of figures that look normal; plain percentiles are a fifth too narrow here."""
    few = stats.norm.ppf((np.arange(8) + 0.5) / 8)
    low, high = interval(few, rng=rng())
    student = stats.ttest_1samp(few, 0).confidence_interval(0.95)
    assert high - low == pytest.approx(student.high - student.low, rel=0.05)
    plain = np.quantile(resampled_means(few[None], 10_000, rng()), [0.025, 0.975])
    assert np.diff(plain)[0] < 0.85 * (high - low)


@pytest.mark.parametrize(("queries", "tail"), [(2, 0.0), (90, 0.0229), (10**6, 0.025)])
def test_the_fewer_queries_the_less_is_cut_off(queries: int, tail: float) -> None:
    assert expanded_tail(queries) == pytest.approx(tail, abs=1e-4)


def test_one_query_says_nothing_of_others() -> None:
    assert interval(np.array([0.3]), rng=rng()) == (0.3, 0.3)


def test_nothing_to_resample() -> None:
    with pytest.raises(ValueError, match="no queries"):
        resampled_means(np.empty((2, 0)), 10, rng())
