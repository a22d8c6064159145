"""What the tables hold, before any markup."""

from dataclasses import replace

import numpy as np
import pytest

from hierrouter.collection.estimate import (
    Estimate,
    Expectation,
    StageEstimate,
    estimate_object,
    estimate_tables,
)
from hierrouter.collection.expected import Bound
from hierrouter.collection.measures import Range
from hierrouter.reports.tables import (
    cost_table,
    dataset_table,
    price_table,
    quality_table,
    report_tables,
    reward_table,
    summary_table,
)
from hierrouter.tables import Interval, Table, duration, short_number, size
from tests.hierrouter.reports.examples import (
    deferring,
    example,
    outcome,
    policies,
    stopping,
    two_prices,
    untrained,
)


def names(table: Table) -> list[str]:
    return [str(row.cells[0]) for row in table.rows]


def titles(table: Table) -> list[str]:
    return [column.title for column in table.columns]


def test_rows_are_grouped_like_the_paper_then_ours() -> None:
    table = quality_table(example())
    assert list(dict.fromkeys(row.group for row in table.rows)) == [
        "Reference models",
        "Pool models (direct calls)",
        "Learned",
        "Fixed routes",
        "Baselines",
        "Best in hindsight",
    ]
    assert names(table) == ["big", "a", "HierRouter", "a>b", "a>a", "random", "oracle"]
    assert titles(table) == ["Policy", "gsm8k", "mbpp", "all"]
    # One dataset needs no total.
    assert titles(quality_table(example(datasets=["one"] * 4))) == ["Policy", "one"]


def test_best_values_are_marked_without_the_oracle_with_ties_and_lowest_cost() -> None:
    table = quality_table(example())
    best = {(names(table)[line], column) for line, column in table.best()}
    assert best == {("a>a", 1), ("a>b", 2), ("HierRouter", 2), ("HierRouter", 3)}
    table = cost_table(example())
    assert "money per question" in table.heading
    assert {names(table)[line] for line, _ in table.best()} == {"a"}
    assert table.rows[0].cells[1] == 4
    assert table.cell_texts()[1][1:] == ["0.500"] * 3


def test_fixed_routes_are_cut_and_counted() -> None:
    routes = [outcome(f"r{at}", "route", [at / 10] * 4) for at in range(8)]
    report = example([*routes, *policies()])
    table = quality_table(report, routes=3)
    assert [name for name in names(table) if name[1:].isdigit()] == ["r7", "r6", "r5"]
    assert table.note.startswith("The best 3 of 10 fixed routes")
    every = quality_table(report, routes=None)
    assert (len(every.rows), every.note) == (len(report.overall), "")


def test_summary_has_intervals_and_paired_differences() -> None:
    table = summary_table(example())
    at = names(table).index("a>a")
    quality, cost, reward, interval, difference, _, of_1000 = table.rows[at].cells[1:]
    assert isinstance(quality, float) and isinstance(cost, float)
    assert of_1000 == 1_000 * cost
    assert reward == pytest.approx(quality - example().alpha * cost) == pytest.approx(0.3)
    assert isinstance(interval, Interval)
    assert difference == pytest.approx(0.3)
    assert table.cell_texts()[at][5] == "+0.3000"
    assert table.cell_texts()[names(table).index("HierRouter")][5:7] == ["-", "-"]


def test_reward_table_ends_with_the_gap_and_its_interval() -> None:
    report = example()
    gap, closed = reward_table(report).cell_texts()[-2:]
    assert gap == ["oracle - best fixed route", "0.100", "0.200", "0.400"]
    assert closed == ["share closed by HierRouter", "-1.000", "0.000", "0.500"]
    said = "Over all: gap to the oracle closed 50.0% [< -100%, 92.5%] of 0.400 in R above a>b."
    assert said in reward_table(report).note
    unbounded = replace(report, gap_closed_intervals={"all": None})
    assert "50.0% without bounds of" in reward_table(unbounded).note


def test_share_of_a_tiny_gap_is_left_out() -> None:
    near = outcome("oracle", "oracle", [0.503] * 4)
    fixed = outcome("a>a", "route", [0.5] * 4)
    router = outcome("hierrouter", "router", [0.2] * 4)
    report = example([fixed, router, near])
    gap, closed = reward_table(report).cell_texts()[-2:]
    assert gap[-1] == "0.003" and closed[-1] == "-"
    assert "below 0.005" in reward_table(report).note
    assert report.gap_closed["all"] is None
    # Also where only a price list makes it tiny.
    dear = [fixed, router, outcome("oracle", "oracle", [0.54] * 4, [1.36] * 4)]
    free = [replace(one, cost=np.zeros(4)) for one in dear]
    table = price_table(example(dear, ["one"] * 4, price_lists={"wide": free, "tiny": dear}))
    assert table.cell_texts()[-1] == ["share closed by HierRouter", "-", "-7.5000", *"----"]
    assert table.note == "The share is left out where the gap is below 0.005."


def test_price_lists_have_a_table_of_their_own() -> None:
    tables = report_tables(two_prices())
    assert "USD per question" in tables[0].title
    table = tables[-1]
    assert table.heading.startswith("Table 7. C in USD per question and R")
    columns = ["C, cheap", "R, cheap", "95% interval", "C, dear", "R, dear", "95% interval"]
    assert titles(table) == ["Policy", *columns]
    shown = {line[0]: line[1:] for line in table.cell_texts()}
    cheap, dear = shown["a>b"][:3], shown["a>b"][3:]
    assert (cheap[:2], dear[:2]) == (["1.00", "0.4000"], ["3.00", "0.2000"])
    low, high = dear[2].strip("[]").split(", ")
    assert float(low) < 0.2 < float(high)
    assert shown["share closed by HierRouter"] == ["-", "0.5000", "-", "-", "0.5000", "-"]


def test_a_price_list_has_the_intervals_of_the_report_and_its_own_best_route() -> None:
    report = example(price_lists={"own": policies()})
    keys = ("cost", "cost_low", "cost_high", "reward", "reward_low", "reward_high")
    for priced, row in zip(report.price_lists[0].rows, report.overall, strict=True):
        assert [getattr(priced, key) for key in keys] == [getattr(row, key) for key in keys]
    # Of each list the best route is shown.
    routes = [outcome(f"r{at}", "route", [0.5 + at / 10] * 4, [1.0] * 4) for at in range(3)]
    dear = [replace(route, cost=route.quality * 20) for route in routes]
    report = example(routes, ["one"] * 4, price_lists={"x": routes, "y": dear})
    assert names(price_table(report, routes=1)) == ["r2", "r0"]
    assert "best one under each price list" in price_table(report, routes=1).note


def test_where_the_router_stops_is_the_second_table() -> None:
    table = report_tables(stopping())[1]
    assert table.heading == "Table 2. Where HierRouter stops, C in money per question"
    columns = ["Calls", "Share of queries", "Q", "C", "R", "95% interval"]
    assert titles(table) == columns
    assert table.cell_texts() == [
        ["1", "0.250", "0.300", "0.600", "0.2400", "[0.1400, 0.3400]"],
        ["2", "0.750", "0.800", "1.20", "0.6800", "[0.5800, 0.7800]"],
        ["3", "0.000", *"----"],
    ]
    numbers = [table.heading.split(".")[0] for table in report_tables(two_prices(depths=True))]
    assert numbers == [f"Table {number}" for number in range(1, 9)]


def test_the_summary_says_what_must_be_known() -> None:
    report = replace(example(), notes=("No model saw an earlier answer.",))
    note = summary_table(report).note
    assert note.startswith("No model saw an earlier answer. HierRouter beats 0 of 5 policies")


def test_a_row_a_dataset_has_the_router_and_the_best_fixed_choice() -> None:
    table = dataset_table(example())
    # Not Q of the oracle: it has the highest R, and another policy may have a higher Q.
    assert titles(table) == ["Dataset", "HierRouter, Q", "C", "a>b, Q", "C"]
    assert table.cell_texts() == [
        ["gsm8k", "0.600", "1.00", "0.200", "1.00"],
        ["mbpp", "0.800", "1.00", "0.800", "1.00"],
        ["all", "0.700", "1.00", "0.500", "1.00"],
    ]
    assert titles(dataset_table(untrained()))[1] == "a>b, Q"


# --- a router with a stronger model behind it


def test_deferral_has_each_nearest_share_once_then_the_one_chosen() -> None:
    table = report_tables(deferring())[-1]
    assert table.heading == "Table 7. Deferral to big, R = Q - 0.1 C, C in money per question"
    assert table.cell_texts() == [
        ["0%", "0.000", "0.700", "1.00", "0.6000", "0.6000", "0.6000"],
        ["10%", "0.050", "0.740", "1.20", "0.6200", "0.5900", "0.6500"],
        ["25%", "0.400", "0.800", "2.00", "0.6000", "0.4400", "0.6600"],
        ["75%", "1.000", "0.400", "4.00", "0.2000", "0.2000", "0.2000"],
        ["by validation", "0.300", "0.770", "1.70", "0.6000", "0.4800", "0.6700"],
    ]
    assert "highest R at the router's alpha on the validation" in table.note
    kept = report_tables(deferring(share_allowed=0.1, chosen_on="train"))[-1]
    assert "greatest share up to 10.0% on the train fold" in kept.note


# --- what a collection will take

ESTIMATE = Estimate(
    queries=2,
    nodes=24,
    direct=6,
    stages=(
        StageEstimate("direct a", 4, 2, 2, 1500, seconds=None),
        StageEstimate("hop 1 a"),
        StageEstimate("hop 2 a", 0, None, 6, 70, seconds=9),
    ),
    notes=("a note",),
    bounds={"a": Bound(8, 3_200, 160, 1.25)},
    bound_total=Bound(8, 3_200, 160, 1.25),
)
EXPECTED = Expectation(
    calls=Range(4, 5, 6.2),
    tokens_in=Range.exact(1570),
    tokens_out=Range(90, 100, 110),
    cost=None,
    seconds=Range(6, 9, 130),
)


def test_an_estimate_has_a_row_a_stage_that_has_something_and_one_for_all() -> None:
    calls, bound = estimate_tables(ESTIMATE)  # nothing is expected before a pilot
    assert [(row.group, *row.cells) for row in calls.rows] == [
        ("direct", "a", "4", "2", "2", "0 B"),
        ("hop 2", "a", "0", "unknown", "6", "0 B"),
        ("all", "all", "4", "unknown", "8", "0 B"),
    ]
    most = ("8", "3.2k", "160", "1.25", "unknown")
    assert [row.cells for row in bound.rows] == [("a", *most), ("all", *most)]
    piloted = replace(ESTIMATE, expected={"a": EXPECTED}, expected_total=EXPECTED)
    expected = estimate_tables(piloted)[-1]
    shown = ("5 (4 to 6)", "1.57k", "100 (90 to 110)", "unknown", "9 s (6 s to 130 s)")
    assert [row.cells for row in expected.rows] == [("a", *shown), ("all", *shown)]
    estimate_json = estimate_object(ESTIMATE)
    assert estimate_json["notes"] == ["a note"]
    assert estimate_json["stages"][2]["calls"] is None
    assert [estimate_json["total"][name] for name in ("there", "calls", "most_calls")] == [
        4,
        None,
        8,
    ]


def test_numbers_have_three_digits_sizes_and_times_units() -> None:
    shown = [short_number(number) for number in (0, 12.345, 999.6, 1234, 2.5e6)]
    assert shown == ["0", "12.3", "1k", "1.23k", "2.5M"]
    assert [size(0), size(950), size(2.18e6)] == ["0 B", "950 B", "2.18 MB"]
    shown = [duration(seconds) for seconds in (0, 59.6, 599, 601, 3599, 7300, 90_000)]
    assert shown == ["0 s", "60 s", "599 s", "10 min", "60 min", "2 h 1 min", "1 d 1 h"]
