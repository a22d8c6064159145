"""Where a server is and how it is called: in a pool file, in a plan, by flags."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hierrouter.pools.files import override_pool, parse_pool, stored_pool
from hierrouter.pools.pool import Endpoint, ModelSpec, Pool
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
POOL = parse_pool(SERVED, "p.toml")


def with_url(url: str, more: str = "") -> str:
    return SERVED.replace(f'"{URL}/"', json.dumps(url)).replace("concurrency = 4", more)


def test_a_table_becomes_plain_values() -> None:
    served, local, _ = POOL.all_models
    assert (served.backend, local.backend) == ("openai", "transformers")
    assert local.endpoint is None
    assert served.endpoint == Endpoint(URL, "HR_KEY", concurrency=4, timeout_s=30.0)


def test_replicas_and_limits_are_checked_like_the_rest() -> None:
    more = 'replicas = ["https://10.0.0.2:8000/v1/"]\nrequests_per_minute = 60'
    served = parse_pool(with_url(URL, more), "p.toml").models[0].endpoint
    assert served.servers == (URL, "https://10.0.0.2:8000/v1")
    assert (served.requests_per_minute, served.tokens_per_minute) == (60, None)
    for bad in ('replicas = ["ftp://x/v1"]', "requests_per_minute = 0", "tokens_per_minute = nan"):
        with pytest.raises(InputError, match=bad.split()[0]):
            parse_pool(with_url(URL, bad), "p.toml")
    with pytest.raises(InputError, match="would go over plain http"):
        parse_pool(with_url(URL, more.replace("https", "http")), "p.toml")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        (URL, "127.0.0.1:8000"),
        ("https://api.example.org/v1", "api.example.org:443"),
        ("http://[::1]:9/v1", "[::1]:9"),
        ("http://localhost/v1", "localhost:80"),
    ],
)
def test_addresses(url: str, address: str) -> None:
    assert parse_pool(with_url(url), "p.toml").models[0].endpoint.address == address


NO_URL = "base_url must be http:// or https:// and a host"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///etc/passwd", NO_URL),
        ("ftp://host/v1", NO_URL),
        ("127.0.0.1:8000", NO_URL),
        ("http:///v1", NO_URL),
        ("http://host:99999/v1", NO_URL),
        ("http://ho st/v1", NO_URL),
        ("http://host/v1\n", NO_URL),
        ("http://me:CANARY@host/v1", "no user and password"),
        ("https://host/v1?key=CANARY", "must end after the path"),
        ("http://169.254.169.254/v1", "link-local http address"),
    ],
)
def test_an_address_that_is_none(url: str, message: str) -> None:
    with pytest.raises(InputError, match=f"{message}.*p.toml, model a") as caught:
        parse_pool(with_url(url), "p.toml")
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
        ('backend = "openai"', 'batching = "static"', "unknown key batching"),
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
    text = POOL.to_json(IDENTITIES)
    assert "CANARY" not in text
    assert stored_pool(text, "line 3") == (POOL, IDENTITIES)


def test_flags_replace_what_they_name() -> None:
    assert override_pool(POOL) == POOL
    changed = override_pool(POOL, base_url="http://127.0.0.1:9/v1/", timeout_s=2)
    assert {model.backend for model in changed.all_models} == {"openai"}
    endpoint = Endpoint("http://127.0.0.1:9/v1", timeout_s=2)
    keyed = replace(endpoint, api_key_env="HR_KEY", concurrency=4)  # what no flag names stays
    assert [model.endpoint for model in changed.all_models] == [keyed, endpoint, endpoint]
    served, local = override_pool(POOL, timeout_s=2).models  # which concerns only what is served
    assert served.endpoint == replace(keyed, base_url=URL)
    assert local == POOL.models[1]
    changed = override_pool(POOL, backend="transformers", device="cuda:1")
    ways = {(model.backend, model.device) for model in changed.all_models}
    assert ways == {("transformers", "cuda:1")}


LOCAL = Pool((ModelSpec("a", "m", 1.0),), 1, ("",))
BAD_FLAGS: list[tuple[Pool, dict[str, Any], str]] = [
    (POOL, {"backend": "opnai"}, "unknown backend: --backend opnai; did you mean openai"),
    (POOL, {"backend": "imported"}, "unknown backend"),
    (POOL, {"backend": "transformers", "base_url": URL}, "--base-url needs --backend openai"),
    (POOL, {"base_url": "file:///etc/passwd"}, "base_url must be http"),
    (POOL, {"base_url": "http://example.invalid", "api_key_env": "K"}, "K would go over plain"),
    (POOL, {"base_url": URL, "timeout_s": 0.0}, "timeout_s must be above 0"),
    (POOL, {"device": "gpu"}, "unknown device gpu: --device; known: auto, cpu, cuda"),
    (LOCAL, {"timeout_s": 2}, "--timeout and --insecure are for backend openai"),
    (LOCAL, {"base_url": URL, "device": "cuda"}, "--device cuda has no effect"),
]


@pytest.mark.parametrize(("pool", "flags", "message"), BAD_FLAGS, ids=range(len(BAD_FLAGS)))
def test_a_bad_flag_is_named(pool: Pool, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        override_pool(pool, **flags)
