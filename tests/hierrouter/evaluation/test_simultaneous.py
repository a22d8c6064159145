"""Intervals that hold all at once."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hierrouter.evaluation.intervals import simultaneous_intervals
from tests.hierrouter.evaluation import simulated


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def half_errors(differences: np.ndarray, n: int = 4000) -> np.ndarray:
    """Half widths in standard errors: the critical value."""
    low, high = simultaneous_intervals(differences, n, 0.95, rng())
    error = differences.std(axis=1, ddof=1) / np.sqrt(differences.shape[1])
    return (high - low) / 2 / error


def test_all_hold_together() -> None:
    population = simulated.contest(seed=1)
    truth = population.mean(axis=1)

    def all_hold(sample: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        low, high = simultaneous_intervals(sample, 1000, 0.95, rng)
        return np.all((low <= truth) & (truth <= high))

    assert simulated.coverage(population, 90, 600, all_hold) >= 0.93


def test_one_comparison_is_students_interval() -> None:
    differences = np.random.default_rng(0).normal(size=(1, 200))
    assert half_errors(differences) == pytest.approx(stats.t.ppf(0.975, 199), rel=0.03)


def test_unrelated_comparisons_are_as_wide_as_sidaks() -> None:
    differences = np.random.default_rng(0).normal(size=(10, 2000))
    sidak = stats.norm.ppf((1 + 0.95**0.1) / 2)
    assert half_errors(differences) == pytest.approx(sidak, rel=0.02)


def test_equal_policies_count_once() -> None:
    differences = np.random.default_rng(0).normal(size=(1, 200))
    alone, many = half_errors(differences)[0], half_errors(np.repeat(differences, 10, axis=0))
    assert many == pytest.approx(alone)


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


def test_three_queries_never_say_more_together_than_alone() -> None:
    differences = np.array([[1.0, 1.0, 0.0], [1.0, 0.9, 0.1], [0.0, 0.5, 0.4]])
    assert (half_errors(differences) >= stats.t.ppf(0.975, 2) * (1 - 1e-9)).all()
