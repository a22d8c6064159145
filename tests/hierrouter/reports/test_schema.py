"""The JSON, its schema and its documentation say the same."""

from __future__ import annotations

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
from hierrouter.learning.selection import provenance
from hierrouter.learning.sweep import Sweep
from hierrouter.learning.training import train
from hierrouter.reports.evaluated import DeferTo, report_on
from hierrouter.reports.results import Report, as_json
from hierrouter.reports.tables import ROW_COLUMNS, long_table
from hierrouter.reports.values import Bootstrap
from hierrouter_cache.tree import Rate, repriced
from tests.hierrouter.learning.runs import ALPHA, EXACT_GLIMPSE, GRID, small_tree, sweep_glimpse
from tests.hierrouter.reports.examples import (
    deferring,
    example,
    hostile,
    stopping,
    three_times,
    two_prices,
)

DOCS = Path(__file__).parents[3] / "docs" / "report.md"


@cache
def schema() -> dict[str, Any]:
    text = resources.files("hierrouter.reports").joinpath("schema.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@cache
def everything() -> Report:
    """A real report with all there can be: two seeds, stop, deferral, price lists, a policy."""
    tree = small_tree()
    trained = train(tree, Objective(ALPHA, allow_stop=True), EXACT_GLIMPSE, 0)
    sweep = Sweep(GRID, tuple(sweep_glimpse(tree, seed) for seed in (0, 1)))
    rates = zip(tree.direct.models, (2 * tree.direct.rate).tolist(), strict=True)
    lists = {"own": tree, "dear": repriced(tree, {name: Rate(*rate) for name, rate in rates})}
    return report_on(
        tree,
        ALPHA,
        trained,
        sweep,
        provenance(tree, Path("cache"), None, trained, None, lists),
        bootstrap=Bootstrap(n=50),
        price_lists=lists,
        defer=DeferTo("large"),
        policies=[own_policy(lambda seen: 0)],
    )


@cache
def stopping_sweep() -> Report:
    """One whose sweep may stop, for the depth curve, and whose router may not."""
    tree = small_tree()
    member = train(tree, Objective(ALPHA, allow_stop=True), EXACT_GLIMPSE, 0)
    sweep = Sweep((ALPHA,), ((member,),))
    return report_on(tree, ALPHA, None, sweep, {}, bootstrap=Bootstrap(n=50))


def keys_of(value: Any) -> Iterator[str]:
    """Every key of nested objects; names of datasets, models and lists are keys, too."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from keys_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from keys_of(item)


def documented() -> dict[str, list[str]]:
    """The keys in the first column below each heading that names an object of the schema."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^### ", DOCS.read_text("utf-8"), flags=re.M)[1:]:
        rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
        found[part.split(":")[0]] = [key for row in rows for key in re.findall(r"`(\w+)`", row)]
    return found


def objects() -> dict[str, list[str]]:
    """The keys of each object of the schema."""
    parts = {"Report": schema(), **schema()["$defs"]}
    return {name: list(part["properties"]) for name, part in parts.items() if "properties" in part}


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize(
    "report",
    [everything, stopping_sweep, example, stopping, two_prices, deferring, hostile],
    ids=lambda make: make.__name__,
)
def test_reports_are_valid(report: Any) -> None:
    made = report()
    if report is not everything:
        made = replace(made, provenance={})  # theirs is made up
    Draft202012Validator(schema()).validate(json.loads(as_json(made)))


def test_a_key_more_or_less_is_not_valid() -> None:
    found, validator = json.loads(as_json(everything())), Draft202012Validator(schema())
    for change in ("surplus", "rung"):
        changed = copy.deepcopy(found)
        rung = changed["analysis"]["ladder"][0]
        if rung.pop(change, None) is None:
            rung[change] = 1
        assert not validator.is_valid(changed)


def test_the_real_reports_have_every_key_of_the_schema() -> None:
    """Objects are closed, so the schema lacks none of theirs."""
    there = {
        key
        for report in (everything(), stopping_sweep(), example(), three_times())
        for key in keys_of(json.loads(as_json(report)))
    }
    assert {key for keys in objects().values() for key in keys} <= there
    provenance = json.loads(as_json(everything()))["provenance"]
    assert set(provenance) == set(objects()["Provenance"])


def test_every_key_is_documented_and_every_documented_key_is_there() -> None:
    assert {name: sorted(keys) for name, keys in documented().items()} == {
        name: sorted(keys) for name, keys in objects().items()
    }


def test_the_columns_of_the_csv_are_documented() -> None:
    columns = [column.title for column in long_table(everything()).columns]
    assert columns[-1] == "prices"
    assert sorted(columns[:-1]) == sorted(documented()["Row"])
    assert columns[:-1] == list(ROW_COLUMNS)
