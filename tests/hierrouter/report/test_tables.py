"""What the tables hold, before any markup."""

from __future__ import annotations

import pytest

from hierrouter.report.tables import (
    Column,
    Interval,
    Line,
    Table,
    cost_table,
    long_table,
    quality_table,
    report_tables,
    reward_table,
    summary_table,
)
from tests.hierrouter.report.examples import example, outcome, policies


def names(table: Table) -> list[str]:
    return [str(row.cells[0]) for row in table.rows]


def test_rows_are_grouped_like_the_paper_then_ours() -> None:
    table = quality_table(example())
    assert list(dict.fromkeys(row.group for row in table.rows)) == [
        "Reference models",
        "Pool models (direct calls)",
        "HierRouter",
        "Fixed routes",
        "Baselines",
        "Oracle",
    ]
    assert names(table) == ["big", "a", "hierrouter", "a>b", "a>a", "random", "oracle"]
    assert [column.title for column in table.columns] == ["Policy", "gsm8k", "mbpp", "all"]


def test_best_value_is_marked_without_the_oracle_and_with_ties() -> None:
    table = quality_table(example())
    best = {(names(table)[line], column) for line, column in table.best()}
    assert best == {("a>a", 1), ("a>b", 2), ("hierrouter", 2), ("hierrouter", 3)}


def test_lowest_cost_is_best_and_the_unit_stands_in_the_title() -> None:
    table = cost_table(example())
    assert "base_rate*token / 1,000" in table.title
    assert {names(table)[line] for line, _ in table.best()} == {"a"}
    assert table.rows[0].cells[1] == pytest.approx(4 / 1000)
    assert table.shown()[1][1:] == ["0.00050"] * 3


def test_fixed_routes_are_cut_and_counted() -> None:
    routes = [outcome(f"r{at}", "route", [at / 10] * 4) for at in range(8)]
    report = example([*routes, *policies()])
    table = quality_table(report, routes=3)
    assert [name for name in names(table) if name.startswith("r") and name != "random"] == [
        "r7",
        "r6",
        "r5",
    ]
    assert table.note.startswith("The best 3 of 10 fixed routes")
    assert len(quality_table(report, routes=None).rows) == len(report.overall)
    assert quality_table(report, routes=None).note == ""


def test_summary_has_intervals_and_paired_differences() -> None:
    table = summary_table(example())
    line = table.rows[names(table).index("a>a")]
    quality, cost, reward, interval, difference = line.cells[1:6]
    assert isinstance(quality, float)
    assert isinstance(cost, float)
    assert reward == pytest.approx(quality - example().alpha * cost)
    assert reward == pytest.approx(0.3)
    assert isinstance(interval, Interval)
    assert difference == pytest.approx(0.3)
    assert table.shown()[names(table).index("a>a")][5] == "+0.3000"
    assert table.shown()[names(table).index("hierrouter")][5:] == ["-", "-"]


def test_reward_table_ends_with_the_gap() -> None:
    table = reward_table(example())
    gap, closed = table.shown()[-2:]
    assert gap == ["oracle - best fixed route", "0.100", "0.200", "0.400"]
    assert closed == ["share closed by HierRouter", "-1.000", "0.000", "0.500"]


def test_share_of_a_tiny_gap_is_left_out() -> None:
    near = outcome("oracle", "oracle", [0.503] * 4)
    fixed = outcome("a>a", "route", [0.5] * 4)
    report = example([fixed, outcome("hierrouter", "router", [0.2] * 4), near])
    gap, closed = reward_table(report).shown()[-2:]
    assert gap[-1] == "0.003" and closed[-1] == "-"
    assert "below 0.005" in reward_table(report).note
    assert report.gap_closed["all"] == pytest.approx(-100)


def test_one_dataset_needs_no_total() -> None:
    table = quality_table(example(datasets=["one"] * 4))
    assert [column.title for column in table.columns] == ["Policy", "one"]


def test_long_table_holds_every_row() -> None:
    report = example()
    table = long_table(report)
    assert len(table.rows) == len(report.rows)
    assert [column.title for column in table.columns][:4] == ["policy", "kind", "dataset", "n"]


def test_tables_are_numbered() -> None:
    titles = [table.title for table in report_tables(example())]
    assert [title.split(".")[0] for title in titles] == [f"Table {n}" for n in range(1, 6)]
    assert all(title.isascii() for title in titles)


def test_cells_are_shown_plainly() -> None:
    column = Column("x", digits=2, signed=True)
    assert column.show(-0.001) == "+0.00"
    assert column.show(Interval(-1, 2.5)) == "[-1, +2.50]"
    assert column.show(None) == "-"
    assert column.show(7) == "7"


def test_a_column_without_numbers_has_no_best() -> None:
    assert Table("t", (Column("x", best="highest"),), (Line("g", (None,)),)).best() == frozenset()
