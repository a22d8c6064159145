"""The mean of several seeds, how far they lie apart, and how sure it is."""

from __future__ import annotations

import numpy as np
import pytest

from hierrouter.evaluation.intervals import crossed_interval
from hierrouter.reports.build import FrontierPoint
from hierrouter.reports.values import Bootstrap, Estimates, Row
from tests.hierrouter.reports.examples import example, outcome

SEEDS = (
    outcome("hierrouter", "router", [0.8, 0.6], [2.0, 4.0]),
    outcome("hierrouter", "router", [0.2, 0.4], [1.0, 1.0]),
    outcome("hierrouter", "router", [0.5, 0.5], [0.5, 0.5]),
)


def rows(*points: FrontierPoint) -> tuple[Row, ...]:
    outcomes = [points[0].by_seed[0]] if points else [SEEDS[0]]
    datasets = ["one"] * len(outcomes[0].quality)
    return example(outcomes, found=Estimates(datasets, Bootstrap(n=500)), frontier=points).frontier


def test_a_point_is_the_mean_of_its_seeds() -> None:
    (row,) = rows(FrontierPoint(0.1, SEEDS))
    assert (row.policy, row.kind, row.alpha) == ("hierrouter", "router", 0.1)
    assert row.quality == pytest.approx(0.5)
    assert row.cost == pytest.approx(1.5)
    assert row.reward == pytest.approx(0.35)


def test_the_spread_is_from_the_lowest_to_the_highest_seed() -> None:
    """Of each figure on its own: the best seed by quality is not the best one by reward."""
    assert rows(FrontierPoint(0.1, SEEDS))[0].spread == Row(
        seeds=3,
        quality=pytest.approx((0.3, 0.7)),
        cost=pytest.approx((0.5, 3.0)),
        reward=pytest.approx((0.2, 0.45)),
    )


def test_one_seed_has_no_spread() -> None:
    (row,) = rows(FrontierPoint(0.1, SEEDS[:1]))
    assert row.spread is row.crossed is None


def test_seeds_are_averaged_within_a_query_before_resampling() -> None:
    """Two seeds that are right on each other's mistakes: their mean does not vary."""
    first = np.random.default_rng(0).integers(2, size=50).astype(float)
    seeds = [outcome("hierrouter", "router", one.tolist()) for one in (first, 1 - first)]
    together, alone = rows(FrontierPoint(0.0, tuple(seeds)), FrontierPoint(0.0, (seeds[0],)))
    assert together.quality_low == pytest.approx(0.5) == together.quality_high
    assert alone.quality_high - alone.quality_low > 0.2


def test_points_are_kept_apart() -> None:
    dear = outcome("oracle", "oracle", [1.0, 1.0], [9.0, 9.0])
    learned, bound = rows(FrontierPoint(0.1, SEEDS), FrontierPoint(0.2, (dear,)))
    assert (learned.cost_low, learned.cost_high) == pytest.approx((3.5 / 3, 5.5 / 3))
    assert (bound.cost_low, bound.cost, bound.cost_high) == (9, 9, 9)
    assert bound.reward_high == pytest.approx(1 - 0.2 * 9)


def test_other_seeds_and_other_queries() -> None:
    crossed = rows(FrontierPoint(0.1, SEEDS))[0].crossed
    assert crossed is not None
    low, high = crossed_interval(np.array([seed.reward(0.1) for seed in SEEDS]))
    assert crossed.reward == pytest.approx((low, high))
    low, high = crossed_interval(np.array([seed.cost for seed in SEEDS]))
    assert crossed.cost == pytest.approx((low, high))


def test_a_sweep_without_points() -> None:
    assert rows() == ()
