"""Analyses of trees of every shape, and depths that can be worked out on paper."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hierrouter.learning.config import ExactConfig, Objective
from hierrouter.learning.router import TrainedRouter
from hierrouter.learning.training import train
from hierrouter.reports.build import add_depths
from hierrouter.reports.estimates import Bootstrap, EstimateTable, Row, pivot
from hierrouter.reports.fold_report import report_on_fold
from hierrouter.reports.report import as_json
from hierrouter.reports.results import ReportData
from hierrouter.reports.tables import report_tables
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import DirectCalls, RouteTree
from tests.hierrouter.trees import planted_tree, random_tree

QUICK = Bootstrap(n=50)


def reported(
    tree: RouteTree, alpha: float, trained: TrainedRouter | None = None, split: str = "test"
) -> ReportData:
    return report_on_fold(tree, alpha, trained, None, {}, split, QUICK)


def without_direct_calls(tree: RouteTree) -> RouteTree:
    """The same tree where no model was ever asked directly."""
    none, tokens = np.empty((len(tree), 0)), np.empty((len(tree), 0), dtype=np.int64)
    return replace(tree, direct=DirectCalls((), none, none, tokens, tokens, np.empty((0, 2))))


SOME = 0.05  # alpha


@cache
def planted() -> RouteTree:
    return planted_tree(families=3, per_family=(12, 6, 8), dim=8, noise=0.3)


@cache
def learned(allow_stop: bool = False, split: str = "test") -> ReportData:
    """The report on a router, trained once."""
    return reported(planted(), SOME, router(allow_stop), split)


@cache
def router(allow_stop: bool) -> TrainedRouter:
    return train(planted(), Objective(SOME, allow_stop), ExactConfig(epochs=4, hidden=16), 0)


def folded(models: int, hops: int, queries: int = 30) -> RouteTree:
    tree = random_tree(Layout.full(models, hops), queries, 1)
    splits = tuple("train" if at % 3 else "test" for at in range(queries))
    datasets = tuple("odd" if at % 2 else "even" for at in range(queries))
    return replace(tree, splits=splits, datasets=datasets)


SHAPES = {
    "one model": folded(1, 2),
    "one hop": folded(3, 1),
    "11 models": folded(11, 1),
    "three hops": folded(2, 3),
    "no direct calls": without_direct_calls(folded(2, 2)),
    "no train fold": replace(folded(2, 2), splits=("test",) * 30),
    "one query": folded(2, 2, 3).select(np.array([0, 1])),
}


@cache
def shaped(name: str) -> ReportData:
    return reported(SHAPES[name], SOME)


def check_intervals(report: ReportData) -> None:
    for line in report.estimates:
        value, low, high = line["value"], line["low"], line["high"]
        if value is not None:
            assert low is None or low - 1e-9 <= value
            assert high is None or value <= high + 1e-9


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_has_tables_and_intervals_around_their_means(name: str) -> None:
    report = shaped(name)
    check_intervals(report)
    titles = [table.heading for table in report_tables(report)]
    assert [title.split(".")[0] for title in titles] == [
        f"Table {number}" for number in range(1, len(titles) + 1)
    ]
    assert as_json(report)


def test_what_a_tree_lacks_the_analysis_lacks() -> None:
    alone = shaped("no train fold")
    assert not {row.rung for row in alone.ladder} & {"best fixed route", "best single call"}
    rungs = {row.rung for row in shaped("no direct calls").ladder}
    assert not rungs & {"best single call", "one-hop oracle"} and "best fixed route" in rungs


@pytest.mark.parametrize("allow_stop", [False, True])
def test_regret_and_ladder_are_those_of_the_report(allow_stop: bool) -> None:
    report = learned(allow_stop)
    check_intervals(report)
    rows = {(row.kind, row.dataset): row for row in report.rows if row.kind in ("router", "oracle")}
    assert [row.dataset for row in report.regret] == list(report.datasets)
    for row in report.regret:
        lost = rows["oracle", row.dataset].reward - rows["router", row.dataset].reward
        assert [row.whole, row.plan + row.adaptivity] == pytest.approx([lost, lost])
    rungs = [
        row for row in report.ladder if row.rung == ("tree oracle", "anytime oracle")[allow_stop]
    ]
    for rung in rungs:
        oracle = rows["oracle", rung.dataset]
        assert rung.n == oracle.n
        ends = (rung.reward, rung.reward_low, rung.reward_high)
        assert ends == pytest.approx((oracle.reward, oracle.reward_low, oracle.reward_high), 1e-12)


def test_where_the_router_may_stop_reward_is_quality_less_cost_at_every_depth() -> None:
    report = learned(allow_stop=True)
    assert report.depths
    for row in report.depths:
        if row.quality is not None:
            assert row.reward == pytest.approx(row.quality - SOME * row.cost)


def test_the_tables_show_what_the_values_say() -> None:
    report = learned()
    tables = {table.heading.split(". ", 1)[1]: table for table in report_tables(report, None)}
    ladder = next(table for title, table in tables.items() if title.startswith("Bound ladder, R"))
    shown = {line[0]: line[4] for line in ladder.cell_texts()}
    rewards = {row.rung: row.reward for row in report.ladder if row.dataset == "all"}
    rewards["HierRouter"] = report.overall[-1].reward
    assert shown == {name: f"{reward:.4f}" for name, reward in rewards.items()}
    regret = next(table for title, table in tables.items() if title.startswith("Regret"))
    assert regret.cell_texts()[-1][1] == f"{report.regret[-1].whole:.4f}"
    assert ladder.note.startswith("In hindsight the best direct call of each query has R ")


def depths(*nodes: int) -> tuple[Row, ...]:
    """What a router answers whose two episodes end at these nodes.

    Models a and b cost 1 and 2 a call; node 4 is a>b, right for the first query, node 1 is >a.
    """
    tree = random_tree(Layout.full(2, 2), 2, 0)
    score, tokens = np.zeros_like(tree.score), np.ones_like(tree.tokens_in)
    score[[0, 1], [4, 5]], tokens[:, 0] = 1, 0
    tree = replace(
        tree,
        score=score,
        accuracy=score,
        tokens_in=0 * tokens,
        tokens_out=tokens,
        rate=np.array([[1.0, 1.0], [2.0, 2.0]]),
    )
    table = EstimateTable(("one", "two"), QUICK)
    add_depths(table, tree, np.eye(tree.layout.nodes)[list(nodes)], 0.1)
    return pivot(table.lines(), "depths", "hop")


def test_depths_are_means_of_the_queries_that_end_there() -> None:
    """The first query ends right at a>b for 3, the second wrong after one call of a for 1."""
    first, second = depths(4, 1)
    assert (first.hop, first.share, first.quality, first.cost) == (1, 0.5, 0, 1)
    assert (second.hop, second.share, second.quality, second.cost) == (2, 0.5, 1, 3)
    assert (first.reward, second.reward) == pytest.approx((-0.1, 0.7))
    # Two queries show next to nothing.
    assert second.share_low < 0.1 and second.share_high > 0.9
    assert second.quality_low < 0.1 and second.quality_high == pytest.approx(1)
    assert second.cost_low < 1 < 5 < second.cost_high
    none, all_of_them = depths(4, 3)
    assert (none.share, none.quality, none.reward_low) == (0, None, None)
    assert (all_of_them.share, all_of_them.share_high) == (1, pytest.approx(1))
    assert all_of_them.share_low < 0.5
    assert all_of_them.quality_low < 0.1 and all_of_them.quality_high > 0.9
