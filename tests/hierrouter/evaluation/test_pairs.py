"""APGR and CPT against thresholds tried one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hierrouter.evaluation.metrics import PairCurve, apgr, call_performance_threshold, pair_curve
from tests.hierrouter.evaluation.enumeration import unhurried

# Preference, Q of the weak and Q of the strong model of each query; many ties.
queries = arrays(
    np.float64,
    st.tuples(st.integers(1, 12), st.just(3)),
    elements=st.integers(0, 4),
    fill=st.nothing(),
)
STEP = PairCurve(np.array([0, 0.5, 1]), np.array([0.2, 0.6, 0.6]))


@unhurried
@given(queries)
def test_the_curve_holds_every_threshold(rows: np.ndarray) -> None:
    preference, weak, strong = rows.T
    curve = pair_curve(preference, weak, strong)
    thresholds = sorted({np.inf, *preference}, reverse=True)
    assert len(curve.share) == len(thresholds)
    for number, threshold in enumerate(thresholds):
        called = [bool(wanted >= threshold) for wanted in preference]
        reached = [two if yes else one for yes, one, two in zip(called, weak, strong, strict=True)]
        assert curve.share[number] == pytest.approx(np.mean(called))
        assert curve.quality[number] == pytest.approx(np.mean(reached))


@unhurried
@given(queries)
def test_a_router_without_an_opinion_is_chance(rows: np.ndarray) -> None:
    weak, strong = rows[:, 1], rows[:, 2] + 5
    curve = pair_curve(np.zeros(len(rows)), weak, strong)
    assert apgr(curve) == pytest.approx(0.5)
    for share in (0, 0.3, 1):
        assert call_performance_threshold(curve, share) == pytest.approx(share)


def test_a_step_by_hand() -> None:
    """All of the gap with half of the calls: the triangle and the square."""
    assert apgr(STEP) == pytest.approx(0.25 + 0.5)
    assert call_performance_threshold(STEP, 0.5) == pytest.approx(0.25)
    assert call_performance_threshold(STEP, 0.8) == pytest.approx(0.4)
    assert call_performance_threshold(STEP, 1.0) == pytest.approx(0.5)


def test_the_least_share_counts_where_more_calls_do_harm() -> None:
    curve = PairCurve(np.array([0, 0.25, 0.5, 1]), np.array([0.2, 0.7, 0.4, 0.6]))
    assert call_performance_threshold(curve, 1.0) == pytest.approx(0.2)
    recovered = curve.recovered()
    assert recovered is not None
    assert recovered.tolist() == pytest.approx([0, 1.25, 0.5, 1])


@pytest.mark.parametrize("strong", [0.2, 0.1, 0.204], ids=["equal", "worse", "hardly better"])
def test_without_a_gap_nothing_is_defined(strong: float) -> None:
    curve = PairCurve(np.array([0.0, 1]), np.array([0.2, strong]))
    assert apgr(curve) is None
    assert call_performance_threshold(curve, 0.5) is None
