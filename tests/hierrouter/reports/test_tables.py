"""What the tables hold, before any markup."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hierrouter.reports.tables import (
    cost_table,
    long_table,
    price_table,
    quality_table,
    report_tables,
    reward_table,
    summary_table,
)
from hierrouter.tables import Column, Interval, Line, Table
from tests.hierrouter.reports.examples import (
    example,
    outcome,
    policies,
    stopping,
    two_prices,
)


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


def test_below_the_share_stands_its_interval() -> None:
    report = example()
    low, high = report.gap_closed_intervals["all"] or (0, 0)
    said = f"Over all queries it is 0.500, 95% interval [{low:.3f}, {high:.3f}]"
    assert said in reward_table(report).note
    unbounded = replace(report, gap_closed_intervals={"all": None})
    assert "95% interval without bounds" in reward_table(unbounded).note


def test_share_of_a_tiny_gap_is_left_out() -> None:
    near = outcome("oracle", "oracle", [0.503] * 4)
    fixed = outcome("a>a", "route", [0.5] * 4)
    report = example([fixed, outcome("hierrouter", "router", [0.2] * 4), near])
    gap, closed = reward_table(report).shown()[-2:]
    assert gap[-1] == "0.003" and closed[-1] == "-"
    assert "below 0.005" in reward_table(report).note
    assert report.gap_closed["all"] is None


def test_the_share_of_a_gap_that_a_price_list_makes_tiny_is_left_out() -> None:
    near = [
        outcome("a>a", "route", [0.5] * 4),
        outcome("hierrouter", "router", [0.2] * 4),
        outcome("oracle", "oracle", [0.54] * 4, [1.36] * 4),
    ]
    free = [replace(one, cost=np.zeros(4)) for one in near]
    table = price_table(example(near, ["one"] * 4, price_lists={"wide": free, "tiny": near}))
    assert table.shown()[-1] == [
        "share closed by HierRouter",
        *("-", "-7.5000", "-"),
        *("-", "-", "-"),
    ]
    assert table.note == "The share is left out where the gap is below 0.005."


def test_price_lists_have_a_table_of_their_own() -> None:
    table = report_tables(two_prices())[-1]
    assert table.title.startswith("Table 6. C in price*token and R")
    assert [column.title for column in table.columns] == [
        "Policy",
        "C, cheap",
        "R, cheap",
        "95% interval",
        "C, dear",
        "R, dear",
        "95% interval",
    ]
    shown = {line[0]: line[1:] for line in table.shown()}
    cheap, dear = shown["a>b"][:3], shown["a>b"][3:]
    assert (cheap[:2], dear[:2]) == (["1.000", "0.4000"], ["3.000", "0.2000"])
    low, high = dear[2].strip("[]").split(", ")
    assert float(low) < 0.2 < float(high)
    assert shown["share closed by HierRouter"] == ["-", "0.5000", "-", "-", "0.5000", "-"]


def test_intervals_of_the_first_price_list_are_those_of_the_report() -> None:
    report = example(price_lists={"own": policies()})
    keys = ("cost", "cost_low", "cost_high", "reward", "reward_low", "reward_high")
    for priced, row in zip(report.price_lists[0].rows, report.overall, strict=True):
        assert [getattr(priced, key) for key in keys] == [getattr(row, key) for key in keys]


def test_where_the_router_stops_is_the_last_table() -> None:
    table = report_tables(stopping())[-1]
    assert table.title == "Table 6. Where HierRouter stops, C in base_rate*token"
    titles = ["Calls", "Share of queries", "Q", "95% interval", "C", "R", "95% interval"]
    assert [column.title for column in table.columns] == titles
    assert table.shown() == [
        ["1", "0.250", "0.300", "[0.200, 0.400]", "0.600", "0.2400", "[0.1400, 0.3400]"],
        ["2", "0.750", "0.800", "[0.700, 0.900]", "1.200", "0.6800", "[0.5800, 0.7800]"],
        ["3", "0.000", *"-----"],
    ]
    tables = report_tables(two_prices(depths=True))
    assert [table.title.split(".")[0] for table in tables[-2:]] == [
        "Table 6",
        "Table 7",
    ]


def test_the_best_route_under_each_price_list_is_shown() -> None:
    routes = [outcome(f"r{at}", "route", [0.5 + at / 10] * 4, [1.0] * 4) for at in range(3)]
    dear = [replace(route, cost=route.quality * 20) for route in routes]
    report = example(routes, ["one"] * 4, price_lists={"x": routes, "y": dear})
    assert names(price_table(report, routes=1)) == ["r2", "r0"]
    assert "best one under each price list" in price_table(report, routes=1).note


def test_notes_stand_below_the_summary() -> None:
    report = replace(example(), notes=("No model saw an earlier answer.",))
    assert summary_table(report).note.startswith("No model saw an earlier answer. HierRouter beats")


def test_the_summary_says_how_the_router_was_trained() -> None:
    said = "HierRouter was trained by exact, preset default, alpha 0.1, state view query+answer"
    assert summary_table(stopping()).note.startswith(f"{said}, may stop early. ")
    limited = {**stopping().provenance, "allow_stop": False, "max_cost": 2.5}
    report = replace(stopping(), provenance=limited)
    assert summary_table(report).note.startswith(f"{said}, at most 2.5 a query. ")
    for_quality = {**stopping().provenance, "trained_alpha": 0.0}
    assert ", alpha 0, " in summary_table(replace(stopping(), provenance=for_quality)).note
    assert "trained by" not in summary_table(example()).note


def test_the_unit_follows_the_prices() -> None:
    tables = report_tables(two_prices())
    assert "price*token / 1,000" in tables[1].title
    assert "C in price*token" in tables[2].title


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
