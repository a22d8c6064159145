"""What a pool means: content keys, prices, storage."""

import json
from dataclasses import replace

import pytest

from hierrouter.pools.files import parse_pool
from hierrouter.pools.pool import Generation, Pool, Price, pool_from_json
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
