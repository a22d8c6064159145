"""Where a server is and how it is called: in a pool file, in a plan, by flags."""

import json
from typing import Any

import pytest

from hierrouter.pools.files import overridden, parse_pool, stored_pool
from hierrouter.pools.pool import Endpoint, ModelSpec, Pool, pool_from_json
from hierrouter_cache.errors import InputError
from tests.hierrouter.pools.examples import GOOD, IDENTITIES

URL = "http://127.0.0.1:8000/v1"
TABLE = f"""[models.endpoint]
base_url = "{URL}/"
api_key_env = "HR_KEY"
concurrency = 4
timeout_s = 30
"""
SERVED = GOOD.replace("base_rate = 0.002\n", f'base_rate = 0.002\nbackend = "openai"\n{TABLE}')


def with_url(url: str, more: str = "") -> str:
    return SERVED.replace(f'"{URL}/"', json.dumps(url)).replace("concurrency = 4", more)


def test_a_table_becomes_plain_values() -> None:
    served, local, _ = parse_pool(SERVED, "p.toml").everyone
    assert (served.backend, local.backend) == ("openai", "transformers")
    assert local.endpoint is None
    assert served.endpoint == Endpoint(
        base_url=URL, api_key_env="HR_KEY", concurrency=4, timeout_s=30.0
    )
    assert served.endpoint.address == "127.0.0.1:8000"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://api.example.org/v1", "api.example.org:443"),
        ("http://[::1]:9/v1", "[::1]:9"),
        ("http://localhost/v1", "localhost:80"),
    ],
)
def test_addresses(url: str, address: str) -> None:
    served = parse_pool(with_url(url), "p.toml").models[0].endpoint
    assert served is not None
    assert served.address == address


BAD_URLS = {
    "file:///etc/passwd": "base_url must be http:// or https://",
    "ftp://host/v1": "base_url must be http:// or https://",
    "127.0.0.1:8000": "base_url must be http:// or https://",
    "http:///v1": "base_url must be http:// or https:// and a host",
    "http://host:99999/v1": "base_url must be http",
    "http://ho st/v1": "base_url must be http",
    "http://host/v1\n": "base_url must be http",
    "http://me:CANARY@host/v1": "no user and password",
    "https://host/v1?key=CANARY": "must end after the path",
    "http://169.254.169.254/v1": "link-local http address",
}


@pytest.mark.parametrize("url", BAD_URLS)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(InputError, match=BAD_URLS[url]) as caught:
        parse_pool(with_url(url), "p.toml")
    assert "p.toml, model a" in str(caught.value)
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("concurrency", "concurency", "unknown key concurency.*did you mean concurrency"),
        ("concurrency = 4", "concurrency = 0", "concurrency must be 1 to 1000, got 0"),
        ("concurrency = 4", "concurrency = 2.5", "concurrency must be an integer"),
        ("timeout_s = 30", "timeout_s = 0", "timeout_s must be above 0"),
        ("timeout_s = 30", "timeout_s = nan", "timeout_s must be above 0"),
        ("timeout_s = 30", "attempts = 99", "attempts must be 1 to 20, got 99"),
        ("timeout_s = 30", 'insecure = "yes"', "insecure must be true or false"),
        ("timeout_s = 30", 'deployment = ""', "deployment must not be empty"),
        ('"HR_KEY"', '"sk-CANARY"', "api_key_env must be the name of an environment variable"),
        ('api_key_env = "HR_KEY"', 'api_key = "sk-CANARY"', "api_key must not stand in a file"),
        ("[models.endpoint]", "[models.endpoin]", "unknown key endpoin"),
        (TABLE, "endpoint = 3\n", "endpoint must be a table"),
        ('backend = "openai"', 'device = "gpu0"', "unknown device gpu0.*cuda:N"),
        ('backend = "openai"', 'batching = "dynamic"', "unknown batching dynamic"),
    ],
)
def test_a_bad_entry_is_named(old: str, new: str, message: str) -> None:
    assert old in SERVED
    with pytest.raises(InputError, match=message) as caught:
        parse_pool(SERVED.replace(old, new), "p.toml")
    assert "p.toml, model a" in str(caught.value)
    assert "CANARY" not in str(caught.value)


def test_a_key_over_plain_http_leaves_this_machine_only_when_asked_to() -> None:
    with pytest.raises(InputError, match=r"HR_KEY would go over plain http.*use https.*insecure"):
        parse_pool(with_url("http://example.invalid/v1"), "p.toml")
    for text in (
        with_url("http://example.invalid/v1", "insecure = true"),
        with_url("https://example.invalid/v1"),
        with_url("http://127.8.8.8/v1"),
        with_url("http://example.invalid/v1").replace('api_key_env = "HR_KEY"\n', ""),
    ):
        assert parse_pool(text, "p.toml").models[0].endpoint


def test_a_plan_keeps_the_endpoint_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HR_KEY", "sk-CANARY")
    text = parse_pool(SERVED, "p.toml").to_json(IDENTITIES)
    assert "CANARY" not in text
    assert pool_from_json(text) == stored_pool(text, "line 3")
    assert pool_from_json(text)[0] == parse_pool(SERVED, "p.toml")


def test_a_plan_of_an_earlier_version_is_read() -> None:
    stored = json.loads(parse_pool(GOOD, "p.toml").to_json(IDENTITIES))
    for model in stored["pool"]["models"] + stored["pool"]["references"]:
        for later in ("device", "batching", "endpoint"):
            del model[later]
    text = json.dumps(stored)
    assert pool_from_json(text) == stored_pool(text, "line 3")
    assert pool_from_json(text)[0] == parse_pool(GOOD, "p.toml")


@pytest.fixture
def pool() -> Pool:
    return parse_pool(SERVED, "p.toml")


def test_no_flag_changes_nothing(pool: Pool) -> None:
    assert overridden(pool) == pool


def test_a_base_url_makes_every_model_a_served_one(pool: Pool) -> None:
    changed = overridden(pool, base_url="http://127.0.0.1:9/v1/", timeout_s=2)
    assert {model.backend for model in changed.everyone} == {"openai"}
    for model in changed.everyone:
        assert model.endpoint is not None
        assert (model.endpoint.base_url, model.endpoint.timeout_s) == ("http://127.0.0.1:9/v1", 2)
    first = changed.models[0].endpoint
    assert first is not None
    assert (first.api_key_env, first.concurrency) == ("HR_KEY", 4)  # what no flag names stays


def test_a_timeout_concerns_only_what_is_served(pool: Pool) -> None:
    served, local = overridden(pool, timeout_s=2).models
    assert served.endpoint is not None
    assert served.endpoint.timeout_s == 2
    assert local == pool.models[1]


def test_a_backend_and_a_device(pool: Pool) -> None:
    changed = overridden(pool, backend="transformers", device="cuda:1")
    assert {(model.backend, model.device) for model in changed.everyone} == {
        ("transformers", "cuda:1")
    }


BAD_FLAGS: list[tuple[dict[str, Any], str]] = [
    ({"backend": "opnai"}, "unknown backend: --backend opnai; did you mean openai"),
    ({"backend": "imported"}, "unknown backend"),
    ({"backend": "transformers", "base_url": URL}, "--base-url needs --backend openai"),
    ({"base_url": "file:///etc/passwd"}, "base_url must be http"),
    ({"base_url": "http://example.invalid/v1", "api_key_env": "K"}, "K would go over plain http"),
    ({"base_url": URL, "timeout_s": 0.0}, "timeout_s must be above 0"),
    ({"device": "gpu"}, "unknown device gpu: --device; known: auto, cpu, cuda"),
]


@pytest.mark.parametrize(("flags", "message"), BAD_FLAGS, ids=range(len(BAD_FLAGS)))
def test_a_bad_flag_is_named(pool: Pool, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        overridden(pool, **flags)


def test_flags_that_no_model_heeds_are_refused() -> None:
    local = Pool((ModelSpec("a", "m", 1.0),), 1, ("",))
    with pytest.raises(InputError, match="--timeout and --insecure are for backend openai"):
        overridden(local, timeout_s=2)
    with pytest.raises(InputError, match="--device cuda has no effect"):
        overridden(local, base_url="http://127.0.0.1:9/v1", device="cuda")
