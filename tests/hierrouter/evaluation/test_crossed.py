"""Seeds and queries against known variance components."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hierrouter.evaluation.intervals import crossed_interval
from tests.hierrouter.evaluation.simulated import grid

LARGE = 1e6  # degrees of freedom


def test_the_variance_is_that_of_the_components() -> None:
    """Half width over t, with so many seeds and queries that t is the normal quantile."""
    seeds, queries, deviations = 200, 300, (0.3, 0.5, 0.8)
    values = grid(np.random.default_rng(0), seeds, queries, deviations)
    low, high = crossed_interval(values)
    of_seed, of_query, of_both = np.square(deviations)
    variance = of_seed / seeds + of_query / queries + of_both / (seeds * queries)
    assert ((high - low) / 2 / 1.96) ** 2 == pytest.approx(variance, rel=0.15)


@pytest.mark.parametrize(("seeds", "apart"), [(3, 0), (3, 0.02), (5, 0), (5, 0.02), (5, 0.3)])
def test_it_holds_the_mean_of_all_seeds_and_queries(seeds: int, apart: float) -> None:
    rng = np.random.default_rng(2)
    values = np.array([grid(rng, seeds, 90, (apart, 0.45, 0.2)) for _ in range(1500)])
    low, high = crossed_interval(values)
    assert np.mean((low <= 0) & (high >= 0)) >= 0.93


def test_equal_seeds_leave_the_queries() -> None:
    one = np.random.default_rng(0).random(60)
    low, high = crossed_interval(np.tile(one, (4, 1)))
    assert (low, high) == pytest.approx(tuple(stats.ttest_1samp(one, 0).confidence_interval(0.95)))


def test_equal_queries_leave_the_seeds() -> None:
    seeds = np.array([[0.1], [0.5], [0.3]])
    low, high = crossed_interval(np.tile(seeds, (1, 40)))
    student = stats.ttest_1samp(seeds[:, 0], 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx(tuple(student))


def test_nothing_varies() -> None:
    low, high = crossed_interval(np.full((2, 3, 4), 0.5))
    np.testing.assert_allclose([low, high], 0.5)


def test_figures_are_kept_apart() -> None:
    values = np.random.default_rng(0).random((3, 4, 20))
    low, high = crossed_interval(values, 0.9)
    assert (low[1], high[1]) == pytest.approx(crossed_interval(values[1], 0.9))
