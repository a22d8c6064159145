import json
from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.pool import (
    Generation,
    Pool,
    load_pool,
    parse_pool,
    pool_from_json,
    pool_names,
)
from hierrouter.pricing import Price
from hierrouter_cache.errors import InputError
from hierrouter_cache.pricing import Rate

GOOD = """
[pool]
hops = 2
stage_prompts = ["plan", "solve"]
[[models]]
name = "a"
model = "org/a"
base_rate = 0.002
[[models]]
name = "b"
model = "org/b"
base_rate = 0.003
generation = { max_new_tokens = 64 }
[[references]]
name = "big"
model = "org/big"
base_rate = 0.01
"""
IDENTITIES = {name: {"weights": name, "engine": "e", "dtype": "auto"} for name in ("a", "b", "big")}


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


def test_a_pool_survives_storage() -> None:
    pool = parse_pool(GOOD, "p.toml")
    assert pool_from_json(pool.to_json(IDENTITIES)) == (pool, IDENTITIES)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hops", "hopps", "unknown key hopps.*did you mean hops"),
        ("hops = 2", 'hops = "two"', "hops must be an integer, got 'two'"),
        ("hops = 2", "hops = 0", "hops must be at least 1 and"),
        ("hops = 2", "hops = 14", r"32,766 nodes per query"),
        ("hops = 2", "hops = 2\nhops = 3", "not TOML"),
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
        ("base_rate = 0.002", 'base_rate = 1\ndtype = "floaty"', "unknown dtype floaty"),
        ("base_rate = 0.002", "base_rate = 1\nrevision = 5", "revision must be a text, got 5"),
        ("{ max_new_tokens = 64 }", "3", "generation must be a table"),
        ("[[references]]", "[references]", "references must be a list"),
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
