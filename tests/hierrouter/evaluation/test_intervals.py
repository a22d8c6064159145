"""Intervals: of one mean, of many at once, over seeds and queries, of a share; and their power."""

import numpy as np
import pytest
from scipy import stats

from hierrouter.evaluation.intervals import (
    BATCH,
    crossed_interval,
    expanded_tail,
    gap_closed_interval,
    interval,
    percentile_interval,
    queries_needed,
    resampled_means,
    simultaneous_intervals,
    smallest_difference,
)
from tests.hierrouter.evaluation import simulated
from tests.hierrouter.evaluation.simulated import grid


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).random(400)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def test_parts_have_the_same_resamples(values: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    together = resampled_means(values[None], BATCH, rng())
    monkeypatch.setattr("hierrouter.evaluation.intervals.DRAWS", 3 * len(values))
    np.testing.assert_allclose(resampled_means(values[None], BATCH, rng()), together, rtol=1e-12)


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


def test_many_policies_share_their_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = np.random.default_rng(0).normal(size=(5, 60))
    whole = simultaneous_intervals(differences, 300, 0.95, rng())
    monkeypatch.setattr("hierrouter.evaluation.intervals.AT_ONCE", 2)
    np.testing.assert_allclose(simultaneous_intervals(differences, 300, 0.95, rng()), whole)


LARGE = 1e6  # degrees of freedom


def test_the_variance_is_that_of_the_components() -> None:
    """Half width over t, with so many seeds and queries that t is the normal quantile."""
    seeds, queries, deviations = 200, 300, (0.3, 0.5, 0.8)
    low, high = crossed_interval(grid(np.random.default_rng(0), seeds, queries, deviations))
    of_seed, of_query, of_both = np.square(deviations)
    variance = of_seed / seeds + of_query / queries + of_both / (seeds * queries)
    assert ((high - low) / 2 / 1.96) ** 2 == pytest.approx(variance, rel=0.15)


@pytest.mark.parametrize(("seeds", "apart"), [(3, 0), (3, 0.02), (5, 0), (5, 0.02), (5, 0.3)])
def test_it_holds_the_mean_of_all_seeds_and_queries(seeds: int, apart: float) -> None:
    rng = np.random.default_rng(2)
    values = np.array([grid(rng, seeds, 90, (apart, 0.45, 0.2)) for _ in range(1500)])
    low, high = crossed_interval(values)
    assert np.mean((low <= 0) & (high >= 0)) >= 0.93


def test_equal_seeds_leave_the_queries_equal_queries_the_seeds_and_constants_nothing() -> None:
    for values, axis in ((np.random.default_rng(0).random(60), 0), (np.array([0.1, 0.5, 0.3]), 1)):
        low, high = crossed_interval(np.repeat(np.expand_dims(values, axis), 40, axis))
        student = stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert (low, high) == pytest.approx(tuple(student))
    # Figures are kept apart, and one that never varies has no width.
    values = np.random.default_rng(0).random((3, 4, 20))
    values[2] = 0.5
    low, high = crossed_interval(values, 0.9)
    assert (low[1], high[1]) == pytest.approx(crossed_interval(values[1], 0.9))
    assert (low[2], high[2]) == pytest.approx((0.5, 0.5))


def ends(router: np.ndarray, fixed: np.ndarray, oracle: np.ndarray) -> tuple[float, float] | None:
    return gap_closed_interval(router, fixed, oracle, 2000, 0.95, np.random.default_rng(0))


def test_a_constant_share_is_certain_and_a_gap_that_may_be_nil_bounds_nothing() -> None:
    """The gap varies, and with it the numerator: both are of the same resample."""
    fixed = np.random.default_rng(1).random(80)
    gap = np.random.default_rng(2).random(80)
    assert ends(fixed + 0.4 * gap, fixed, fixed + gap) == pytest.approx((0.4, 0.4))
    fixed = np.zeros(40)
    oracle = np.r_[1.0, np.zeros(39)]  # missing from a third of the resamples
    assert ends(oracle / 2, fixed, oracle) is None
    # Six of 40 queries have a gap: two resamples in a thousand have none.
    found = ends(np.r_[np.ones(3), np.zeros(37)], np.zeros(40), np.r_[np.ones(6), np.zeros(34)])
    assert found is not None
    assert 0 <= found[0] < 0.5 < found[1] <= 1


def test_it_holds_the_share_against_the_best_of_routes_that_differ() -> None:
    routes, router, oracle = simulated.ladder(seed=1, apart=1.0)
    population = np.concatenate([routes, [router, oracle]])
    best, at_router, at_oracle = routes.mean(axis=1).max(), router.mean(), oracle.mean()
    truth = (at_router - best) / (at_oracle - best)

    def covers(sample: np.ndarray, rng: np.random.Generator) -> np.bool_:
        fixed = max(sample[:-2], key=np.mean)
        found = gap_closed_interval(sample[-2], fixed, sample[-1], 500, 0.95, rng)
        return np.bool_(found is None or found[0] <= truth <= found[1])

    assert simulated.coverage(population, 200, 300, covers) >= 0.93


FIGURES = simulated.figures(seed=1)


def test_intervals_of_many_kinds_of_figures_hold_the_mean_of_the_population() -> None:
    """In 600 samples of 90 queries.

    One in ten wrong, of 90, is where a mean of scores becomes too skewed.
    """
    population = np.array(list(FIGURES.values()))
    truth = population.mean(axis=1)

    def covers(sample: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        low, high = percentile_interval(resampled_means(sample, 1000, rng), 90)
        return (low <= truth) & (truth <= high)

    held = simulated.coverage(population, 90, 600, covers)
    tied = np.array(["ties" in name for name in FIGURES])
    assert (held[tied] >= 0.93).all()
    assert held[~tied].mean() >= 0.93
    assert held[~tied].min() >= 0.91


@pytest.mark.parametrize(("queries", "power"), [(12, 0.8), (90, 0.8), (90, 0.5)])
def test_the_smallest_difference_is_found_as_often_as_promised(queries: int, power: float) -> None:
    difference = smallest_difference(0.4, queries, power=power)
    noncentrality = np.sqrt(queries) * difference / 0.4
    critical = stats.t.ppf(0.975, queries - 1)
    assert stats.nct.sf(critical, queries - 1, noncentrality) == pytest.approx(power, abs=1e-5)
    drawn = np.random.default_rng(0).normal(difference, 0.4, (20_000, queries))
    found = stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(power, abs=0.01)


def test_the_number_of_queries_is_the_fewest_and_at_least_two() -> None:
    """Cohen 1988, table 2.4.1: d = 0.5, two-sided 5 %, power .80, paired."""
    assert queries_needed(0.5, 1.0) == 34
    assert queries_needed(1e9, 0.1) == 2
    for wanted in (0.01, 0.05, 0.3):
        queries = queries_needed(wanted, 0.4)
        assert smallest_difference(0.4, queries) <= wanted < smallest_difference(0.4, queries - 1)
