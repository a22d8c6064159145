"""How sure the share of the gap closed is."""

from __future__ import annotations

import numpy as np
import pytest

from hierrouter.evaluation.intervals import gap_closed_interval
from tests.hierrouter.evaluation import simulated


def ends(router: np.ndarray, fixed: np.ndarray, oracle: np.ndarray) -> tuple[float, float] | None:
    rng = np.random.default_rng(0)
    return gap_closed_interval(router, fixed, oracle, 2000, 0.95, rng)


def test_a_share_that_is_the_same_on_every_query_is_certain() -> None:
    """The gap varies, and with it the numerator: both are of the same resample."""
    fixed = np.random.default_rng(1).random(80)
    gap = np.random.default_rng(2).random(80)
    assert ends(fixed + 0.4 * gap, fixed, fixed + gap) == pytest.approx((0.4, 0.4))


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


def test_a_gap_that_may_be_nil_bounds_nothing() -> None:
    fixed = np.zeros(40)
    oracle = np.r_[1.0, np.zeros(39)]  # missing from a third of the resamples
    assert ends(oracle / 2, fixed, oracle) is None


def test_a_rare_resample_without_a_gap_is_left_to_the_tails() -> None:
    """Six of 40 queries have a gap: two resamples in a thousand have none."""
    oracle = np.r_[np.ones(6), np.zeros(34)]
    router = np.r_[np.ones(3), np.zeros(37)]
    found = ends(router, np.zeros(40), oracle)
    assert found is not None
    assert 0 <= found[0] < 0.5 < found[1] <= 1
