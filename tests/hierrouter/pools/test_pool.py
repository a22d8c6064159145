"""What a pool means, and what a pool file or a stored plan of others may say."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hierrouter.pools.files import load_pool, parse_pool, pool_names, stored_pool
from hierrouter.pools.pool import Generation, Pool, Price, pool_from_json
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Rate
from tests.hierrouter.pools.examples import GOOD, IDENTITIES


def test_a_pool_survives_storage() -> None:
    pool = parse_pool(GOOD, "p.toml")
    assert pool_from_json(pool.to_json(IDENTITIES)) == (pool, IDENTITIES)


@pytest.mark.parametrize(
    ("entry", "rate", "source"),
    [
        ("base_rate = 0.25", Rate(0.25, 0.25), "pool"),
        ("rate_in = 0.25\nrate_out = 1", Rate(0.25, 1.0), "pool"),
        ("parameters = 3.0e9", Rate(0.003, 0.003), "size (3B)"),
        ('parameters = "350M"', Rate(0.00035, 0.00035), "size (350M)"),
        ('revision = "main"\nparameters = "8x7B"', Rate(0.056, 0.056), "size (56B)"),
    ],
)
def test_a_price_is_given_or_comes_from_the_size(entry: str, rate: Rate, source: str) -> None:
    pool = parse_pool(GOOD.replace("base_rate = 0.002", entry), "p.toml")
    assert pool.prices()["a"] == Price(rate, source)
    assert pool.prices()["big"] == Price(Rate.base(0.01), "pool")
    assert pool_from_json(pool.to_json(IDENTITIES)) == (pool, IDENTITIES)


def test_a_size_in_the_id_serves_where_the_name_has_none() -> None:
    text = GOOD.replace("base_rate = 0.002", "").replace("org/a", "org-70b/x-1.5B-Instruct")
    assert parse_pool(text, "p.toml").prices()["a"] == Price(Rate.base(0.0015), "size (1.5B)")


def test_a_plan_of_base_rates_only_is_read() -> None:
    pool = parse_pool(GOOD, "p.toml")
    stored = json.loads(pool.to_json(IDENTITIES))
    for model in stored["pool"]["models"] + stored["pool"]["references"]:
        for key in ("rate_in", "rate_out", "parameters"):
            del model[key]
    assert pool_from_json(json.dumps(stored))[0] == pool


def step(pool: Pool, identities: dict[str, dict[str, str]] = IDENTITIES) -> str:
    """Step key of the first model at the first hop."""
    return pool.tree_spec(identities).steps[0][0]


def test_what_changes_an_answer_changes_the_key() -> None:
    pool = parse_pool(GOOD, "p.toml")
    first = pool.models[0]
    longer = replace(first, generation=Generation(max_new_tokens=9))
    other = {**IDENTITIES, "a": {**IDENTITIES["a"], "weights": "a2"}}
    changed = [
        step(replace(pool, models=(longer, pool.models[1]))),
        step(replace(pool, stage_prompts=("think", "solve"))),
        step(pool, other),
    ]
    assert step(pool) not in changed
    assert len(set(changed)) == 3


def test_what_changes_no_answer_keeps_the_key() -> None:
    pool = parse_pool(GOOD, "p.toml")
    dearer = replace(pool.models[0], base_rate=9.0)
    assert step(replace(pool, models=(dearer, pool.models[1]))) == step(pool)
    assert (
        step(replace(pool, models=pool.models[::-1], hops=5))
        == pool.tree_spec(IDENTITIES).steps[0][1]
    )


def test_a_pool_file_becomes_plain_values() -> None:
    pool = parse_pool(GOOD, "p.toml")
    assert [model.name for model in pool.everyone] == ["a", "b", "big"]
    assert pool.models[1].generation == Generation(64, 0.0)
    assert (pool.instruction(0), pool.instruction(1), pool.instruction(5)) == (
        "plan",
        "solve",
        "solve",
    )
    assert pool.routes.calls == 6


@pytest.mark.parametrize("name", pool_names())
def test_shipped_pools_are_sound(name: str) -> None:
    pool = load_pool(name)
    assert (len(pool.models), pool.hops) == (3, 2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hops", "hopps", "unknown key hopps.*did you mean hops"),
        ("hops = 2", 'hops = "two"', "hops must be an integer, got 'two'"),
        ("hops = 2", "hops = 0", "hops must be at least 1 and"),
        ("hops = 2", "hops = 14", r"32,766 nodes per query"),
        ("hops = 2", "hops = 2\nhops = 3", r"not TOML: p.toml:\d: duplicate key hops; mend"),
        ("base_rate = 0.002", "base_rate = nan", "base_rate must be finite"),
        ("base_rate = 0.002", "base_rate = -1", "base_rate must be finite and >= 0"),
        ("base_rate = 0.002", "", 'base_rate is missing.*p.toml, model a; .*parameters = "3B"'),
        ("base_rate = 0.002", 'base_rate = "2"', "base_rate must be a number, got '2'"),
        ("base_rate = 0.002", "rate_in = 0.002", "give base_rate alone, or both rate_in and"),
        ("base_rate = 0.002", "base_rate = 1\nrate_in = 1\nrate_out = 1", "give base_rate alone"),
        ("base_rate = 0.002", "rate_in = 1\nrate_out = inf", "rate_out must be finite"),
        ("base_rate = 0.002", "parameters = 3", 'parameters must be like "3B" or 3.0e9, got 3'),
        ("base_rate = 0.002", 'parameters = "three"', 'parameters must be like "3B"'),
        ("base_rate = 0.002", "parameters = nan", "parameters must be finite"),
        ('name = "b"', 'name = "a"', "duplicate model a"),
        ('name = "b"', 'name = "b>c"', "invalid model name"),
        ('"org/a"', '"../../evil"', r"invalid model path with \.\./"),
        ("base_rate = 0.002", 'base_rate = 1\napi_key = "sk-CANARY"', "api_key must not stand"),
        ("base_rate = 0.002", 'base_rate = 1\nbackend = "vlm"', "unknown backend vlm"),
        ("max_new_tokens = 64", "max_tokens = 64", "unknown key max_tokens"),
        ("max_new_tokens = 64", "max_new_tokens = 0", "max_new_tokens must be at least 1"),
        ("max_new_tokens = 64", "temperature = -0.7", r"temperature must be 0 \(greedy\) or 0.01"),
        ("max_new_tokens = 64", "temperature = nan", r"temperature must be 0 \(greedy\) or 0.01"),
        ("max_new_tokens = 64", "top_p = 0.0", "top_p must be above 0 and at most 1, got 0.0"),
        ("max_new_tokens = 64", "top_p = 1.1", "top_p must be above 0 and at most 1, got 1.1"),
        ("max_new_tokens = 64", "seed = -1", "seed must be 0 to 2147483647, got -1"),
        ('["plan", "solve"]', "[]", "stage_prompts must be a list"),
        ('["plan", "solve"]', '"Solve."', "stage_prompts must be a list, got 'Solve.'"),
        ("hops = 2", "hops = 20000", "hops must be at least 1 and at most 20"),
        ('name = "a"', 'name = "oracle"', "model name is taken"),
        ('name = "a"', 'name = "stop"', "model name is taken: p.toml, model stop; reports use it"),
        ("base_rate = 0.002", 'base_rate = 1\ndtype = "floaty"', "unknown dtype floaty"),
        ("base_rate = 0.002", "base_rate = 1\nrevision = 5", "revision must be a text, got 5"),
        ("{ max_new_tokens = 64 }", "3", "generation must be a table"),
        ("[[references]]", "[references]", "references must be a list"),
        ("hops = 2", "hops = 1979-05-27", r"datetime.date\(1979, 5, 27\) is no value"),
        (
            '["plan", "solve"]',
            "[1979-05-27]",
            r"datetime.date\(1979, 5, 27\) is no value of a pool",
        ),
        ('["plan", "solve"]', '["plan", 3]', "stage_prompts must be a list, each a text, got 3"),
    ],
)
def test_a_bad_entry_is_named(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_pool(GOOD.replace(old, new), "p.toml")
    assert "p.toml" in str(caught.value)
    assert "CANARY" not in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "d.toml").mkdir()
    (tmp_path / "e.toml").write_text("")
    (tmp_path / "u.toml").write_text(GOOD, encoding="utf-16")
    for name, message in [
        ("nope.toml", "not found"),
        ("d.toml", "directory"),
        ("e.toml", "empty"),
        ("u.toml", "UTF-8"),
    ]:
        with pytest.raises(InputError, match=message):
            load_pool(str(tmp_path / name))
    with pytest.raises(InputError, match="unknown pool: testbd; did you mean testbed"):
        load_pool("testbd")


def plan() -> dict[str, Any]:
    """The pool of a plan as it is stored."""
    stored: dict[str, Any] = json.loads(parse_pool(GOOD, "p.toml").to_json(IDENTITIES))
    return stored


def test_a_stored_plan_is_read_as_it_was_written() -> None:
    imported = plan()
    for model in imported["pool"]["models"]:
        model.update(backend="imported", base_rate=None, rate_in=1.0, rate_out=2.0)
    imported["pool"]["context_free"] = True
    for text in (json.dumps(plan()), json.dumps(imported)):
        assert stored_pool(text, "line 3") == pool_from_json(text)


SPOILT: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda p: p["pool"].update(hops="2"), "hops must be an integer, got '2'"),
    (lambda p: p["pool"].update(hops=2.0), "hops must be an integer, got 2.0"),
    (lambda p: p["pool"].update(hops=14), "32,766 nodes per query"),
    (lambda p: p["pool"].update(stage_prompts=["a", 3]), "stage_prompts must be a list"),
    (lambda p: p["pool"].update(context_free=1), "context_free must be true or false, got 1"),
    (lambda p: p["pool"].update(extra=1), "unknown key extra"),
    (lambda p: p["pool"].update(models=[]), "models is empty"),
    (
        lambda p: p["pool"].update(models=[3]),
        r"models must be tables: line 3; write \[\[mod",
    ),
    (lambda p: p["pool"]["models"][0].update(base_rate="1"), "base_rate must be a number"),
    (lambda p: p["pool"]["models"][0].update(base_rate=float("nan")), "base_rate must be finite"),
    (lambda p: p["pool"]["models"][0].update(backend="vlm"), "unknown backend vlm"),
    (lambda p: p["pool"]["models"][0]["generation"].update(seed=-1), "seed must be 0 to"),
    (lambda p: p["pool"]["models"][0]["generation"].update(t=0), "unknown key t"),
    (lambda p: p["pool"].pop("models"), "models is empty"),
    (lambda p: p.pop("pool"), "models is empty"),
    (lambda p: p.update(pool=[]), "pool must be a table"),
    (lambda p: p["identities"].pop("b"), "identity must be a table of texts: line 3, model b"),
    (lambda p: p["identities"]["big"].update(weights=3), "identity must be a table of texts"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILT, ids=range(len(SPOILT)))
def test_a_spoilt_plan_is_named(spoil: Callable[[dict[str, Any]], Any], message: str) -> None:
    spoilt = plan()
    spoil(spoilt)
    with pytest.raises(InputError, match=message) as caught:
        stored_pool(json.dumps(spoilt), "line 3")
    assert "line 3" in str(caught.value)


DEEP = '{"pool": {"hops": ' + "[" * 900 + "]" * 900 + "}}"


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"pool": {}}', DEEP], ids=range(6))
def test_a_plan_that_is_none(text: str) -> None:
    with pytest.raises(InputError, match="line 3"):
        stored_pool(text, "line 3")
