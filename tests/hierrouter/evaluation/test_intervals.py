"""Intervals: of one mean, of many at once, over seeds and queries, of a share; and their power."""

import numpy as np
import pytest
from scipy import stats

from hierrouter.evaluation.intervals import (
    NORMAL_LIMIT_QUERIES,
    RESAMPLES_PER_BATCH,
    expanded_tail,
    interval,
    percentile_interval,
    queries_needed,
    resampled_means,
    simultaneous_intervals,
)
from tests.hierrouter.evaluation import simulated


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).random(400)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def test_parts_have_the_same_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.random.default_rng(0).normal(size=(5, 60))
    together = (
        resampled_means(drawn, RESAMPLES_PER_BATCH, rng()),
        simultaneous_intervals(drawn, 300, 0.95, rng()),
    )
    monkeypatch.setattr("hierrouter.evaluation.intervals.DRAWS_PER_BATCH", 180)
    monkeypatch.setattr("hierrouter.evaluation.intervals.DIFFERENCES_PER_BATCH", 2)
    np.testing.assert_allclose(
        resampled_means(drawn, RESAMPLES_PER_BATCH, rng()), together[0], rtol=1e-12
    )
    np.testing.assert_allclose(simultaneous_intervals(drawn, 300, 0.95, rng()), together[1])


def test_many_queries_have_the_intervals_of_the_limit_of_their_resamples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of skewed figures; a difference of two rows is the difference of their means still."""
    rows = np.random.default_rng(0).gamma(0.5, size=(2, NORMAL_LIMIT_QUERIES))
    rows = np.stack([*rows, rows[0] - rows[1], np.full(NORMAL_LIMIT_QUERIES, 0.3)])
    limit = resampled_means(rows, 4000, rng())
    np.testing.assert_allclose(limit[0] - limit[1], limit[2], atol=1e-9)
    monkeypatch.setattr(
        "hierrouter.evaluation.intervals.NORMAL_LIMIT_QUERIES", NORMAL_LIMIT_QUERIES + 1
    )
    counted = resampled_means(rows, 4000, rng())
    ends = [
        np.array(percentile_interval(means, NORMAL_LIMIT_QUERIES)) for means in (limit, counted)
    ]
    width = (ends[1][1] - ends[1][0])[:3]
    assert (np.abs(ends[0] - ends[1])[:, :3] < 0.06 * width).all()
    np.testing.assert_allclose(ends[0][:, 3], 0.3)


def test_means_are_those_of_scipy_alone(values: np.ndarray) -> None:
    """The same draws, looked up one by one instead of counted."""
    rows = np.stack([values, values**2])
    alone = stats.bootstrap(
        (np.arange(len(values)),),
        lambda drawn, axis: rows[:, drawn].mean(axis=axis),
        n_resamples=3 * RESAMPLES_PER_BATCH + 1,
        batch=RESAMPLES_PER_BATCH,
        vectorized=True,
        method="percentile",
        rng=rng(),
    )
    ours = resampled_means(rows, 3 * RESAMPLES_PER_BATCH + 1, rng())
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


def test_one_query_says_nothing_of_others_and_none_nothing() -> None:
    assert interval(np.array([0.3]), rng=rng()) == (0.3, 0.3)
    with pytest.raises(ValueError, match="no queries"):
        resampled_means(np.empty((2, 0)), 10, rng())


def half_errors(differences: np.ndarray, n: int = 4000) -> np.ndarray:
    """Half widths in standard errors: the critical value."""
    low, high = simultaneous_intervals(differences, n, 0.95, rng())
    return (high - low) / 2 / (differences.std(axis=1, ddof=1) / np.sqrt(differences.shape[1]))


def test_all_hold_together() -> None:
    population = simulated.contest(seed=1)
    truth = population.mean(axis=1)

    def all_hold(sample: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        low, high = simultaneous_intervals(sample, 1000, 0.95, rng)
        return np.all((low <= truth) & (truth <= high))

    assert simulated.coverage(population, 90, 600, all_hold) >= 0.93


def test_critical_values_of_one_of_unrelated_of_equal_and_of_few() -> None:
    differences = np.random.default_rng(0).normal(size=(1, 200))
    assert half_errors(differences) == pytest.approx(stats.t.ppf(0.975, 199), rel=0.03)
    # Unrelated comparisons are as wide as Sidak's, and equal ones count once.
    differences = np.random.default_rng(0).normal(size=(10, 2000))
    assert half_errors(differences) == pytest.approx(stats.norm.ppf((1 + 0.95**0.1) / 2), rel=0.02)
    alone, many = half_errors(differences[:1])[0], half_errors(differences[[0] * 10])
    assert many == pytest.approx(alone)
    # Three queries never say more together than alone.
    differences = np.array([[1.0, 1.0, 0.0], [1.0, 0.9, 0.1], [0.0, 0.5, 0.4]])
    assert (half_errors(differences) >= stats.t.ppf(0.975, 2) * (1 - 1e-9)).all()


def test_what_never_varies_has_no_width_and_widens_nobody() -> None:
    varies = np.random.default_rng(0).normal(size=(1, 50))
    constant = np.full((2, 50), [[0.1], [0.0]])
    low, high = simultaneous_intervals(np.concatenate([varies, constant]), 500, 0.95, rng())
    alone, _ = simultaneous_intervals(varies, 500, 0.95, rng())
    assert low[0] == pytest.approx(alone[0])
    np.testing.assert_allclose(low[1:], [0.1, 0.0], atol=1e-12)
    np.testing.assert_allclose(high[1:], [0.1, 0.0], atol=1e-12)


def test_so_many_queries_show_a_difference() -> None:
    """Of what varies by 0.1: 787 by the normal distribution; the test itself finds it as often."""
    needed = queries_needed(0.01, 0.1)
    assert needed == pytest.approx(787, abs=3)
    assert queries_needed(1.0, 1e-9) == 2
    drawn = np.random.default_rng(0).normal(0.3, 1.0, (20_000, queries_needed(0.3, 1.0)))
    found = np.mean(stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05)
    assert found == pytest.approx(0.8, abs=0.01)
