"""Means, intervals, differences and gaps against hand-made numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierrouter.evaluation.outcome import Outcome
from hierrouter.reports.results import Report
from hierrouter.reports.values import Bootstrap, Estimates, Row
from hierrouter_cache.errors import InputError
from tests.hierrouter.reports.examples import ALPHA, DATASETS, example, outcome, policies


def row(report: Report, policy: str, dataset: str = "all") -> Row:
    found = [row for row in report.rows if (row.policy, row.dataset) == (policy, dataset)]
    assert len(found) == 1
    return found[0]


def test_each_policy_has_a_row_for_each_dataset_and_for_all() -> None:
    report = example()
    assert report.datasets == ("gsm8k", "mbpp", "all")
    expected = [(policy.name, name) for policy in policies() for name in report.datasets]
    assert [(row.policy, row.dataset) for row in report.rows] == expected
    assert [row.n for row in report.by_policy[0]] == [2, 2, 4]


def test_means_are_those_of_the_queries() -> None:
    found = row(example(), "big", "mbpp")
    assert found.quality == pytest.approx(0.3)
    assert found.accuracy == 0
    assert found.cost == 4
    assert found.reward == pytest.approx(0.3 - ALPHA * 4)


def test_gap_closed_by_hand() -> None:
    """All: (.6 - .4) / (.8 - .4); gsm8k: (.5 - .6) / (.7 - .6); mbpp: (.7 - .7) / (.9 - .7)."""
    report = example()
    assert report.gap_closed == pytest.approx({"all": 0.5, "gsm8k": -1.0, "mbpp": 0.0})
    assert report.gap("all") == pytest.approx(0.4)


def test_no_gap_is_null() -> None:
    fixed = outcome("a>a", "route", [0.5] * 4)
    router = outcome("hierrouter", "router", [0.4] * 4)
    report = example([fixed, router, outcome("oracle", "oracle", [0.5 + 1e-12] * 4)])
    assert report.gap_closed == {"gsm8k": None, "mbpp": None, "all": None}


def test_without_a_router_there_are_baselines_only() -> None:
    report = example([policy for policy in policies() if policy.kind != "router"])
    assert report.router is None
    assert report.gap_closed == {}
    assert report.quality_factor is None
    assert all(
        row.difference is row.difference_low is row.difference_high is None for row in report.rows
    )


def test_difference_is_router_minus_policy_and_null_for_the_router() -> None:
    report = example()
    assert row(report, "a>a").difference == pytest.approx(0.6 - 0.3)
    assert row(report, "a>b", "gsm8k").difference == pytest.approx(0.5 - 0.1)
    assert row(report, "hierrouter").difference is None


def test_differences_are_paired() -> None:
    """A policy that is always 0.2 worse: each reward varies, the difference does not."""
    quality = np.random.default_rng(0).random(60)
    router = outcome("hierrouter", "router", quality.tolist())
    worse = outcome("a>a", "route", (quality - 0.2).tolist())
    found = row(example([router, worse], ["one"] * 60), "a>a")
    assert found.reward_high - found.reward_low > 0.05
    assert found.difference_low == pytest.approx(0.2)
    assert found.difference_high == pytest.approx(0.2)


def test_interval_has_the_width_of_the_normal_one() -> None:
    quality = np.random.default_rng(1).random(400)
    report = example([outcome("a", "single", quality.tolist())], ["one"] * 400, resamples=4000)
    found = row(report, "a")
    expected = 2 * 1.96 * quality.std() / 20
    assert found.reward_high - found.reward_low == pytest.approx(expected, rel=0.08)


@settings(deadline=None, max_examples=25)
@given(
    quality=st.lists(st.floats(0, 1), min_size=30, max_size=30),
    cost=st.lists(st.floats(0, 10), min_size=30, max_size=30),
)
def test_intervals_contain_the_mean(quality: list[float], cost: list[float]) -> None:
    found = row(example([outcome("a", "single", quality, cost)], ["one"] * 30), "a")
    slack = 1e-12
    assert found.reward_low - slack <= found.reward <= found.reward_high + slack


def test_many_policies_share_their_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = example()
    monkeypatch.setattr("hierrouter.reports.values.ROWS_AT_ONCE", 2)
    for one, other in zip(whole.rows, example().rows, strict=True):
        assert one.reward_low == pytest.approx(other.reward_low, abs=1e-12)
        assert one.difference_high == pytest.approx(other.difference_high, abs=1e-12)


def test_frontier_keeps_points_with_their_own_alpha() -> None:
    points = example().frontier
    assert [(point.policy, point.alpha) for point in points] == [
        ("hierrouter", 0.2),
        ("hierrouter", 0.1),
        ("oracle", 0.2),
        ("oracle", 0.1),
    ]
    assert points[0].reward == pytest.approx(points[0].quality - 0.2 * points[0].cost)


def test_best_breaks_ties_by_cost() -> None:
    dear = outcome("a", "single", [0.5] * 4, [2.0] * 4)
    cheap = outcome("b", "single", [0.5] * 4, [1.0] * 4)
    best = example([dear, cheap]).best("single", by="quality")
    assert best is not None and best.policy == "b"


def test_quality_factor_is_over_the_best_pool_model() -> None:
    assert example().quality_factor == pytest.approx(0.7 / 0.3)


NAN = Outcome("a", "single", np.array([np.nan] * 4), np.zeros(4), np.zeros(4))


@pytest.mark.parametrize(
    ("datasets", "outcomes", "message"),
    [
        ((), [], "no query"),
        (DATASETS, [], "no policy"),
        (("all",) * 4, policies(), "called 'all'"),
        (DATASETS, policies() * 2, "2 routers"),
        (DATASETS, [NAN], "not one finite number"),
        (DATASETS[:3], policies(), "not one finite number for each of 3 queries"),
    ],
)
def test_wrong_input_is_named(
    datasets: tuple[str, ...], outcomes: list[Outcome], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        example(outcomes, datasets)


@pytest.mark.parametrize(
    ("alpha", "bootstrap"),
    [
        (float("nan"), Bootstrap()),
        (0.1, Bootstrap(n=0)),
        (0.1, Bootstrap(level=1.0)),
        (0.1, Bootstrap(seed=-1)),
    ],
)
def test_impossible_settings_are_refused(alpha: float, bootstrap: Bootstrap) -> None:
    with pytest.raises(InputError, match=r"alpha|bootstrap"):
        example(found=Estimates(DATASETS, bootstrap), alpha=alpha)
