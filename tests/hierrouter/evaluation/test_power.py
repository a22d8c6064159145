"""Sample sizes against simulated tests and the textbook."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hierrouter.evaluation.intervals import queries_needed, smallest_difference


@pytest.mark.parametrize(("queries", "power"), [(12, 0.8), (90, 0.8), (90, 0.5)])
def test_the_smallest_difference_is_found_as_often_as_promised(queries: int, power: float) -> None:
    difference = smallest_difference(0.4, queries, power=power)
    noncentrality = np.sqrt(queries) * difference / 0.4
    critical = stats.t.ppf(0.975, queries - 1)
    assert stats.nct.sf(critical, queries - 1, noncentrality) == pytest.approx(power, abs=1e-5)
    drawn = np.random.default_rng(0).normal(difference, 0.4, (20_000, queries))
    found = stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(power, abs=0.01)


def test_many_queries_follow_the_normal_distribution() -> None:
    assert smallest_difference(0.45, 90_000) == pytest.approx(2.8016 * 0.45 / 300, rel=1e-4)


def test_a_medium_effect_takes_34_queries() -> None:
    """Cohen 1988, table 2.4.1: d = 0.5, two-sided 5 %, power .80, paired."""
    assert queries_needed(0.5, 1.0) == 34


def test_the_number_of_queries_is_the_fewest() -> None:
    for wanted in (0.01, 0.05, 0.3):
        queries = queries_needed(wanted, 0.4)
        assert smallest_difference(0.4, queries) <= wanted < smallest_difference(0.4, queries - 1)


def test_two_queries_are_the_fewest_there_can_be() -> None:
    assert queries_needed(1e9, 0.1) == 2
