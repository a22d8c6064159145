"""The mean of several seeds, and how far they lie apart."""

from __future__ import annotations

import pytest

from hierrouter.report.results import Spread
from hierrouter.report.swept import FrontierPoint, frontier_row
from tests.hierrouter.report.examples import outcome

SEEDS = (
    outcome("hierrouter", "router", [0.8, 0.6], [2.0, 4.0]),
    outcome("hierrouter", "router", [0.2, 0.4], [1.0, 1.0]),
    outcome("hierrouter", "router", [0.5, 0.5], [0.5, 0.5]),
)


def test_a_point_is_the_mean_of_its_seeds() -> None:
    row = frontier_row(FrontierPoint(0.1, SEEDS))
    assert (row.policy, row.kind, row.alpha) == ("hierrouter", "router", 0.1)
    assert row.quality == pytest.approx(0.5)
    assert row.cost == pytest.approx(1.5)
    assert row.reward == pytest.approx(0.35)


def test_the_spread_is_from_the_lowest_to_the_highest_seed() -> None:
    """Of each figure on its own: the best seed by quality is not the best one by reward."""
    assert frontier_row(FrontierPoint(0.1, SEEDS)).spread == Spread(
        seeds=3,
        quality=pytest.approx((0.3, 0.7)),
        cost=pytest.approx((0.5, 3.0)),
        reward=pytest.approx((0.2, 0.45)),
    )


def test_one_seed_has_no_spread() -> None:
    assert frontier_row(FrontierPoint(0.1, SEEDS[:1])).spread is None
