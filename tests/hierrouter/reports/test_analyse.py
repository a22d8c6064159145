"""Analyses of trees of every shape, with and without a router."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hierrouter.learning.config import ExactConfig, Objective
from hierrouter.learning.trained import TrainedRouter
from hierrouter.learning.training import train
from hierrouter.reports import analysis
from hierrouter.reports.evaluated import report_on
from hierrouter.reports.results import Report, as_json
from hierrouter.reports.tables import report_tables
from hierrouter.reports.values import Bootstrap
from hierrouter_cache.tree import Routes, RouteTree
from tests.hierrouter.reports.tiny import without_direct_calls
from tests.hierrouter.trees import planted_tree, random_tree

ALPHA = 0.05
QUICK = Bootstrap(n=50)
SHORT = ExactConfig(epochs=4, hidden=16)


@cache
def planted() -> RouteTree:
    return planted_tree(families=3, per_family=(12, 6, 8), dim=8, noise=0.3)


@cache  # each is trained once
def router(allow_stop: bool = False) -> TrainedRouter:
    return train(planted(), Objective(ALPHA, allow_stop), SHORT, 0)


def folded(models: int, hops: int, queries: int = 30) -> RouteTree:
    tree = random_tree(Routes(models, hops), queries, 1)
    splits = tuple("train" if at % 3 else "test" for at in range(queries))
    datasets = tuple("odd" if at % 2 else "even" for at in range(queries))
    return replace(tree, splits=splits, datasets=datasets)


def reported(tree: RouteTree, trained: TrainedRouter | None = None, split: str = "test") -> Report:
    return report_on(tree, ALPHA, trained, None, {}, split, bootstrap=QUICK)


SHAPES = {
    "one model": folded(1, 2),
    "one hop": folded(3, 1),
    "11 models": folded(11, 1),
    "three hops": folded(2, 3),
    "no direct calls": without_direct_calls(folded(2, 2)),
    "no train fold": replace(folded(2, 2), splits=("test",) * 30),
    "one query": folded(2, 2, 3).select(np.array([0, 1])),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_has_tables_and_intervals_around_their_means(name: str) -> None:
    report = reported(SHAPES[name])
    for line in report.estimates.to_pylist():
        value, low, high = line["value"], line["low"], line["high"]
        if value is not None:
            assert low is None or low - 1e-9 <= value
            assert high is None or value <= high + 1e-9
    titles = [table.title for table in report_tables(report, analysis=True)]
    assert [title.split(".")[0] for title in titles] == [
        f"Table {number}" for number in range(1, len(titles) + 1)
    ]
    assert any("worth to the oracle" in title for title in titles)
    assert ("repair" in " ".join(titles)) == bool(report.repair) == (SHAPES[name].hops > 1)
    assert as_json(report)


def test_without_a_train_fold_nothing_is_chosen() -> None:
    found = reported(SHAPES["no train fold"])
    assert found.cost_range is None and found.hulls == ()
    assert {row.rung for row in found.ladder} & {"best fixed route", "best single call"} == set()
    assert all(row.area_lost is None and row.reward_lost is not None for row in found.models)


def test_without_direct_calls_the_ladder_lacks_their_rungs() -> None:
    rungs = {row.rung for row in reported(SHAPES["no direct calls"]).ladder}
    assert not rungs & {"best single call", "one-hop oracle"}
    assert "best fixed route" in rungs


def test_of_many_models_the_draw_has_an_error_that_is_said() -> None:
    report = reported(SHAPES["11 models"])
    rows = report.models
    assert all(row.reward_error > 0 for row in rows)
    assert "orders drawn at random" in report_tables(report, analysis=True)[-1].note


def test_a_pool_that_is_too_large_has_prices_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "LARGEST", 10)
    report = reported(SHAPES["three hops"])
    rows = report.models
    assert all(row.reward_lost is None and row.area_lost is None for row in rows)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert "is left out" in report_tables(report, analysis=True)[-1].note


@pytest.mark.parametrize("allow_stop", [False, True])
def test_the_regret_is_that_of_the_report(allow_stop: bool) -> None:
    report = reported(planted(), router(allow_stop))
    rewards = {
        (row.kind, row.dataset): row.reward
        for row in report.rows
        if row.kind in ("router", "oracle")
    }
    assert [row.dataset for row in report.regret] == list(report.datasets)
    for row in report.regret:
        lost = rewards["oracle", row.dataset] - rewards["router", row.dataset]
        assert row.whole == pytest.approx(lost)
        assert row.plan + row.adaptivity == pytest.approx(lost)


def test_generalisation_is_the_regret_less_that_on_train() -> None:
    shown, learned = (reported(planted(), router(), split).regret for split in ("test", "train"))
    assert all(row.more_whole is None for row in learned)
    for here, there in zip(shown, learned, strict=True):
        assert here.more_whole == pytest.approx(here.whole - there.whole)


def test_the_ladder_has_the_figures_and_intervals_of_the_report() -> None:
    report = reported(planted(), router())
    oracle = [row for row in report.rows if row.kind == "oracle"]
    rung = [row for row in report.ladder if row.rung == "tree oracle"]
    for row, bound in zip(oracle, rung, strict=True):
        assert (bound.dataset, bound.n) == (row.dataset, row.n)
        ends = (bound.reward, bound.reward_low, bound.reward_high)
        assert ends == pytest.approx((row.reward, row.reward_low, row.reward_high), rel=1e-12)


def test_where_the_router_may_stop_its_calls_fall_from_hop_to_hop() -> None:
    calls = reported(planted(), router(True)).calls
    for kind in ("router", "oracle"):
        by_hop = [
            sum(row.calls for row in calls if (row.kind, row.hop) == (kind, hop)) for hop in (1, 2)
        ]
        assert by_hop[0] == pytest.approx(1) and by_hop[1] <= 1 + 1e-9


def test_depths_have_intervals_around_their_means() -> None:
    report = reported(planted(), router(True))
    assert report.depths
    for row in report.depths:
        assert row.share_low <= row.share <= row.share_high
        if row.quality is not None and row.reward is not None and row.cost is not None:
            assert row.reward == pytest.approx(row.quality - ALPHA * row.cost)
        for name in ("quality", "cost", "reward"):
            low, value, high = (getattr(row, f"{name}{end}") for end in ("_low", "", "_high"))
            assert value is None or low is None or low - 1e-9 <= value
            assert value is None or high is None or value <= high + 1e-9


def test_the_tables_show_what_the_values_say() -> None:
    report = reported(planted(), router())
    tables = {table.title.split(". ", 1)[1]: table for table in report_tables(report, None, True)}
    ladder = next(table for title, table in tables.items() if title.startswith("Bound ladder, R"))
    shown = {line[0]: line for line in ladder.shown()}
    for row in report.ladder:
        if row.dataset == "all":
            assert shown[row.rung][4] == f"{row.reward:.4f}"
    assert report.router is not None
    assert shown["hierrouter"][4] == f"{report.router.reward:.4f}"
    regret = next(table for title, table in tables.items() if title.startswith("Regret"))
    assert regret.shown()[-1][1] == f"{report.regret[-1].whole:.4f}"
    assert len(tables) == len(report_tables(report, None)) + 6


def test_few_tables_are_shown_unless_all_are_wanted() -> None:
    titles = [table.title for table in report_tables(reported(planted()))]
    assert titles[-1].startswith("Table 6. Bound ladder")
