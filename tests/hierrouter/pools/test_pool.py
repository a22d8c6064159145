"""What a pool means, and what a pool file or a stored plan of others may say."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hierrouter.pools.files import load_pool, parse_pool, pool_names, stored_pool
from hierrouter.pools.pool import Generation, Pool, Price
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Rate
from tests.hierrouter.pools.examples import GOOD, IDENTITIES

POOL = parse_pool(GOOD, "p.toml")


def test_a_pool_file_becomes_plain_values() -> None:
    assert [model.name for model in POOL.all_models] == ["a", "b", "big"]
    assert POOL.models[1].generation == Generation(64, 0.0)
    assert [POOL.instruction(level) for level in (0, 1, 5)] == ["plan", "solve", "solve"]
    assert POOL.layout.calls == 6
    assert POOL.prices()["big"] == Price(Rate.base(0.01), "pool")


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
    assert stored_pool(pool.to_json(IDENTITIES), "a plan") == (pool, IDENTITIES)


def test_a_size_in_the_id_serves_where_the_name_has_none() -> None:
    text = GOOD.replace("base_rate = 0.002", "").replace("org/a", "org-70b/x-1.5B-Instruct")
    assert parse_pool(text, "p.toml").prices()["a"] == Price(Rate.base(0.0015), "size (1.5B)")


def step(pool: Pool, identities: dict[str, dict[str, str]] = IDENTITIES) -> str:
    """Step key of the first model at the first hop."""
    return pool.tree_spec(identities).steps[0][0]


def test_what_changes_an_answer_changes_the_key() -> None:
    first, second = POOL.models
    longer = replace(first, generation=Generation(max_new_tokens=9))
    changed = [
        step(replace(POOL, models=(longer, second))),
        step(replace(POOL, stage_prompts=("think", "solve"))),
        step(POOL, {**IDENTITIES, "a": {**IDENTITIES["a"], "weights": "a2"}}),
    ]
    assert step(POOL) not in changed
    assert len(set(changed)) == 3
    dearer = replace(first, base_rate=9.0)  # which changes no answer; nor does the order
    assert step(replace(POOL, models=(dearer, second))) == step(POOL)
    turned = replace(POOL, models=(second, first), hops=5)
    assert step(turned) == POOL.tree_spec(IDENTITIES).steps[0][1]


@pytest.mark.parametrize("name", pool_names())
def test_shipped_pools_are_sound(name: str) -> None:
    pool = load_pool(name)
    assert (len(pool.models), pool.hops) == (5 if name == "graded" else 3, 2)


RATE, LIMIT, PROMPTS = "base_rate = 0.002", "max_new_tokens = 64", '["plan", "solve"]'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (RATE, "", 'base_rate is missing.*p.toml, model a; .*parameters = "3B"'),
        (RATE, 'base_rate = "2"', "base_rate must be a number, got '2'"),
        (RATE, "rate_in = 0.002", "give base_rate alone, or both rate_in and"),
        (RATE, "base_rate = 1\nrate_in = 1\nrate_out = 1", "give base_rate alone"),
        (RATE, "rate_in = 1\nrate_out = inf", "rate_out must be finite"),
        (RATE, "parameters = 3", 'parameters must be like "3B" or 3.0e9, got 3'),
        (RATE, 'base_rate = 1\nbackend = "vlm"', "unknown backend vlm"),
        (RATE, 'base_rate = 1\ndtype = "floaty"', "unknown dtype floaty"),
        (RATE, "base_rate = 1\nrevision = 5", "revision must be a text, got 5"),
        ('name = "b"', 'name = "b>c"', "invalid model name"),
        ('name = "a"', 'name = "oracle"', "model name is taken"),
        ('name = "a"', 'name = "stop"', "model name is taken: p.toml, model stop; reports use it"),
        (LIMIT, "max_tokens = 64", "unknown key max_tokens"),
        (LIMIT, "max_new_tokens = 0", "max_new_tokens must be at least 1"),
        (LIMIT, "temperature = -0.7", r"temperature must be 0 \(greedy\) or 0.01"),
        (LIMIT, "temperature = nan", r"temperature must be 0 \(greedy\) or 0.01"),
        (LIMIT, "top_p = 0.0", "top_p must be above 0 and at most 1, got 0.0"),
        (LIMIT, "top_p = 1.1", "top_p must be above 0 and at most 1, got 1.1"),
        (LIMIT, "seed = -1", "seed must be 0 to 2147483647, got -1"),
        (LIMIT, "repetition_penalty = 0", "repetition_penalty must be above 0 and at most 10"),
        ("{ max_new_tokens = 64 }", "3", "generation must be a table"),
        (PROMPTS, "[]", "stage_prompts must be a list of at least one"),
        (PROMPTS, '"Solve."', "stage_prompts must be a list, got 'Solve.'"),
        (PROMPTS, '["plan", 3]', "stage_prompts must be a list, each a text, got 3"),
        (PROMPTS, "[1979-05-27]", r"datetime.date\(1979, 5, 27\) is no value of a pool"),
        ("hops = 2", "hops = 20000", "hops must be at least 1 and at most 20"),
        ("[[references]]", "[references]", "references must be a list"),
    ],
)
def test_a_bad_entry_is_named(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_pool(GOOD.replace(old, new), "p.toml")
    assert "p.toml" in str(caught.value)


def plan() -> dict[str, Any]:
    """The pool of a plan as it is stored."""
    return json.loads(POOL.to_json(IDENTITIES))


def test_a_stored_plan_is_read_as_it_was_written() -> None:
    """Also one of imported answers, and one of an earlier version, which lacks later fields."""
    imported, old = plan(), plan()
    for model in imported["pool"]["models"]:
        model.update(backend="imported", base_rate=None, rate_in=1.0, rate_out=2.0)
    imported["pool"]["context_free"] = True
    for model in old["pool"]["models"] + old["pool"]["references"]:
        for later in ("device", "endpoint", "rate_in", "rate_out", "parameters"):
            del model[later]
    for stored in (plan(), old):
        assert stored_pool(json.dumps(stored), "line 3") == (POOL, IDENTITIES)
    assert stored_pool(json.dumps(imported), "line 3")[0].imported


SPOILT: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda p: p["pool"]["models"][0].update(batching="static"), "unknown key batching"),
    (lambda p: p["pool"].update(hops="2"), "hops must be an integer, got '2'"),
    (lambda p: p["pool"].update(hops=2.0), "hops must be an integer, got 2.0"),
    (lambda p: p["pool"].update(hops=14), "32,766 nodes per query"),
    (lambda p: p["pool"].update(stage_prompts=["a", 3]), "stage_prompts must be a list"),
    (lambda p: p["pool"].update(context_free=1), "context_free must be true or false, got 1"),
    (lambda p: p["pool"].update(extra=1), "unknown key extra"),
    (lambda p: p["pool"].update(models=[3]), r"models must be tables: line 3; write \[\[mod"),
    (lambda p: p["pool"]["models"][0].update(backend="vlm"), "unknown backend vlm"),
    (lambda p: p["pool"]["models"][0]["generation"].update(seed=-1), "seed must be 0 to"),
    (lambda p: p["pool"]["models"][0]["generation"].update(t=0), "unknown key t"),
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
