"""APGR and CPT of curves drawn by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hierrouter.evaluation.metrics import PairCurve, apgr, call_performance_threshold

STEP = PairCurve(np.array([0, 0.5, 1]), np.array([0.2, 0.6, 0.6]))


@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_a_router_without_an_opinion_is_chance(share: float) -> None:
    chance = PairCurve(np.array([0.0, 1]), np.array([0.2, 0.9]))
    assert apgr(chance) == pytest.approx(0.5)
    assert call_performance_threshold(chance, share) == pytest.approx(share)


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
