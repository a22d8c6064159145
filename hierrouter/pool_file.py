"""Read a pool, from a file of the user's or from a stored plan of others.

In: a TOML file, the name of one that comes with the package, or the JSON of a plan. Out: `Pool`,
every key, type and limit checked. Not covered: what a pool means (`hierrouter.pool`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

from hierrouter.endpoint import Endpoint
from hierrouter.entries import number, of, one_of, require_known
from hierrouter.pool import (
    MAX_HOPS,
    MAX_NODES,
    RESERVED,
    Generation,
    Identity,
    ModelSpec,
    Pool,
    require_distinct,
    suggestion,
)
from hierrouter.pricing import parameters_from, rate_from
from hierrouter.toml_file import parse_text, read_text
from hierrouter_cache.errors import InputError
from hierrouter_cache.routes import SEPARATOR

WHAT = "pool file"
TEMPERATURES = (0.01, 100.0)  # besides 0; logits divided by less overflow
MAX_SEED = 2**31 - 1
DTYPES = ("auto", "float32", "float16", "bfloat16")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?|balanced")
BATCHINGS = ("static", "continuous")
CALLED = ("transformers", "openai", "vllm")  # backends that a file may name
STORED = (*CALLED, "imported")  # backends that a plan may name


def pool_names() -> list[str]:
    """Names of the pools that come with the package."""
    folder = resources.files("hierrouter.pools")
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_pool(name: str) -> Pool:
    """The pool of this name, or in this TOML file.

    Raises:
        InputError: unknown name, or a file with a missing, unknown or impossible entry.
    """
    if not name.endswith(".toml"):
        if name not in pool_names():
            raise InputError(
                f"unknown pool: {name}; {suggestion(name, pool_names())}or give a .toml file"
            )
        file = resources.files("hierrouter.pools") / f"{name}.toml"
        return parse_pool(file.read_text("utf-8"), f"{name}.toml")
    return parse_pool(read_text(name, WHAT), name)


def parse_pool(text: str, where: str) -> Pool:
    """A pool from TOML text; `where` names it in messages.

    Raises:
        InputError: with the key and what is expected there.
    """
    raw = parse_text(text, WHAT, where)
    require_known(raw, ("pool", "models", "references"), where)
    head = of(dict, raw, "pool", where, {})
    require_known(head, ("hops", "stage_prompts"), f"{where} [pool]")
    tables = {key: raw[key] for key in raw if key != "pool"}
    return _parse_pool({**head, **tables}, where, CALLED)


def stored_pool(text: str, where: str) -> tuple[Pool, dict[str, Identity]]:
    """`pool_from_json` for a plan that others may have written: checked as a file is.

    Args:
        text: the JSON of a plan.
        where: names it in messages.

    Raises:
        InputError: with the key and what is expected there.
    """
    try:
        stored = json.loads(text)
        json.dumps(stored, ensure_ascii=False).encode()  # half a character can be no part of a key
    except (ValueError, RecursionError):
        raise InputError(f"the pool of a plan is not JSON: {where}") from None
    if not isinstance(stored, dict):
        raise InputError(f"the pool of a plan must be an object: {where}")
    raw = of(dict, stored, "pool", where, {})
    require_known(raw, [item.name for item in fields(Pool)], where)
    pool = _parse_pool(_without_nothing(raw), where, STORED)
    return pool, _parse_identities(of(dict, stored, "identities", where, {}), pool, where)


def _without_nothing(value: Any) -> Any:
    """The same value without the keys whose value is null, at any depth."""
    if isinstance(value, dict):
        return {key: _without_nothing(item) for key, item in value.items() if item is not None}
    return [_without_nothing(item) for item in value] if isinstance(value, list) else value


def _parse_identities(raw: Mapping[str, Any], pool: Pool, where: str) -> dict[str, Identity]:
    for model in pool.everyone:
        identity = raw.get(model.name)
        texts = isinstance(identity, dict) and all(
            isinstance(value, str) for value in identity.values()
        )
        if not identity or not texts:
            raise InputError(f"identity must be a table of texts: {where}, model {model.name}")
    return dict(raw)


def _parse_pool(raw: Mapping[str, Any], where: str, backends: tuple[str, ...]) -> Pool:
    models = _parse_models(raw, "models", where, backends)
    references = _parse_models(raw, "references", where, backends)
    prompts = of(list, raw, "stage_prompts", where, [""])
    if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
        raise InputError(f"stage_prompts must be a list of at least one text: {where}")
    hops = number(raw, "hops", int, where, default=2)
    if not 1 <= hops <= MAX_HOPS:
        raise InputError(f"hops must be at least 1 and at most {MAX_HOPS}, got {hops}: {where}")
    if not models:
        raise InputError(f"models is empty: {where}; a pool needs at least one [[models]] entry")
    require_distinct([model.name for model in models + references], where)
    context_free = of(bool, raw, "context_free", where, False)
    pool = Pool(models, hops, tuple(prompts), references, context_free)
    if pool.routes.calls > MAX_NODES:
        raise InputError(
            f"{pool.routes.calls:,} nodes per query: {where}; "
            f"{len(models)} models at {hops} hops exceed {MAX_NODES:,}, take fewer of either"
        )
    return pool


def _parse_models(
    raw: Mapping[str, Any], key: str, where: str, backends: tuple[str, ...]
) -> tuple[ModelSpec, ...]:
    entries = of(list, raw, key, where, [])
    if not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{key} must be tables: {where}; write [[{key}]] above each entry")
    return tuple(_parse_model(entry, where, backends) for entry in entries)


def _parse_model(raw: Mapping[str, Any], where: str, backends: tuple[str, ...]) -> ModelSpec:
    place = f"{where}, model {raw.get('name', '?')}"
    _require_no_key(raw, place)
    require_known(raw, [item.name for item in fields(ModelSpec)], place)
    _require_names(raw, place)
    backend = one_of(backends, raw, "backend", place, "transformers")
    if backend in CALLED and ".." in Path(raw["model"]).parts:
        raise InputError(f"invalid model path with ../: {place}; give an absolute path or hub id")
    model = ModelSpec(
        name=raw["name"],
        model=raw["model"],
        backend=backend,
        revision=of(str, raw, "revision", place, None),
        dtype=one_of(DTYPES, raw, "dtype", place, "auto"),
        device=_parse_device(raw, place),
        batching=one_of(BATCHINGS, raw, "batching", place, "static"),
        generation=_parse_generation(of(dict, raw, "generation", place, {}), place),
        endpoint=_parse_endpoint(of(dict, raw, "endpoint", place, None), place),
        **_parse_price(raw, place),
    )
    model.price(place)
    return model


def _require_names(raw: Mapping[str, Any], place: str) -> None:
    """What the model is, and how it is called here."""
    for key in ("name", "model"):
        if not isinstance(raw.get(key), str) or not raw[key].strip():
            raise InputError(f"{key} is missing: {place}; each [[models]] entry needs one")
    if not NAME.fullmatch(raw["name"]) or SEPARATOR in raw["name"]:
        raise InputError(f"invalid model name: {place}; use letters, digits and . _ : -")
    if raw["name"] in RESERVED:
        raise InputError(f"model name is taken: {place}; reports use it, choose another")


def _require_no_key(raw: Mapping[str, Any], place: str) -> None:
    if "api_key" in raw:
        raise InputError(f"api_key must not stand in a file: {place}; use api_key_env")


def _parse_device(raw: Mapping[str, Any], place: str) -> str:
    device: str = of(str, raw, "device", place, "auto")
    check_device(device, place)
    return device


def check_device(device: str, place: str) -> None:
    """Refuse the name of a device that nothing has.

    Raises:
        InputError: with the names that are known.
    """
    if not DEVICE.fullmatch(device):
        raise InputError(
            f"unknown device {device:.40}: {place}; known: auto, cpu, cuda, cuda:N, balanced"
        )


def _parse_endpoint(raw: Mapping[str, Any] | None, place: str) -> Endpoint | None:
    if raw is None:
        return None
    place = f"{place} endpoint"
    _require_no_key(raw, place)
    require_known(raw, [item.name for item in fields(Endpoint)], place)
    default = Endpoint()
    texts = ("api_key_env", "deployment", "answers_as", "tokenizer")
    endpoint = Endpoint(
        base_url=of(str, raw, "base_url", place, "").rstrip("/"),
        concurrency=number(raw, "concurrency", int, place, default.concurrency),
        timeout_s=number(raw, "timeout_s", float, place, default.timeout_s),
        attempts=number(raw, "attempts", int, place, default.attempts),
        insecure=of(bool, raw, "insecure", place, default.insecure),
        **{key: of(str, raw, key, place, None) for key in texts},
    )
    endpoint.check(place)
    return endpoint


def _parse_price(raw: Mapping[str, Any], place: str) -> dict[str, float]:
    """What an entry says of its price: a base rate, or two rates, and perhaps a size."""
    keys = ("base_rate", "rate_in", "rate_out")
    given = {key: rate_from(raw[key], key, place) for key in keys if key in raw}
    if set(given) not in (set(), {"base_rate"}, {"rate_in", "rate_out"}):
        raise InputError(f"give base_rate alone, or both rate_in and rate_out: {place}")
    if "parameters" in raw:
        given["parameters"] = parameters_from(raw["parameters"], place)
    return given


def _parse_generation(raw: Mapping[str, Any], place: str) -> Generation:
    require_known(raw, [item.name for item in fields(Generation)], f"{place} generation")
    generation = Generation(
        number(raw, "max_new_tokens", int, place, default=512),
        number(raw, "temperature", float, place, default=0.0),
        number(raw, "top_p", float, place, default=1.0),
        number(raw, "seed", int, place, default=0),
    )
    if generation.max_new_tokens < 1:
        raise InputError(f"max_new_tokens must be at least 1: {place}")
    lowest, highest = TEMPERATURES
    if generation.temperature != 0 and not lowest <= generation.temperature <= highest:
        raise InputError(
            f"temperature must be 0 (greedy) or {lowest:g} to {highest:g}, "
            f"got {generation.temperature}: {place}"
        )
    if not 0 < generation.top_p <= 1:
        raise InputError(f"top_p must be above 0 and at most 1, got {generation.top_p}: {place}")
    if not 0 <= generation.seed <= MAX_SEED:
        raise InputError(f"seed must be 0 to {MAX_SEED}, got {generation.seed}: {place}")
    return generation
