"""Intervals and values of a contest, and how they are shown."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hierrouter.evaluation.intervals import difference_range, interval
from hierrouter.evaluation.outcome import Outcome
from hierrouter.learning.baselines.contest import Contest, Entry
from hierrouter.reports.comparison import as_json, build_standings, contest_tables
from hierrouter.reports.estimates import Bootstrap, EstimateTable
from hierrouter.reports.report import as_json as report_json
from tests.hierrouter.reports.examples import example

ALPHA = 0.5
QUERIES = 60
QUICK = Bootstrap(n=400)
SHARED = [
    name + end
    for name in ("accuracy", "quality", "cost", "reward", "difference")
    for end in ("", "_low", "_high")
]
DATASETS = ("one", "two", "three") * 20


def entry(name, arms, mean, validation, kind="baseline", reads=False, cost=0.1, seed=0, tried=0.1):
    rng = np.random.default_rng(seed)
    quality = np.clip(mean + ALPHA * cost + rng.normal(0, 0.02, QUERIES), 0, 1)
    outcome = Outcome(name, kind, quality, quality.round(), np.full(QUERIES, cost))
    return Entry(outcome, arms, "somebody", reads, {"k": 3}, validation, 0.5, tried)


def held(split="test", router=True):
    entries = [
        entry("low", "A", 0.2, 0.4, seed=1),
        entry("high", "A", 0.3, 0.3, seed=2),
        entry("low", "B", 0.5, 0.7, seed=3),
        entry("high", "B", 0.6, 0.6, seed=4),
        entry("cascade", "B", 0.8, 0.8, reads=True, seed=5),
        entry("tree oracle", "", 0.95, None, kind="oracle", seed=6),
    ]
    if router:
        entries.insert(5, entry("hierrouter", "", 0.9, 0.9, kind="router", reads=True, seed=7))
    return of(entries, split=split, notes=("A note.",))


def of(entries, alpha=ALPHA, split="test", sets=("A", "B"), hops=2, notes=()):
    return Contest(alpha, split, DATASETS, hops, sets, 0, tuple(entries), notes)


def made(**kwargs):
    return build_standings(held(**kwargs), "token_f1", {"version": "0"}, QUICK)


def test_values_are_between_the_best_as_each_fold_has_them():
    standings = made()
    named = [
        (value.value, value.chosen_on, value.first, value.second) for value in standings.values
    ]
    assert named == [
        ("second hop", "test", "high on B", "high on A"),
        ("adaptivity", "test", "hierrouter", "high on B"),
        ("lead", "test", "hierrouter", "cascade on B"),
        ("second hop", "validation", "low on B", "low on A"),
        ("adaptivity", "validation", "hierrouter", "low on B"),
        ("lead", "validation", "hierrouter", "cascade on B"),
    ]
    # They are differences on the fold shown.
    reward = [row.entry.outcome.reward(ALPHA) for row in standings.rows]
    drawn = np.random.default_rng([QUICK.seed, 3])  # the stream after those of its three datasets
    costs = [standings.rows[number].entry.outcome.cost for number in (3, 1)]
    within = difference_range(ALPHA, *costs)
    strata = standings.contest.datasets
    difference = reward[3] - reward[1]
    expected = interval(difference, QUICK.n, rng=drawn, within=within, strata=strata)
    hop = standings.values[0]
    assert (hop.difference_low, hop.difference_high) == pytest.approx(expected)
    assert hop.difference == pytest.approx((reward[3] - reward[1]).mean())
    # On the validation fold they are given once.
    assert [value.chosen_on for value in made(split="validation").values] == ["validation"] * 3


def test_two_constant_choices_of_one_route_have_no_interval():
    first = entry("best static", "B", 0.5, 0.5)
    same = [
        replace(first, settings={"arm": "a>b"}),
        replace(first, outcome=replace(first.outcome, name="tuned"), settings={"arm": "a>c"}),
        replace(
            first,
            outcome=replace(first.outcome, name="hierrouter", kind="router"),
            arms="",
            settings={"alpha": ALPHA, "arm": "a>b"},
        ),
    ]
    standings = build_standings(of(same), "token_f1", {}, QUICK)
    static, tuned, _ = standings.rows
    assert (static.difference, static.difference_low, static.simultaneous) == (0.0, None, None)
    # Another arm may differ on other questions, even if it did not on these.
    assert tuned.difference == 0 and tuned.difference_low < 0 < tuned.simultaneous_high
    reward, values = (contest_tables(standings)[number].cell_texts() for number in (0, 2))
    assert reward[0][-2:] == ["same choices", "-"]
    assert {line[-1] for line in values if line[2] == "best static on B"} == {"same choices"}
    told = json.loads(as_json(standings))["values"]
    assert [row["difference_low"] for row in told if row["second"] == "best static on B"] == [
        *[None] * len(told)
    ]


def test_of_equals_the_cheaper_on_that_very_fold_is_the_best():
    alike = [
        entry(f"at {cost}", "A", 0.25, 0.5, cost=cost, tried=tried)
        for cost, tried in ((0.1, 0.4), (0.4, 0.2))
    ]
    other = entry("other", "B", 0.5, 0.5)
    standings = build_standings(
        of([*alike, other], alpha=0.0, split="validation"), "token_f1", {}, QUICK
    )
    cheaper = of([*alike, other])
    assert standings.values[0].second == "at 0.4 on A"  # more quality where cost is free
    on_validation = build_standings(cheaper, "token_f1", {}, QUICK).values[-1]
    assert (on_validation.chosen_on, on_validation.second) == ("validation", "at 0.4 on A")


def test_without_a_router_or_both_sets_fewer_values_are_claimed():
    standings = made(router=False)
    assert {value.value for value in standings.values} == {"second hop"}
    assert all(row.difference is None and row.simultaneous is None for row in standings.rows)
    shown = [column.title for column in contest_tables(standings)[0].columns]
    assert shown == ["Router", "Q", "C", "R", "95% interval"]
    # Without both sets there is none.
    standings = build_standings(of(held().entries[:2], sets=("A",)), "token_f1", {}, QUICK)
    assert standings.values == ()
    titles = [table.heading for table in contest_tables(standings)]
    assert [title.partition(" ")[2][:1] for title in titles] == ["1", "2", "3"]
    assert not any("second hop" in title for title in titles)
    # With one hop there is no second one, and nothing to adapt to.
    one_hop = build_standings(of(held().entries, hops=1), "token_f1", {}, QUICK)
    assert {value.value for value in one_hop.values} == {"lead"}


def test_tables_say_who_chooses_from_what():
    reward, quality, values, settings = contest_tables(made())
    groups = [line.group for line in reward.rows]
    assert groups == [line.group for line in quality.rows]
    assert list(dict.fromkeys(groups)) == [
        "Set A: one direct call",
        "Set B: whole routes, chosen at once",
        "Learned on the tree",
        "Bounds: chosen knowing all answers",
    ]
    assert "A note." in reward.note
    assert [line.cells[0] for line in settings.rows][-1] == "HierRouter"
    assert len(values.rows) == 6
    assert [table.heading.split(". ")[0] for table in (reward, values)] == ["Table 1", "Table 3"]


def test_every_figure_is_that_of_a_report_on_the_same_queries():
    contestants = held()
    outcomes = [one.outcome for one in contestants.entries]
    report = example(outcomes, table=EstimateTable(DATASETS, QUICK), alpha=ALPHA, frontier=())
    told = json.loads(as_json(build_standings(contestants, "token_f1", {}, QUICK)))
    reported = [row for row in json.loads(report_json(report))["rows"] if row["dataset"] == "all"]
    for here, there in zip(told["rows"], reported, strict=True):
        assert {key: here[key] for key in SHARED} == {key: there[key] for key in SHARED}
    at_once = {one["policy"]: one for one in json.loads(report_json(report))["comparisons"]}
    cascade = told["rows"][4]
    assert cascade["simultaneous_low"] == at_once["cascade"]["low"]
    assert cascade["simultaneous_high"] == at_once["cascade"]["high"]
