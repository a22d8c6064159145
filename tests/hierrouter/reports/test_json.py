"""The JSON that other people's scripts read; its schema and its documentation say the same."""

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hierrouter.evaluation.policies import own_policy
from hierrouter.learning.config import Objective
from hierrouter.learning.training import train
from hierrouter.questions.audit import audit_responses
from hierrouter.reports.estimates import Bootstrap
from hierrouter.reports.fold_report import DeferralTarget, report_on_fold
from hierrouter.reports.report import as_json
from hierrouter.reports.results import ReportData
from hierrouter.reports.tables import ROW_COLUMNS, long_table
from hierrouter.runs.selection import provenance
from hierrouter.tables import significant
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Rate, reprice
from tests.hierrouter.learning.trainings import (
    ALPHA,
    EXACT_GLIMPSE,
    VALUE,
    small_tree,
    sweep_glimpse,
)
from tests.hierrouter.questions.test_audit import label, quiz
from tests.hierrouter.reports.examples import deferring, example, hostile, stopping, two_prices
from tests.hierrouter.trees import lucky_tree

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "json.md"


def loaded(report: ReportData) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(as_json(report))
    return parsed


@cache
def schema() -> dict[str, Any]:
    text = resources.files("hierrouter.reports").joinpath("schema.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


@cache
def everything() -> ReportData:
    """A real report with all there can be: stop, deferral, price lists, a policy, seconds.

    One of the lists has prices of cached tokens, thoughts and calls.
    """
    tree = small_tree()
    tree = replace(tree, seconds=0.01 * tree.tokens_out)
    trained = train(tree, Objective(ALPHA, allow_stop=True), EXACT_GLIMPSE, 0)
    sweep = sweep_glimpse(tree)
    rates = zip(tree.direct.models, (2 * tree.direct.rate).tolist(), strict=True)
    dear = {name: Rate(*rate, cached=0.0, thoughts=2.0, call=1.0) for name, rate in rates}
    lists = {"own": tree, "dear": reprice(tree, dear)}
    report = report_on_fold(
        tree,
        ALPHA,
        trained,
        sweep,
        provenance(tree, Path("cache"), None, trained, None, lists, sweep),
        bootstrap=Bootstrap(n=50),
        price_lists=lists,
        defer=DeferralTarget("large"),
        policies=[own_policy(lambda seen: 0)],
    )
    numbers_of_options = quiz(20, int, label)
    return replace(report, audit=audit_responses(numbers_of_options))


@cache
def valued() -> ReportData:
    """A real report of a value model."""
    tree = small_tree()
    trained = train(tree, Objective(ALPHA), VALUE, 0)
    source = provenance(tree, Path("cache"), None, trained, None, {})
    return report_on_fold(tree, ALPHA, trained, None, source, bootstrap=Bootstrap(n=50))


@cache
def lucky() -> ReportData:
    """A real report on a tree whose calls have several draws."""
    tree = lucky_tree(2, 80, 2, 1)
    tree = replace(tree, splits=("train", "validation", "test", "test") * 20)
    trained = train(tree, Objective(1.0), EXACT_GLIMPSE, 0)
    return report_on_fold(tree, 1.0, trained, None, {}, bootstrap=Bootstrap(n=50))


def keys_of(value: Any) -> Iterator[str]:
    """Every key of nested objects; names of datasets, models and lists are keys, too."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from keys_of(item)


def documented() -> dict[str, list[str]]:
    """The keys in the first column below each heading that names an object of the schema."""
    data: dict[str, list[str]] = {}
    section, _, _ = DOCS.read_text("utf-8").partition("\n## Compare")
    for part in re.split(r"^### ", section, flags=re.M)[1:]:
        rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
        keys = sorted(key for row in rows for key in re.findall(r"`(\w+)`", row))
        data[part.split(":")[0]] = keys
    return data


def objects() -> dict[str, list[str]]:
    """The keys of each object of the schema."""
    parts = {"Report": schema(), **schema()["$defs"]}
    return {
        name: sorted(part["properties"]) for name, part in parts.items() if "properties" in part
    }


@pytest.mark.parametrize(
    "report",
    [everything, valued, lucky, example, stopping, two_prices, deferring, hostile],
    ids=lambda make: make.__name__,
)
def test_reports_are_valid(report: Any) -> None:
    Draft202012Validator.check_schema(schema())
    made = report()
    if report not in (everything, valued):
        made = replace(made, provenance={})  # theirs is made up
    Draft202012Validator(schema()).validate(loaded(made))


def test_a_key_more_or_less_is_not_valid() -> None:
    data, validator = loaded(everything()), Draft202012Validator(schema())
    for change in ("surplus", "rung"):
        changed = copy.deepcopy(data)
        rung = changed["analysis"]["ladder"][0]
        if rung.pop(change, None) is None:
            rung[change] = 1
        assert not validator.is_valid(changed)


def test_the_real_reports_have_every_key_of_the_schema() -> None:
    """Objects are closed, so the schema lacks none of theirs."""
    reports = (everything(), valued(), example(), lucky())
    there = {key for report in reports for key in keys_of(loaded(report))}
    assert {key for keys in objects().values() for key in keys} <= there
    assert sorted(loaded(everything())["provenance"]) == objects()["Provenance"]


def test_every_key_is_documented_and_every_documented_key_is_there() -> None:
    assert documented() == objects()
    assert [column.title for column in long_table(everything()).columns] == [*ROW_COLUMNS, "prices"]
    assert sorted(ROW_COLUMNS) == documented()["Row"]


def test_where_the_router_stops() -> None:
    data = loaded(stopping())
    depths = [(row["calls"], row["share"], row["reward"]) for row in data["depths"]]
    assert depths == [(1, 0.25, 0.24), (2, 0.75, 0.68), (3, 0.0, None)]
    assert loaded(example())["depths"] == []


def test_an_infinite_threshold_is_null() -> None:
    data = loaded(deferring())["deferral"]
    assert (data["chosen"]["threshold"], data["chosen"]["chance"]) == (-0.2, 0.48)
    assert [point["threshold"] for point in data["curve"]] == [None, -0.5, -0.1, 0.9, None]


def test_identical_inputs_give_identical_sorted_bytes_of_short_floats() -> None:
    text = as_json(example())
    assert text == as_json(example())
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=2) + "\n"
    assert significant(0.1 + 0.2) == 0.3
    assert str(significant(-0.0)) == "0.0"
    assert '"reward": 0.30000000000000004' not in text


def test_hostile_names_come_back_whole_and_ascii() -> None:
    report = replace(hostile(), provenance={"a\x7f": "\x9b\x1b\u202e"})
    text = as_json(report)
    assert text.isascii()
    assert not {"\x1b", "\x7f"} & set(text)
    parsed = json.loads(text)
    assert [row["policy"] for row in parsed["rows"]] == [row.policy for row in report.rows]
    assert parsed["provenance"] == report.provenance


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="not JSON"):
        as_json(replace(example(), provenance={"x": value}))
