"""Any pool file is a pool, or refused in one line; what is written is read as it was."""

import json
import tomllib
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierrouter.pools.files import parse_pool, stored_pool
from hierrouter.pools.pool import RESERVED_NAMES, Endpoint, Generation, ModelSpec, Pool
from hierrouter_cache.errors import InputError
from tests.hierrouter.pools.examples import GOOD, IDENTITIES
from tests.properties.near import VALUE, damaged, edited

FEW = settings(max_examples=40)
RATE = st.floats(0, 1e6)
# What some reader of TOML takes for more than a value.
RAW = ("0x" + "f" * 5000, "9" * 5000, "1e999", "-nan", "1979-05-27T07:32:00Z", "{}", "[[]]", "'''")
SOUND = {
    **tomllib.loads(GOOD),
    **tomllib.loads("""
[[models]]
name = "a"
model = "org/a"
rate_in = 0.5
rate_out = 1
device = "cuda:0"
backend = "openai"
revision = "main"
dtype = "auto"
generation = { max_new_tokens = 64, temperature = 0.7, top_p = 0.9, seed = 1 }
endpoint = { base_url = "http://127.0.0.1:8000/v1", concurrency = 2, attempts = 3 }
[[models]]
name = "b"
model = "org/b-7B"
parameters = "7B"
"""),
}


def toml(value: Any) -> str:
    """A JSON value as TOML, in one line; a text `raw:...` is what follows it, as it is."""
    if isinstance(value, str) and value.startswith("raw:"):
        return value[4:]
    if isinstance(value, dict):
        inner = ", ".join(f"{json.dumps(name)} = {toml(item)}" for name, item in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps("" if value is None else value, ensure_ascii=False)


def file_of(tables: Any) -> str:
    if not isinstance(tables, dict):
        return toml(tables)
    return "".join(f"{json.dumps(name)} = {toml(item)}\n" for name, item in tables.items())


@FEW
@given(edited(SOUND, VALUE | st.sampled_from([f"raw:{text}" for text in RAW])))
def test_any_pool_file_is_taken_or_refused(tables: Any) -> None:
    text = file_of(tables)
    try:
        pool = parse_pool(text, "p.toml")
    except InputError as error:
        assert "p.toml" in str(error)
    else:
        assert stored_pool(pool.to_json(_identities(pool)), "it")[0] == pool
        pool.tree_spec(_identities(pool))
        pool.prices()


@FEW
@given(damaged(GOOD.encode()))
def test_a_pool_file_of_any_bytes_is_taken_or_refused(data: bytes) -> None:
    try:
        parse_pool(data.decode("utf-8", "replace"), "p.toml")
    except InputError as error:
        assert "p.toml" in str(error)


@FEW
@given(
    edited({"pool": json.loads(parse_pool(GOOD, "").to_json({}))["pool"], "identities": IDENTITIES})
)
def test_any_stored_pool_is_taken_or_refused(stored: Any) -> None:
    try:
        pool, identities = stored_pool(json.dumps(stored), "the plan")
    except InputError as error:
        assert "the plan" in str(error)
    else:
        pool.tree_spec(identities)


def _identities(pool: Pool) -> dict[str, dict[str, str]]:
    return {model.name: {"weights": model.name} for model in pool.all_models}


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,8}", fullmatch=True).filter(
    lambda name: name not in RESERVED_NAMES
)


@st.composite
def models(draw: st.DrawFn, name: str) -> ModelSpec:
    base = draw(st.booleans())
    served = draw(st.booleans())
    return ModelSpec(
        name=name,
        model=draw(st.from_regex(r"[a-z\u00e9\"\\\n]+", fullmatch=True)) + "x",
        backend="openai" if served else "transformers",
        base_rate=draw(RATE) if base else None,
        rate_in=None if base else draw(RATE),
        rate_out=None if base else draw(RATE),
        dtype=draw(st.sampled_from(("auto", "float32", "float16", "bfloat16"))),
        generation=Generation(
            draw(st.integers(1, 10**6)),
            draw(st.just(0.0) | st.floats(0.01, 100)),
            draw(st.floats(0.001, 1)),
            draw(st.integers(0, 2**31 - 1)),
        ),
        endpoint=Endpoint("http://localhost:1/v1", timeout_s=draw(st.floats(0.1, 9)))
        if served
        else None,
    )


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    specs = [draw(models(name)) for name in names]
    cut = draw(st.integers(1, len(specs)))
    prompts = draw(st.lists(st.text(max_size=9).filter(_printable), min_size=1, max_size=3))
    return Pool(tuple(specs[:cut]), draw(st.integers(1, 6)), tuple(prompts), tuple(specs[cut:]))


def _printable(text: str) -> bool:
    return "\r" not in text and "\x7f" not in text and not text.startswith("raw:")


@FEW
@given(pools())
def test_a_pool_is_read_as_it_was_written(pool: Pool) -> None:
    written = _without_nothing(asdict(pool))
    head = {name: written[name] for name in ("hops", "stage_prompts")}
    entries = {name: written[name] for name in ("models", "references")}
    assert parse_pool(file_of({"pool": head, **entries}), "p.toml") == pool
    assert stored_pool(pool.to_json(_identities(pool)), "the plan") == (pool, _identities(pool))


def _without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nothing(item) for name, item in value.items() if item is not None}
    return [_without_nothing(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("value", ["0x" + "f" * 5000, "9" * 5000, "[0x" + "f" * 5000 + "]"])
def test_a_number_that_cannot_be_shown_is_refused(value: str) -> None:
    with pytest.raises(InputError, match=r"too many digits: p\.toml"):
        parse_pool(GOOD.replace("hops = 2", f"hops = {value}"), "p.toml")


@pytest.mark.parametrize("size", ["9" * 400 + "B", "9" * 5000 + "x7B", "9" * 400 + "x7B"])
def test_a_size_beyond_all_models_is_none(size: str) -> None:
    with pytest.raises(InputError, match="base_rate is missing"):
        parse_pool(GOOD.replace("base_rate = 0.002", "").replace('"a"', f'"{size}"'), "p.toml")
    with pytest.raises(InputError, match="parameters must be like"):
        parse_pool(GOOD.replace("base_rate = 0.002", f'parameters = "{size}"'), "p.toml")


def test_half_a_character_is_in_no_stored_pool() -> None:
    stored = json.loads(parse_pool(GOOD, "p.toml").to_json(IDENTITIES))
    stored["pool"]["stage_prompts"] = ["\ud800"]
    with pytest.raises(InputError, match="not JSON: the plan"):
        stored_pool(json.dumps(stored), "the plan")
