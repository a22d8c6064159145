"""Who is beaten for sure, and what the queries can show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hierrouter.evaluation.outcome import Outcome
from hierrouter.reports.results import Report
from hierrouter.reports.tables import claims_sentence
from tests.hierrouter.reports.examples import example, outcome, policies

QUERIES = 200


def rivals(by: list[float]) -> list[Outcome]:
    """A router, an oracle, and routes that are worse by so many standard errors."""
    rng = np.random.default_rng(0)
    quality = rng.random(QUERIES)
    noise = rng.normal(size=(len(by), QUERIES))
    noise = (noise - noise.mean(axis=1, keepdims=True)) / noise.std(axis=1, keepdims=True)
    worse = quality - 0.1 * (noise + np.array(by)[:, None] / np.sqrt(QUERIES))
    routes = [outcome(f"r{at}", "route", row.tolist()) for at, row in enumerate(worse)]
    oracle = outcome("oracle", "oracle", (quality + 1).tolist())
    return [outcome("hierrouter", "router", quality.tolist()), *routes, oracle]


def report(by: list[float]) -> Report:
    return example(rivals(by), ["one"] * QUERIES, resamples=2000)


def test_a_small_lead_counts_alone_but_not_among_many() -> None:
    """2.3 standard errors are beyond 1.96, and not beyond the largest of ten."""
    said = claims_sentence(report([9.0] * 8 + [2.3, 0.0]))
    assert said.startswith(
        "HierRouter beats 9 of 10 policies one at a time and 8 when all 10 comparisons are to "
        "hold at once (95%, max-t): all but r8, r9. "
    )


def test_oracle_and_router_are_no_rivals() -> None:
    assert [one.policy for one in report([1.0, 2.0]).comparisons] == ["r0", "r1"]


def test_of_equal_routes_the_cheaper_one_is_the_rival() -> None:
    """The dear route is better by exactly what it costs more: 0.1 * 10."""
    dear = outcome("dear", "route", [1.5, 1.25, 1.5, 1.25] * 3, [10.0] * 12)
    cheap = outcome("cheap", "route", [0.5, 0.25, 0.5, 0.25] * 3, [0.0] * 12)
    router = outcome("hierrouter", "router", [0.9, 0.5, 0.2, 1.0] * 3)
    found = example([router, dear, cheap], ["one"] * 12).power
    assert found is not None and found.policy == "cheap"


def test_of_few_queries_nobody_says_what_more_would_show() -> None:
    worse = outcome("worse", "route", [0.5, 0.25, 0.5, 0.25])
    router = outcome("hierrouter", "router", [0.9, 0.5, 0.2, 1.0])
    assert example([router, worse]).power is None


def test_many_names_are_cut() -> None:
    said = claims_sentence(report([9.0, *[0.0] * 8]))
    assert "all but r1, r2, r3, r4, r5 and 3 more." in said


def test_nobody_is_beaten() -> None:
    said = claims_sentence(report([0.0] * 3))
    assert said.startswith("HierRouter beats 0 of 3 policies one at a time and 0 when all 3 ")
    assert "all but" not in said


def test_intervals_for_all_at_once_are_wider_than_one_by_one() -> None:
    found = report([3.0] * 5)
    rows = {row.policy: row for row in found.overall}
    for one in found.comparisons:
        row = rows[one.policy]
        assert row.difference_low is not None and row.difference_high is not None
        assert one.difference == pytest.approx(row.difference)
        assert one.difference_low < row.difference_low < row.difference_high < one.difference_high


def test_what_the_queries_can_show() -> None:
    """Differences vary by 0.1: 2.8 * 0.1 / sqrt(200) at 200 queries, 787 for a hundredth."""
    found = report([9.0, 3.0])
    assert found.power is not None
    assert found.power.policy == "r1"
    assert found.power.deviation == pytest.approx(0.1, rel=0.01)
    assert found.power.smallest_difference == pytest.approx(0.0199, abs=1e-4)
    assert found.power.queries == pytest.approx(790, abs=5)
    assert "200 queries can show a difference of 0.020" in claims_sentence(found)


def test_without_a_router_nothing_is_claimed() -> None:
    found = example([policy for policy in policies() if policy.kind != "router"])
    assert (found.comparisons, found.power, claims_sentence(found)) == ((), None, "")


def test_a_single_query_claims_nothing() -> None:
    found = example([replace(policy, **first(policy)) for policy in policies()], ["one"])
    assert (found.comparisons, found.power) == ((), None)


def first(policy: Outcome) -> dict[str, np.ndarray]:
    return {name: getattr(policy, name)[:1] for name in ("quality", "accuracy", "cost")}


def test_a_router_that_is_a_fixed_route_needs_no_queries() -> None:
    route = outcome("a>a", "route", [0.5, 0.2, 0.9, 0.1])
    router = replace(route, name="hierrouter", kind="router")
    assert example([route, router]).power is None
