"""Analyses of a tree that can be worked out on paper, see `tiny`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hierrouter.evaluation.bounds import split_regret
from hierrouter.evaluation.outcome import Outcome, at_nodes
from hierrouter.reports.analysis import (
    analyse,
    estimated,
    frontier_figures,
    regret_rows,
    regret_values,
    static_arms,
)
from hierrouter.reports.build import columns_of
from hierrouter.reports.results import Bootstrap
from hierrouter.reports.values import Analysis, HullRow
from hierrouter_cache.tree import RouteTree
from tests.hierrouter.reports.tiny import AB, ALPHA, BA, tiny

QUICK = Bootstrap(n=50)


def found() -> Analysis:
    return analyse(tiny(), "test", ALPHA, None, None, bootstrap=QUICK)


def always(fold: RouteTree, node: int) -> np.ndarray:
    endings = np.zeros((len(fold), fold.routes.nodes))
    endings[:, node] = 1
    return endings


def test_the_ladder() -> None:
    rungs = {(row.rung, row.dataset): row for row in found().ladder}
    rewards = {rung: row.reward.mean for (rung, dataset), row in rungs.items() if dataset == "all"}
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
    assert (fixed.policy, fixed.n, fixed.quality.mean, fixed.cost.mean) == ("a>b", 1, 0, 3)
    assert rungs["random", "all"].policy == "random"


def test_regret_and_what_it_is_more_than_on_train() -> None:
    """a>b on the second query: a leaves a>a at -.2 of .7, then b costs .1 more for nothing."""
    test, train = tiny().split("test"), tiny().split("train")
    shown, other = (
        regret_values(split_regret(fold, ALPHA, always(fold, AB))) for fold in (test, train)
    )
    columns = columns_of(test.datasets)
    estimates = estimated(columns, {"regret": shown}, {}, QUICK)
    rows = {
        row.dataset: row
        for row in regret_rows(columns, shown, estimates, (train.datasets, other), QUICK)
    }
    parts = rows["two"].shown
    assert (parts.whole.mean, parts.plan.mean, parts.adaptivity.mean) == pytest.approx(
        (1.0, 0.9, 0.1)
    )
    assert rows["one"].shown.whole.mean == pytest.approx(0)
    assert rows["all"].shown.whole.mean == pytest.approx(0.5)
    more = rows["all"].generalisation  # nothing is lost on train
    assert more is not None and more.plan.mean == pytest.approx(0.45)


def test_a_dataset_that_train_lacks_has_no_generalisation() -> None:
    test = tiny().split("test")
    values = regret_values(split_regret(test, ALPHA, always(test, AB)))
    columns = columns_of(test.datasets)
    estimates = estimated(columns, {"regret": values}, {}, QUICK)
    train = (("one", "one"), values)
    rows = regret_rows(columns, values, estimates, train, QUICK)
    assert [row.generalisation is None for row in rows] == [False, True, False]


def test_the_oracle_calls_each_model_once() -> None:
    calls = {(row.hop, row.model): row.calls.mean for row in found().calls}
    assert calls == {(1, "a"): 0.5, (1, "b"): 0.5, (2, "a"): 0.5, (2, "b"): 0.5}


def test_repair_and_damage() -> None:
    """Every first answer is wrong; b repairs that of a on the first query, a that of b."""
    rows = {(row.before, row.model): row for row in found().repair}
    assert {pair: row.repair.mean for pair, row in rows.items()} == {
        ("a", "a"): 0,
        ("a", "b"): 0.5,
        ("b", "a"): 0.5,
        ("b", "b"): 0,
    }
    assert {row.damage.mean for row in rows.values()} == {0}
    assert (rows["a", "b"].right, rows["a", "b"].cost) == (0, 2)


def test_what_the_models_are_worth() -> None:
    """The oracle alone with a has -.2, with b -.4, with both .7."""
    a, b = found().models
    assert a.reward is not None and b.reward is not None
    worths = [(row.reward.leave_one_out.mean, row.reward.shapley.mean) for row in (a, b)]  # type: ignore[union-attr]
    assert worths == [pytest.approx((1.1, 0.45)), pytest.approx((0.9, 0.25))]
    assert (a.reward.error, a.share, b.share) == (0, 0.5, 0.5)
    # 1 - .1 (x + 2) falls to the -.4 of b>b, 1 - .1 (1 + 2 x) to the -.2 of a>a.
    assert (a.leaves, b.leaves) == pytest.approx((12, 5.5))
    assert (a.below_5_percent, b.below_5_percent) == pytest.approx((12, 5.5))


def test_what_the_models_add_to_the_frontier() -> None:
    """With both, Q rises from 0 at a cost of 2 to 1 at 3: .5 on average; one alone has none."""
    a, b = found().models
    assert a.area is not None and b.area is not None
    assert (a.area.leave_one_out, a.area.shapley) == pytest.approx((0.5, 0.25))
    assert (b.area.leave_one_out, b.area.shapley) == pytest.approx((0.5, 0.25))


def test_a_model_that_is_always_called_never_leaves() -> None:
    tree = tiny()
    from hierrouter_cache.tree import sub_pool

    (only,) = analyse(sub_pool(tree, ["a"]), "test", ALPHA, None, None, bootstrap=QUICK).models
    assert (only.share, only.leaves, only.below_5_percent) == (1, None, None)


def hulls(routers: list[Outcome], tree: RouteTree | None = None) -> dict[str, HullRow]:
    chosen = tree or tiny()
    fold = chosen.split("test")
    arms = static_arms(chosen.split("train"), fold, False)
    figures = frontier_figures(fold, arms, routers, QUICK, 2)
    assert figures is not None
    return {row.policy: row for row in figures.hulls}


def values(row: HullRow) -> list[float | None]:
    figures = (row.mean_quality, row.cost_save, row.perf_gain)
    return [figure.value if figure else None for figure in figures]


def test_frontier_figures() -> None:
    """Budgets from 2, a>a, to 3, a>b, which is best on train and has Q .5 here."""
    frontier = found().frontier
    assert frontier is not None
    assert (frontier.low, frontier.high, frontier.static) == (2, 3, "a>b")
    assert (frontier.static_quality, frontier.static_cost) == (0.5, 3)
    rows = {row.policy: row for row in frontier.hulls}
    assert values(rows["static arms"]) == pytest.approx([0.25, 0, 0])
    assert values(rows["oracle"]) == pytest.approx([0.5, 1 / 6, 0.5])
    assert values(rows["random"]) == [None, None, pytest.approx(-0.25)]
    assert "hierrouter" not in rows


def test_a_single_router_has_no_hull_but_a_gain() -> None:
    fold = tiny().split("test")
    right = at_nodes(fold, np.array([AB, BA]), "hierrouter", "router")
    row = hulls([right])["hierrouter"]
    assert values(row) == [None, pytest.approx(0), pytest.approx(0.5)]
    assert (row.points, row.pareto_distance) == (1, 0)
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
    frontier = analyse(
        replace(tree, score=score), "test", ALPHA, None, None, bootstrap=QUICK
    ).frontier
    assert frontier is not None and frontier.low == frontier.high == 2
    assert {row.mean_quality for row in frontier.hulls} == {None}
    assert all(
        row.area is None
        for row in analyse(
            replace(tree, score=score), "test", ALPHA, None, None, bootstrap=QUICK
        ).models
    )


def test_the_view_shows_no_more_than_the_oracle_and_no_less_than_a_fixed_route() -> None:
    """Without any text both queries look alike, and a>b or b>a is right for one of them."""
    blind = analyse(
        replace(tiny(), parts=(), view="stage"), "test", ALPHA, None, None, bootstrap=QUICK
    )
    assert (blind.measurable.looks, blind.measurable.n) == (1, 2)
    assert blind.measurable.reward.mean == pytest.approx(0.2)
    whole = found().measurable
    assert (whole.looks, whole.reward.mean) == (2, pytest.approx(0.7))
