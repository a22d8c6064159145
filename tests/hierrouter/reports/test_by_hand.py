"""Analyses of a tree that can be worked out on paper, see `tiny`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hierrouter.evaluation.bounds import Regret, split_regret
from hierrouter.evaluation.outcome import Outcome, at_nodes
from hierrouter.reports.analysis import add_hulls, add_regret, static_arms
from hierrouter.reports.evaluated import report_on
from hierrouter.reports.results import Report
from hierrouter.reports.values import Bootstrap, Estimates, Row, pivot
from hierrouter_cache.tree import RouteTree, sub_pool
from tests.hierrouter.reports.tiny import AB, ALPHA, BA, tiny

QUICK = Bootstrap(n=50)


def found(tree: RouteTree | None = None) -> Report:
    return report_on(tree or tiny(), ALPHA, None, None, {}, "test", QUICK)


def always(fold: RouteTree, node: int) -> np.ndarray:
    endings = np.zeros((len(fold), fold.routes.nodes))
    endings[:, node] = 1
    return endings


def test_the_ladder() -> None:
    rungs = {(row.rung, row.dataset): row for row in found().ladder}
    rewards = {rung: row.reward for (rung, dataset), row in rungs.items() if dataset == "all"}
    assert rewards == pytest.approx(
        {
            "random": 0.25 - 0.3,
            "best fixed route": 0.5 - 0.3,
            "best route per dataset": 0.5 - 0.3,
            "tree oracle": 0.7,
            "anytime oracle": 0.7,
        }
    )
    fixed = rungs["best fixed route", "two"]
    assert (fixed.policy, fixed.n, fixed.quality, fixed.cost) == ("a>b", 1, 0, 3)
    assert rungs["random", "all"].policy == "random"


def regret(train: tuple[Sequence[str], Regret]) -> tuple[Row, ...]:
    """Of a>b on each query of the test fold."""
    test = tiny().split("test")
    table = Estimates(test.datasets, QUICK)
    add_regret(table, "a>b", split_regret(test, ALPHA, always(test, AB)), train)
    return pivot(table.table(), "regret", "policy", "dataset", "n")


def test_regret_and_what_it_is_more_than_on_train() -> None:
    """a>b on the second query: a leaves a>a at -.2 of .7, then b costs .1 more for nothing."""
    train = tiny().split("train")
    lost = split_regret(train, ALPHA, always(train, AB))
    rows = {row.dataset: row for row in regret((train.datasets, lost))}
    two = rows["two"]
    assert (two.whole, two.plan, two.adaptivity) == pytest.approx((1.0, 0.9, 0.1))
    assert rows["one"].whole == pytest.approx(0)
    assert rows["all"].whole == pytest.approx(0.5)
    assert rows["all"].more_plan == pytest.approx(0.45)  # nothing is lost on train


def test_a_dataset_that_train_lacks_has_no_generalisation() -> None:
    test = tiny().split("test")
    lost = split_regret(test, ALPHA, always(test, AB))
    rows = regret((("one", "one"), lost))
    assert [row.more_whole is None for row in rows] == [False, True, False]


def test_the_oracle_calls_each_model_once() -> None:
    calls = {(row.hop, row.model): row.calls for row in found().calls}
    assert calls == {(1, "a"): 0.5, (1, "b"): 0.5, (2, "a"): 0.5, (2, "b"): 0.5}


def test_repair_and_damage() -> None:
    """Every first answer is wrong; b repairs that of a on the first query, a that of b."""
    rows = {(row.before, row.model): row for row in found().repair}
    assert {pair: row.repair for pair, row in rows.items()} == {
        ("a", "a"): 0,
        ("a", "b"): 0.5,
        ("b", "a"): 0.5,
        ("b", "b"): 0,
    }
    assert {row.damage for row in rows.values()} == {0}
    assert (rows["a", "b"].right, rows["a", "b"].cost) == (0, 2)


def test_what_the_models_are_worth() -> None:
    """The oracle alone with a has -.2, with b -.4, with both .7."""
    a, b = found().models
    assert (a.reward_lost, a.reward_shapley) == pytest.approx((1.1, 0.45))
    assert (b.reward_lost, b.reward_shapley) == pytest.approx((0.9, 0.25))
    assert (a.reward_error, a.share, b.share) == (0, 0.5, 0.5)
    # 1 - .1 (x + 2) falls to the -.4 of b>b, 1 - .1 (1 + 2 x) to the -.2 of a>a.
    assert (a.leaves, b.leaves) == pytest.approx((12, 5.5))
    assert (a.below_5_percent, b.below_5_percent) == pytest.approx((12, 5.5))


def test_what_the_models_add_to_the_frontier() -> None:
    """With both, Q rises from 0 at a cost of 2 to 1 at 3: .5 on average; one alone has none."""
    a, b = found().models
    assert (a.area_lost, a.area_shapley) == pytest.approx((0.5, 0.25))
    assert (b.area_lost, b.area_shapley) == pytest.approx((0.5, 0.25))


def test_a_model_that_is_always_called_never_leaves() -> None:
    (only,) = found(sub_pool(tiny(), ["a"])).models
    assert (only.share, only.leaves, only.below_5_percent) == (1, None, None)


def hulls(routers: list[Outcome]) -> dict[str, Row]:
    fold = tiny().split("test")
    arms = static_arms(tiny().split("train"), fold, False)
    assert arms is not None
    table = Estimates(fold.datasets, QUICK)
    add_hulls(table, fold, arms, routers)
    return {row.policy: row for row in pivot(table.table(), "hulls", "policy", "kind", "n")}


def values(row: Row) -> list[float | None]:
    return [row.mean_quality, row.cost_save, row.perf_gain]


def test_frontier_figures() -> None:
    """Budgets from 2, a>a, to 3, a>b, which is best on train and has Q .5 here."""
    frontier = found().cost_range
    assert frontier is not None
    assert (frontier.low, frontier.high, frontier.static) == (2, 3, "a>b")
    assert (frontier.static_quality, frontier.static_cost) == (0.5, 3)
    rows = {row.policy: row for row in found().hulls}
    assert values(rows["static arms"]) == pytest.approx([0.25, 0, 0])
    assert values(rows["oracle"]) == pytest.approx([0.5, 1 / 6, 0.5])
    assert values(rows["random"]) == [None, None, pytest.approx(-0.25)]
    assert "hierrouter" not in rows


def test_a_single_router_has_no_hull_but_a_gain() -> None:
    fold = tiny().split("test")
    right = at_nodes(fold, np.array([AB, BA]), "hierrouter", "router")
    row = hulls([right])["hierrouter"]
    assert values(row) == [None, pytest.approx(0), pytest.approx(0.5)]
    assert (row.n, row.pareto_distance) == (1, 0)
    cheap = at_nodes(fold, np.array([3, 3]), "hierrouter", "router")
    both = hulls([right, cheap])["hierrouter"]
    assert values(both) == pytest.approx([0.5, 1 / 6, 0.5])


def test_a_point_behind_the_oracle_has_a_distance() -> None:
    """From (3, 0), costs in widths of the range of 1, to the line from (2, 0) to (3, 1)."""
    wrong = at_nodes(tiny().split("test"), np.array([BA, AB]), "hierrouter", "router")
    row = hulls([wrong])["hierrouter"]
    assert row.pareto_distance == pytest.approx(0.5**0.5)
    assert values(row)[1] is None  # as good at no cost


def test_without_a_range_there_is_no_area() -> None:
    tree = tiny()
    score = np.zeros_like(tree.score)
    score[:, 3] = 1  # the cheapest route is the best one
    report = found(replace(tree, score=score))
    assert report.cost_range is not None
    assert report.cost_range.low == report.cost_range.high == 2
    assert {row.mean_quality for row in report.hulls} == {None}
    assert all(row.area_lost is None for row in report.models)


def test_the_view_shows_no_more_than_the_oracle_and_no_less_than_a_fixed_route() -> None:
    """Without any text both queries look alike, and a>b or b>a is right for one of them."""
    blind = found(replace(tiny(), parts=(), view="stage")).measurable
    assert (blind.looks, blind.n, blind.reward) == (1, 2, pytest.approx(0.2))
    whole = found().measurable
    assert (whole.looks, whole.reward) == (2, pytest.approx(0.7))
