"""Intervals: of one mean, of many at once, over seeds and queries, of a share; and their power."""

import numpy as np
import pytest
from scipy import stats

from hierrouter.evaluation import intervals
from hierrouter.evaluation.intervals import (
    AMOUNTS,
    DIFFERENCES,
    NORMAL_LIMIT_QUERIES,
    RESAMPLES_PER_BATCH,
    SHARES,
    UNBOUNDED,
    Floats,
    Ratio,
    Strata,
    cost_ratio_interval,
    difference_range,
    expanded_tail,
    gap_closed_interval,
    influence_interval,
    interval,
    mean_intervals,
    queries_needed,
    ratio_interval,
    resample,
    share_interval,
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
        resample(drawn, RESAMPLES_PER_BATCH, rng()).deviations,
        simultaneous_intervals(drawn, 300, 0.95, rng()),
    )
    monkeypatch.setattr(intervals, "DRAWS_PER_BATCH", 180)
    monkeypatch.setattr(intervals, "DIFFERENCES_PER_BATCH", 2)
    intervals._cached_weights.cache_clear()
    means = resample(drawn, RESAMPLES_PER_BATCH, rng()).deviations
    np.testing.assert_allclose(means, together[0], atol=1e-6)
    ends = simultaneous_intervals(drawn, 300, 0.95, rng())
    np.testing.assert_allclose(ends, together[1], atol=1e-6)


def test_equal_seeds_give_equal_bits_with_and_without_a_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = np.random.default_rng(0).random((3, 50))
    strata = ["a"] * 20 + ["b"] * 30
    ends = mean_intervals(rows, 500, 0.95, rng(), SHARES, strata)
    intervals._cached_weights.cache_clear()
    np.testing.assert_array_equal(mean_intervals(rows, 500, 0.95, rng(), SHARES, strata), ends)
    monkeypatch.setattr(intervals, "MAX_CACHED_DRAWS", 0)
    np.testing.assert_array_equal(mean_intervals(rows, 500, 0.95, rng(), SHARES, strata), ends)


def test_a_generator_goes_on_after_cached_weights() -> None:
    """So that two figures drawn one after the other are independent, and drawn apart are not."""
    one = rng()
    first = resample(np.eye(4), 50, one).deviations
    second = resample(np.eye(4), 50, one).deviations
    assert (first != second).all()
    again = rng()
    np.testing.assert_array_equal(resample(np.eye(4), 50, again).deviations, first)
    np.testing.assert_array_equal(resample(np.eye(4), 50, again).deviations, second)


def test_many_queries_have_the_intervals_of_the_limit_of_their_resamples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of skewed figures; a difference of two rows is the difference of their means still."""
    rows = np.random.default_rng(0).gamma(0.5, size=(2, NORMAL_LIMIT_QUERIES))
    rows[:, ::3] += [[1], [2]]  # another data set
    rows = np.stack([*rows, rows[0] - rows[1], np.full(NORMAL_LIMIT_QUERIES, 0.3)])
    strata = np.arange(NORMAL_LIMIT_QUERIES) % 3
    limit = resample(rows, 1500, rng(), strata).including(rows.mean(axis=1))
    np.testing.assert_allclose(limit[0] - limit[1], limit[2], atol=1e-9)
    for groups in (None, strata):
        monkeypatch.setattr(intervals, "NORMAL_LIMIT_QUERIES", NORMAL_LIMIT_QUERIES)
        limit_ends = np.array(mean_intervals(rows, 1500, 0.95, rng(), UNBOUNDED, groups))
        monkeypatch.setattr(intervals, "NORMAL_LIMIT_QUERIES", NORMAL_LIMIT_QUERIES + 1)
        ends = np.array(mean_intervals(rows, 1500, 0.95, rng(), UNBOUNDED, groups))
        assert (np.abs(limit_ends - ends) < 0.15 * (ends[1] - ends[0])).all()


def test_weights_are_those_of_the_bayesian_bootstrap(values: np.ndarray) -> None:
    """Moments of Dirichlet weights; the unseen query has half the weight of another one."""
    drawn = resample(np.stack([values, values**2]), 20_000, rng())
    queries = len(values)
    share = intervals.UNSEEN_SHAPE / (queries + intervals.UNSEEN_SHAPE)
    assert drawn.unseen.mean() == pytest.approx(share, rel=0.05)
    means = drawn.including(np.array([values.mean(), (values**2).mean()]))
    np.testing.assert_allclose(means.mean(axis=1), [values.mean(), (values**2).mean()], rtol=1e-3)
    assert means[0].std() == pytest.approx(values.std() / np.sqrt(queries + 1.5), rel=0.02)
    correlation = np.asarray(np.corrcoef(values, values**2))[0, 1]
    assert np.asarray(np.corrcoef(means))[0, 1] == pytest.approx(correlation, abs=0.01)


def test_an_interval_of_shares_is_that_of_jeffreys() -> None:
    """Up to the expansion for few queries: a little wider."""
    for right in (0, 1, 40, 99, 100):
        values = np.arange(100) < right
        low, high = interval(values.astype(float), rng=rng(), within=SHARES)
        low_jeffreys = stats.beta.ppf(0.025, right + 0.5, 100.5 - right) if right else 0.0
        high_jeffreys = stats.beta.ppf(0.975, right + 0.5, 100.5 - right) if right < 100 else 1.0
        assert low == pytest.approx(low_jeffreys, abs=0.011)
        assert high == pytest.approx(high_jeffreys, abs=0.011)
        assert high - low > 0.01


def test_few_queries_get_the_width_of_students_interval() -> None:
    """Of figures that look normal, where the range adds nothing."""
    few = stats.norm.ppf((np.arange(8) + 0.5) / 8)
    drawn = resample(few[None], 10_000, rng())
    known = drawn.including(np.zeros(1))
    [low], [high] = drawn.interval(np.zeros(1), np.zeros(1))
    student = stats.ttest_1samp(few, 0).confidence_interval(0.95)
    assert high - low == pytest.approx(student.high - student.low, rel=0.12)
    plain = np.quantile(known[0], [0.025, 0.975])
    assert np.diff(plain)[0] < 0.8 * (high - low)


@pytest.mark.parametrize(("queries", "tail"), [(1, 0.0), (2, 0.0), (90, 0.0223), (10**6, 0.025)])
def test_the_fewer_queries_the_less_is_cut_off(queries: int, tail: float) -> None:
    assert Strata.of(None, queries).tail() == pytest.approx(tail, abs=4e-4)
    assert expanded_tail(0, 1.0, 0.025) == 0
    many = Strata.of(np.arange(90) % 15, 90).tail()
    assert many < Strata.of(None, 90).tail()  # six queries each know less of their spread


@pytest.mark.parametrize("queries", [1, 2, 3, 5])
def test_very_few_queries_say_next_to_nothing(queries: int) -> None:
    """All equal, and gains on all of them: an interval is wide, and holds 0."""
    for gain in (0.0, 0.3, 1.0):
        low, high = interval(np.full(queries, gain), rng=rng())
        assert low < 0 <= gain <= high + 1e-12
        assert high - low > 0.3
    low, high = interval(np.full(queries, 0.002), rng=rng(), within=AMOUNTS)
    assert 0 <= low < 0.0015 < 0.0025 < high
    with pytest.raises(ValueError, match="no queries"):
        resample(np.empty((2, 0)), 10, rng())


@pytest.mark.parametrize("queries", [30, 90, 300, 900])
def test_no_interval_is_without_width(queries: int) -> None:
    """Three losses in the number of queries could be missed with a probability of 5 %."""
    low, high = interval(np.zeros(queries), rng=rng())
    assert low < -2 / queries
    assert high == pytest.approx(-low)
    low, high = interval(np.ones(queries), rng=rng(), within=SHARES)
    assert low < 1 - 2 / queries
    assert high == pytest.approx(1)
    equal = np.zeros((3, queries))
    low, high = simultaneous_intervals(equal, 10_000, 0.95, rng())
    assert (low < -2 / queries).all() and (high > 2 / queries).all()
    low, high = gap_closed_interval(equal[0], equal[1], equal[2] + 0.3, 10_000, 0.95, rng()) or (
        0,
        0,
    )
    assert high - low > 2 / queries
    low, high = share_interval(np.arange(queries), equal[0] == 0, 10_000, 0.95, rng())
    assert high - low > 2 / queries
    low, high = cost_ratio_interval(equal[0] + 0.1, equal[0] + 1, 10_000, 0.95, rng())
    assert low < 0.1 < high


RARE = {
    "rare loss": ((0.01, -1.0), DIFFERENCES),
    "loss": ((0.1, -1.0), DIFFERENCES),
    "rare win": ((0.03, 1.0), DIFFERENCES),
    "often right": ((0.01, -1.0), SHARES),
}


@pytest.mark.parametrize("kind", RARE)
@pytest.mark.parametrize("queries", [30, 90])
def test_intervals_of_rare_events_hold(kind: str, queries: int) -> None:
    (chance, change), within = RARE[kind]
    start = 1.0 if within is SHARES else 0.0
    truth = start + chance * change
    held = 0.0
    for count in range(queries // 3):
        values = np.where(np.arange(queries) < count, start + change, start)
        low, high = interval(values, 2000, rng=rng(), within=within)
        held += stats.binom.pmf(count, queries, chance) * (low <= truth <= high)
    assert held >= 0.93


@pytest.mark.parametrize("spread", [0.6, 1.5])
def test_intervals_of_skewed_costs_hold(spread: float) -> None:
    costs = np.random.default_rng(0).lognormal(0, spread, (1500, 30))
    low, high = mean_intervals(costs, 2000, 0.95, rng(), AMOUNTS)
    truth = np.exp(spread**2 / 2)
    assert np.mean((low <= truth) & (truth <= high)) >= 0.93
    assert (low > 0).all()


def test_means_over_data_sets_count_their_levels() -> None:
    """Two data sets, one easy and one hard: the difference between them is no doubt."""
    sampling = np.random.default_rng(0)
    levels = np.repeat([0.05, 0.95], 45)
    strata = np.repeat(["hard", "easy"], 45)
    held = []
    ratios = []
    for _ in range(500):
        values = (sampling.random(90) < levels).astype(float)
        low, high = interval(values, 1000, rng=rng(), within=SHARES, strata=strata)
        held.append(low <= levels.mean() <= high)
        wide = interval(values, 1000, rng=rng(), within=SHARES)
        ratios.append((high - low) / (wide[1] - wide[0]))
    assert np.mean(held) >= 0.93
    assert np.mean(ratios) < 0.6


def test_small_strata_are_taken_together() -> None:
    assert Strata.of(list("abbbbbb"), 7).sizes.tolist() == [7]
    assert Strata.of(list("aabbbcccccc"), 11).sizes.tolist() == [5, 6]
    assert Strata.of(list("abc"), 3).sizes.tolist() == [3]
    groups = Strata.of(list("bbbbbaaaaaa"), 11)
    assert groups.codes.tolist() == [0] * 5 + [1] * 6
    assert groups.shares.tolist() == [5 / 11, 6 / 11]
    values = np.zeros(12)
    one_each = interval(values, rng=rng(), strata=np.arange(12))
    assert one_each == interval(values, rng=rng())


def test_an_unseen_query_may_have_what_the_range_says() -> None:
    rows = np.array([[0.2, 0.4, 0.9]])
    assert [end.tolist() for end in SHARES.ends(rows)] == [[0.0], [1.0]]
    reach = 0.4 + intervals.REACH_BEYOND_SEEN * 0.5
    assert [end.tolist() for end in AMOUNTS.ends(rows)] == [[0.0], [pytest.approx(reach)]]
    # What was seen is possible, whatever the range says.
    assert [end.tolist() for end in SHARES.ends(rows * 2)] == [[0.0], [1.8]]
    costs = np.array([1.0, 1.0, 1.0])
    most = 1.0 + intervals.REACH_BEYOND_SEEN
    within = difference_range(0.1, costs, 2 * costs)
    assert within.low == pytest.approx(-1 - 0.1 * most)
    assert within.high == pytest.approx(1 + 0.2 * most)
    assert difference_range(0.1, np.empty(0), costs).low == -1


def test_ratios_hold_and_are_unknown_without_a_denominator() -> None:
    sampling = np.random.default_rng(0)
    held = []
    for _ in range(400):
        asked = (sampling.random(60) < 0.3).astype(float)
        right = asked * (sampling.random(60) < 0.9)
        ends = ratio_interval(right, asked, Ratio(0.0, 1.0), Ratio(1.0, 1.0), 1000, 0.95, rng())
        held.append(ends[0] <= 0.9 <= ends[1])
    assert np.mean(held) >= 0.93
    unknown = ratio_interval(
        np.zeros(9), np.zeros(9), Ratio(0.0, 0.0), Ratio(0.0, 0.0), 100, 0.95, rng()
    )
    assert unknown == (-np.inf, np.inf)


def test_influences_of_equal_weight_are_values() -> None:
    values = np.random.default_rng(0).random(200)
    ends = influence_interval(float(values.mean()), values - values.mean(), SHARES)
    alone = interval(values, rng=np.random.default_rng(0), within=SHARES)
    np.testing.assert_allclose(ends, alone, atol=1e-3)
    low, high = influence_interval(0.0, np.zeros(500), SHARES)
    assert high - low > 0.003
    assert np.isnan(influence_interval(np.nan, np.zeros(1))).all()


def half_errors(differences: np.ndarray, n: int = 4000) -> np.ndarray:
    """Half widths in standard errors: the critical value, where the range adds little."""
    low, high = simultaneous_intervals(differences, n, 0.95, rng(), UNBOUNDED)
    return (high - low) / 2 / (differences.std(axis=1, ddof=1) / np.sqrt(differences.shape[1]))


def test_all_hold_together() -> None:
    population = simulated.contest(seed=1)
    truth = population.mean(axis=1)

    def all_hold(sample: np.ndarray, _: np.random.Generator) -> np.ndarray:
        low, high = simultaneous_intervals(sample, 1000, 0.95, rng())
        return np.asarray(np.all((low <= truth) & (truth <= high)))

    assert simulated.coverage(population, 60, 300, all_hold) >= 0.93


def rare_losses(sampling: np.random.Generator, queries: int) -> Floats:
    """float64[20, queries]: cheaper by .01 than 20 policies, and worse by 1 once in 100 queries."""
    return 0.01 - (sampling.random((20, queries)) < 0.01).astype(float)


@pytest.mark.parametrize("queries", [30, 90])
def test_no_policy_is_better_than_one_of_twenty_equal_ones(queries: int) -> None:
    sampling = np.random.default_rng(0)
    claims = []
    for _ in range(150):
        low, _ = simultaneous_intervals(rare_losses(sampling, queries), 1000, 0.95, rng())
        claims.append((low > 0).any())
    assert np.mean(claims) <= 0.05


def test_one_of_unrelated_and_of_equal_comparisons() -> None:
    differences = np.random.default_rng(0).normal(size=(10, 2000))
    low, high = simultaneous_intervals(differences[:1], 4000, 0.95, rng())
    np.testing.assert_allclose(
        np.ravel([low, high]), interval(differences[0], 4000, rng=rng()), atol=2e-4
    )
    # Unrelated comparisons are as wide as Sidak's, and equal ones count once.
    wide = stats.norm.ppf((1 + 0.95**0.1) / 2)
    assert half_errors(differences) == pytest.approx(wide, rel=0.1)
    alone, many = half_errors(differences[:1])[0], half_errors(differences[[0] * 10])
    assert many == pytest.approx(alone, rel=0.01)
    # Three queries never say more together than alone.
    few = np.array([[1.0, 1.0, 0.0], [1.0, 0.9, 0.1], [0.0, 0.5, 0.4]])
    low, high = simultaneous_intervals(few, 4000, 0.95, rng())
    singly = mean_intervals(few, 4000, 0.95, rng())
    assert (low <= singly[0] + 1e-9).all() and (high >= singly[1] - 1e-9).all()


def test_what_never_varies_widens_nobody() -> None:
    varies = np.random.default_rng(0).normal(size=(1, 50))
    constant = np.zeros((2, 50))
    both = np.concatenate([varies, constant])
    low, high = simultaneous_intervals(both, 2000, 0.95, rng(), UNBOUNDED)
    alone, _ = simultaneous_intervals(varies, 2000, 0.95, rng(), UNBOUNDED)
    assert low[0] == pytest.approx(alone[0])
    np.testing.assert_allclose([low[1:], high[1:]], 0, atol=1e-12)  # nothing bounds them


def test_so_many_queries_show_a_difference() -> None:
    """Of what varies by 0.1: 787 by the normal distribution; the test itself finds it as often."""
    needed = queries_needed(0.01, 0.1)
    assert needed == pytest.approx(787, abs=3)
    assert queries_needed(1.0, 1e-9) == 2
    assert queries_needed(0.01, 0.1, 1.0) > needed
    drawn = np.random.default_rng(0).normal(0.3, 1.0, (20_000, queries_needed(0.3, 1.0)))
    found = np.mean(stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05)
    assert found == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("rate", [0.025, 0.005])
@pytest.mark.parametrize("share", [1.0, 0.05])
def test_so_many_queries_show_a_gain_by_the_interval(share: float, rate: float) -> None:
    """A gain of .03: on every query a little, or on one in twenty, which is found more often."""
    sampling = np.random.default_rng(0)
    size = 0.03 / share
    spread = 0.3 if share == 1 else 0.0
    deviation = np.sqrt(spread**2 + size**2 * share * (1 - share))
    needed = queries_needed(0.03, float(deviation), 1.0, rate)
    wins = sampling.random((300, needed)) < share
    gains = size * wins + spread * sampling.normal(size=wins.shape)
    low, _ = mean_intervals(gains, 1000, 1 - 2 * rate, rng(), DIFFERENCES)
    assert -0.08 < np.mean(low > 0) - intervals.TEST_POWER < (0.08 if share == 1 else 0.2)
