"""The JSON that other people's scripts read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hierrouter.reports.results import as_json
from hierrouter.tables import significant
from hierrouter_cache.errors import InputError
from tests.hierrouter.reports.examples import example, hostile, stopping, three_times, two_prices

ROW_KEYS = {
    "policy": str,
    "kind": str,
    "dataset": str,
    "n": int,
    "quality": float,
    "accuracy": float,
    "cost": float,
    "reward": float,
    "reward_low": float,
    "reward_high": float,
    "quality_low": float,
    "quality_high": float,
    "accuracy_low": float,
    "accuracy_high": float,
    "cost_low": float,
    "cost_high": float,
}
OPTIONAL_ROW_KEYS = {"difference", "difference_low", "difference_high"}


def loaded() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(as_json(example()))
    return parsed


def test_keys_are_those_of_the_contract() -> None:
    found = loaded()
    assert set(found) == {
        "alpha",
        "analysis",
        "bootstrap",
        "comparisons",
        "cost_unit",
        "deferral",
        "depth_curve",
        "depths",
        "format",
        "frontier",
        "gap_closed",
        "gap_closed_intervals",
        "learning",
        "notes",
        "power",
        "price_lists",
        "provenance",
        "route_map",
        "rows",
        "scorer",
        "split",
    }
    assert found["cost_unit"] == "base_rate*token"
    assert found["bootstrap"] == {"n": 200, "level": 0.95, "cluster": "query", "seed": 7}
    assert found["provenance"]["seed"] == 42


def test_rows_have_the_fields_of_the_contract() -> None:
    for row in loaded()["rows"]:
        assert set(row) == set(ROW_KEYS) | OPTIONAL_ROW_KEYS
        for key, kind in ROW_KEYS.items():
            assert type(row[key]) is kind, key
        for key in OPTIONAL_ROW_KEYS:
            assert (row[key] is None) == (row["kind"] == "router"), key
        for figure in ("quality", "accuracy", "cost", "reward"):
            assert row[f"{figure}_low"] <= row[figure] <= row[f"{figure}_high"]


def test_price_lists_stand_side_by_side() -> None:
    report = json.loads(as_json(two_prices()))
    assert report["cost_unit"] == "price*token"
    assert [prices["name"] for prices in report["price_lists"]] == ["cheap", "dear"]
    cheap, dear = report["price_lists"]
    assert [prices["rows"][3]["policy"] for prices in (cheap, dear)] == ["a>b", "a>b"]
    assert (cheap["rows"][3]["cost"], cheap["rows"][3]["reward"]) == (1.0, 0.4)
    assert (dear["rows"][3]["cost"], dear["rows"][3]["reward"]) == (3.0, 0.2)
    assert cheap["gap_closed"] == report["gap_closed"]
    # Router .6, best fixed route .4 and oracle .8 all lose .2 where every call costs 2 more.
    assert dear["gap_closed"]["all"] == 0.5
    assert loaded()["price_lists"] == []


def test_where_the_router_stops() -> None:
    found = json.loads(as_json(stopping()))
    keys = ("calls", "share", "quality", "cost", "reward", "reward_low")
    assert [tuple(row[key] for key in keys) for row in found["depths"]] == [
        (1, 0.25, 0.3, 0.6, 0.24, 0.14),
        (2, 0.75, 0.8, 1.2, 0.68, 0.58),
        (3, 0.0, None, None, None, None),
    ]
    assert found["depth_curve"][0] == {
        "alpha": 0.1,
        "beyond_first": 0.25,
        "calls": 1.25,
        "quality": 0.5,
        "cost": 0.7,
    }
    assert loaded()["depths"] == loaded()["depth_curve"] == []


def test_what_may_be_claimed() -> None:
    found = loaded()
    names = [row["policy"] for row in found["rows"] if row["dataset"] == "all"]
    rivals = [name for name in names if name not in ("hierrouter", "oracle")]
    assert [one["policy"] for one in found["comparisons"]] == rivals
    for one in found["comparisons"]:
        assert set(one) == {"policy", "kind", "difference", "low", "high"}
        assert one["low"] <= one["difference"] <= one["high"]
    assert found["power"] is None  # of 4 queries
    power = json.loads(as_json(three_times()))["power"]
    assert power.pop("smallest_difference") > power.pop("wanted_difference")
    assert power.pop("queries") > 12
    assert power == {
        "policy": "a>b",
        "kind": "route",
        "deviation": pytest.approx((3 * 0.34 / 11) ** 0.5),
        "power": 0.8,
    }
    assert set(found["gap_closed_intervals"]) == set(found["gap_closed"])
    low, high = found["gap_closed_intervals"]["all"]
    assert low <= found["gap_closed"]["all"] <= high


def test_a_point_of_a_sweep_has_intervals() -> None:
    (point,) = json.loads(as_json(stopping()))["frontier"]
    for figure in ("quality", "cost", "reward"):
        assert point[f"{figure}_low"] <= point[figure] <= point[f"{figure}_high"]
        low, high = point["crossed"][figure]
        assert low < point[f"{figure}_low"] and point[f"{figure}_high"] < high
    assert {point["crossed"] for point in loaded()["frontier"]} == {None}


def test_several_seeds_have_a_spread() -> None:
    (point,) = json.loads(as_json(stopping()))["frontier"]
    assert (point["quality"], point["cost"], point["reward"]) == (0.65, 0.75, 0.575)
    assert point["spread"] == {
        "seeds": 2,
        "quality": [0.6, 0.7],
        "cost": [0.5, 1.0],
        "reward": [0.55, 0.6],
    }
    assert {point["spread"] for point in loaded()["frontier"]} == {None}


def test_identical_inputs_give_identical_sorted_bytes() -> None:
    text = as_json(example())
    assert text == as_json(example())
    assert text.endswith("}\n")
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=2) + "\n"


def test_floats_do_not_show_the_last_bits_of_a_sum() -> None:
    assert significant(0.1 + 0.2) == 0.3
    assert str(significant(-0.0)) == "0.0"
    assert '"reward": 0.30000000000000004' not in as_json(example())


def test_hostile_names_come_back_whole_and_ascii() -> None:
    report = hostile()
    text = as_json(replace(report, provenance={"a\x7f": "\x9b\x1b\u202e"}))
    assert text.isascii()
    assert not {"\x1b", "\x7f"} & set(text)
    parsed = json.loads(text)
    assert [row["policy"] for row in parsed["rows"]] == [row.policy for row in report.rows]
    assert parsed["provenance"] == {"a\x7f": "\x9b\x1b\u202e"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="not JSON"):
        as_json(replace(example(), provenance={"x": value}))
