"""Means, intervals, differences, gaps, sweeps and claims against hand-made numbers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierrouter.reports.estimates import Row
from hierrouter.reports.results import ReportData
from hierrouter.reports.tables import claims_sentence, cost_table
from tests.hierrouter.reports import examples


def row(report: ReportData, policy: str, dataset: str = "all") -> Row:
    [result_row] = [row for row in report.rows if (row.policy, row.dataset) == (policy, dataset)]
    return result_row


def test_each_policy_has_a_row_for_each_dataset_and_for_all() -> None:
    report = examples.example()
    assert report.datasets == ("gsm8k", "mbpp", "all")
    expected = [(policy.name, name) for policy in examples.policies() for name in report.datasets]
    assert [(row.policy, row.dataset) for row in report.rows] == expected
    assert [row.n for row in report.by_policy[0]] == [2, 2, 4]
    result_row = row(report, "big", "mbpp")
    assert (result_row.accuracy, result_row.cost) == (0, 4)
    assert (result_row.quality, result_row.reward) == pytest.approx((0.3, 0.3 - examples.ALPHA * 4))


def test_gap_closed_by_hand() -> None:
    """All: (.6 - .4) / (.8 - .4); gsm8k: (.5 - .6) / (.7 - .6); mbpp: (.7 - .7) / (.9 - .7)."""
    report = examples.example()
    assert report.gap_closed == pytest.approx({"all": 0.5, "gsm8k": -1.0, "mbpp": 0.0})
    assert report.gap("all") == pytest.approx(0.4)
    fixed = examples.outcome("a>a", "route", [0.5] * 4)
    router = examples.outcome("hierrouter", "router", [0.4] * 4)
    tiny = examples.example(
        [fixed, router, examples.outcome("oracle", "oracle", [0.5 + 1e-12] * 4)]
    )
    assert tiny.gap_closed == {"gsm8k": None, "mbpp": None, "all": None}


def test_without_a_router_nothing_is_compared() -> None:
    report = examples.untrained()
    assert report.router is None
    assert (report.gap_closed, report.comparisons, claims_sentence(report)) == ({}, (), "")
    assert {(row.difference, row.difference_low) for row in report.rows} == {(None, None)}


def test_difference_is_router_minus_policy_paired_and_null_for_the_router() -> None:
    report = examples.example()
    assert row(report, "a>a").difference == pytest.approx(0.6 - 0.3)
    assert row(report, "a>b", "gsm8k").difference == pytest.approx(0.5 - 0.1)
    assert row(report, "hierrouter").difference is None
    # A policy that is always 0.2 worse: each reward varies, the difference does not.
    quality = np.random.default_rng(0).random(60)
    router = examples.outcome("hierrouter", "router", quality.tolist())
    worse = examples.outcome("a>a", "route", (quality - 0.2).tolist())
    result_row = row(examples.example([router, worse], ["one"] * 60), "a>a")
    assert result_row.reward_high - result_row.reward_low > 0.05
    assert result_row.difference_low < 0.2 < result_row.difference_high
    width = result_row.difference_high - result_row.difference_low
    assert width < 0.8 * (result_row.reward_high - result_row.reward_low)


@settings(deadline=None, max_examples=25)
@given(
    quality=st.lists(st.floats(0, 1), min_size=30, max_size=30),
    cost=st.lists(st.floats(0, 10), min_size=30, max_size=30),
)
def test_intervals_contain_the_mean(quality: list[float], cost: list[float]) -> None:
    result_row = row(
        examples.example([examples.outcome("a", "single", quality, cost)], ["one"] * 30), "a"
    )
    assert result_row.reward_low - 1e-12 <= result_row.reward <= result_row.reward_high + 1e-12


def test_many_policies_share_their_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = examples.example()
    monkeypatch.setattr("hierrouter.reports.estimates.ROWS_AT_ONCE", 2)
    for one, other in zip(whole.rows, examples.example().rows, strict=True):
        assert one.reward_low == pytest.approx(other.reward_low, abs=1e-12)
        assert one.difference_high == pytest.approx(other.difference_high, abs=1e-12)


def test_ties_are_broken_by_cost() -> None:
    dear = examples.outcome("a", "single", [0.5] * 4, [2.0] * 4)
    cheap = examples.outcome("b", "single", [0.5] * 4, [1.0] * 4)
    best = examples.example([dear, cheap], alpha=0.0).best("single")
    assert best is not None and best.policy == "b"


def test_frontier_keeps_points_with_their_own_alpha() -> None:
    points = examples.example().frontier
    expected = [(name, alpha) for name in ("hierrouter", "oracle") for alpha in (0.2, 0.1)]
    assert [(point.policy, point.alpha) for point in points] == expected
    assert points[0].reward == pytest.approx(points[0].quality - 0.2 * points[0].cost)
    dear = examples.outcome("oracle", "oracle", [1.0] * 4, [9.0] * 4)
    (bound,) = examples.example(frontier=[(0.2, dear)]).frontier
    assert bound.cost_low < bound.cost == 9 < bound.cost_high
    assert bound.reward == pytest.approx(1 - 0.2 * 9)
    assert examples.example(frontier=[]).frontier == ()


# --- claims: who is beaten for sure

QUERIES = 200


def rivals(by: list[float]) -> ReportData:
    """Of a router, an oracle, and routes that are worse by so many standard errors."""
    rng = np.random.default_rng(0)
    quality = rng.random(QUERIES)
    noise = rng.normal(size=(len(by), QUERIES))
    noise = (noise - noise.mean(axis=1, keepdims=True)) / noise.std(axis=1, keepdims=True)
    worse = quality - 0.5 * (noise + np.array(by)[:, None] / np.sqrt(QUERIES))
    routes = [examples.outcome(f"r{at}", "route", row.tolist()) for at, row in enumerate(worse)]
    oracle = examples.outcome("oracle", "oracle", (quality + 1).tolist())
    router = examples.outcome("hierrouter", "router", quality.tolist())
    return examples.example([router, *routes, oracle], ["one"] * QUERIES, resamples=2000)


def test_a_small_lead_counts_alone_but_not_among_many() -> None:
    """2.5 standard errors are beyond 1.96, and not beyond the largest of ten."""
    said = claims_sentence(rivals([9.0] * 8 + [2.5, 0.0]))
    assert said.startswith(
        "HierRouter beats 9 of 10 policies one at a time and 8 when all 10 comparisons are to "
        "hold at once (95%, min-p): all but r8, r9."
    )
    assert "all but r1, r2, r3, r4, r5 and 3 more." in claims_sentence(rivals([9.0, *[0.0] * 8]))
    said = claims_sentence(rivals([0.0] * 3))
    assert said.startswith("HierRouter beats 0 of 3 policies one at a time and 0 when all 3 ")
    assert "all but" not in said


def test_intervals_for_all_at_once_are_wider_than_one_by_one() -> None:
    report = rivals([3.0] * 5)
    rows = {row.policy: row for row in report.overall}
    assert [one.policy for one in report.comparisons] == ["r0", "r1", "r2", "r3", "r4"]
    for one in report.comparisons:
        row = rows[one.policy]
        assert one.difference == pytest.approx(row.difference)
        assert one.difference_low < row.difference_low < row.difference_high < one.difference_high


def test_savings_are_of_the_mean_cost_against_the_best_and_the_dearest_model() -> None:
    """Of each model: C(router) / C(model) over the same queries, which the bootstrap pairs."""
    cost = np.linspace(1, 5, 40)
    router = examples.outcome("r", "router", [0.8] * 40, cost)
    good = examples.outcome("good", "single", [0.8] * 40, 2 * cost)
    dear = examples.outcome("dear", "reference", [0.9, 0.6] * 20, 3 * cost)
    report = examples.example([router, good, dear], ["one"] * 40)
    best, dearest = report.savings
    assert (best.policy, best.which, dearest.policy, dearest.which) == (
        *("good", "best"),
        *("dear", "dearest"),
    )
    # The same on every question, so that only an unseen one could differ.
    assert best.share == pytest.approx(1 / 2)
    assert best.low < 1 / 2 < best.high
    assert best.high - best.low < 0.1
    assert best.quality_low < best.quality == 0 < best.quality_high < 0.1
    assert dearest.share == pytest.approx(2 / 3)
    assert dearest.quality == pytest.approx(0.05)
    assert dearest.quality_low < 0.05 < dearest.quality_high
    said = cost_table(report).note
    assert "saves 50.0% of the cost of good, the model with the highest Q" in said
    dearer = replace(router, cost=5 * cost)
    said = cost_table(examples.example([dearer, good], ["one"] * 40)).note
    assert "costs 150.0% more than good, the model with the highest Q (95% interval [1" in said
    worse = replace(router, quality=router.quality - 0.1)
    said = cost_table(examples.example([worse, good], ["one"] * 40)).note
    assert (
        "Against good, the model with the highest Q, nothing is saved at equal quality: Q -0.100"
        in said
    )
    assert len(examples.example([worse, good], ["one"] * 40).savings) == 1
    assert not examples.example([router, replace(good, cost=0 * cost)], ["one"] * 40).savings


def test_too_little_to_tell_claims_nothing() -> None:
    names = ("quality", "accuracy", "cost")
    single = [
        replace(policy, **{name: getattr(policy, name)[:1] for name in names})
        for policy in examples.policies()
    ]
    assert examples.example(single, ["one"]).comparisons == ()
