"""Pools and prices in TOML files that people write."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from hierrouter.pools.pool import (
    MAX_HOPS,
    MAX_NODES,
    OPENAI,
    POOL,
    RESERVED,
    Endpoint,
    Generation,
    Identity,
    ModelSpec,
    Pool,
    Price,
    parameters_from,
    rate_from,
    require_distinct,
)
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.tree import SEPARATOR, Rate

AT = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
TWICE = re.compile(r"Cannot overwrite a value|Cannot declare .* twice")
KEY_OR_TABLE = re.compile(r"\s*(\[[^\]]*\]|[^=\s]+)")  # what a line names: a table or a key


def read_text(name: str, what: str) -> str:
    """The text of a file; `what` says in messages what the file is.

    Raises:
        InputError: there is none, it cannot be read, or it is not UTF-8.
    """
    try:
        return Path(name).read_text("utf-8")
    except FileNotFoundError:
        raise InputError(f"{what} not found: {name}; give the path of a .toml file") from None
    except IsADirectoryError:
        raise InputError(f"{what} is a directory: {name}; name a .toml file") from None
    except UnicodeDecodeError:
        raise InputError(f"{what} is not UTF-8: {name}; save it as UTF-8") from None
    except OSError as error:
        raise InputError(
            f"{what} cannot be read: {name}: {error.strerror}; give another one"
        ) from None


def parse_text(text: str, what: str, where: str) -> dict[str, Any]:
    """The tables in a text; `where` names it in messages.

    Raises:
        InputError: it is empty or no TOML.
    """
    if not text.strip():
        raise InputError(f"{what} is empty: {where}; give one with tables in it")
    try:
        tables = tomllib.loads(text)
        repr(tables)  # Python reads longer numbers in hexadecimal than it can show in a message
        return tables
    except tomllib.TOMLDecodeError as error:
        line, reason = _fault(text, str(error))
        raise InputError(f"{what} is not TOML: {where}:{line}: {reason}; mend that line") from None
    except ValueError:
        raise InputError(f"{what} has a number of too many digits: {where}; mend it") from None
    except RecursionError:
        raise InputError(f"{what} is nested too deeply: {where}; write it flat") from None


def _fault(text: str, said: str) -> tuple[int, str]:
    """The line that the parser stopped at, and why; what stands twice is named."""
    lines = text.splitlines()
    at = AT.search(said)
    number = int(at[1]) if at and at[1] else len(lines)
    reason = AT.sub("", said)
    name = KEY_OR_TABLE.match(lines[number - 1])
    twice = f"duplicate key {name[1]}" if name and TWICE.fullmatch(reason) else None
    return number, twice or reason


KINDS = {dict: "a table", list: "a list", str: "a text", bool: "true or false"}


def of(kind: type, raw: Mapping[str, Any], key: str, where: str, default: Any) -> Any:
    """A value of this type, or the default where the key is missing.

    Raises:
        InputError: it is of another type.
    """
    value = raw.get(key, default)
    if key in raw and not isinstance(value, kind):
        raise InputError(f"{key} must be {KINDS[kind]}, got {value!r:.40}: {where}")
    return value


def one_of(
    known: tuple[str, ...], raw: Mapping[str, Any], key: str, where: str, default: str
) -> str:
    """One of these words.

    Raises:
        InputError: it is none of them.
    """
    value: str = of(str, raw, key, where, default)
    if value not in known:
        raise InputError(f"unknown {key} {value}: {where}; known: {', '.join(known)}")
    return value


def number(
    raw: Mapping[str, Any], key: str, kind: type, where: str, default: float | None = None
) -> Any:
    """An int or a float, as `kind` says; without a default it must be there.

    Raises:
        InputError: it is not there, no number, or one that no float holds.
    """
    value = raw.get(key, default)
    if value is None:
        raise InputError(f"{key} is missing: {where}; write one")
    accepted = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, accepted):
        name = "an integer" if kind is int else "a number"
        raise InputError(f"{key} must be {name}, got {value!r}: {where}")
    try:
        return kind(value)
    except OverflowError:
        raise InputError(f"{key} is too great: {where}; give a smaller one") from None


def require_known(raw: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    """Refuse a key that is not among `keys`.

    Raises:
        InputError: with the key that was meant, where one is close.
    """
    known = list(keys)
    for key in raw:
        if key not in known:
            raise InputError(f"unknown key {key}: {where}; {suggestion(key, known)}".rstrip("; "))


POOL_FILE = "pool file"
TEMPERATURES = (0.01, 100.0)  # besides 0; logits divided by less overflow
MAX_SEED = 2**31 - 1
DTYPES = ("auto", "float32", "float16", "bfloat16")
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
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
    return parse_pool(read_text(name, POOL_FILE), name)


def parse_pool(text: str, where: str) -> Pool:
    """A pool from TOML text; `where` names it in messages.

    Raises:
        InputError: with the key and what is expected there.
    """
    raw = parse_text(text, POOL_FILE, where)
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
    if not MODEL_NAME.fullmatch(raw["name"]) or SEPARATOR in raw["name"]:
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


FLAG = "--price"
ARGUMENT = "prices="
PRICE_FILE = "price file"


@dataclass(frozen=True)
class PriceList:
    """Prices under one name; models that it does not name keep the pool's price."""

    name: str = POOL
    prices: Mapping[str, Price] = field(default_factory=dict)


def price_lists(files: Sequence[Path], items: Sequence[str]) -> list[PriceList]:
    """One list a file, the items on top of each; without a file one list of the items alone.

    Args:
        files: TOML files; a list is called like its file, without folder and ending.
        items: texts `model=rate` or `model=in:out`.

    Raises:
        InputError: a file or an item that cannot be used, or two files of one name.
    """
    flags = _from_items(items)
    names = [file.stem for file in files]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two price files are called {name}: --prices; rename one")
    if not files:
        return [PriceList(prices=flags)]
    return [PriceList(file.stem, {**_from_file(file), **flags}) for file in files]


def given_prices(given: str | Path | Mapping[str, Any] | None) -> dict[str, Price]:
    """Prices as Python code gives them: the path of a TOML file, or a rate for each model.

    Args:
        given: of a mapping each value is cost per token, or {"in": ..., "out": ...}.

    Raises:
        InputError: a file or a rate that cannot be used.
    """
    if given is None:
        return {}
    if isinstance(given, str | Path):
        return _from_file(Path(given))
    return _from_table(given, ARGUMENT, ARGUMENT)


def prices_of(pool: Pool, given: Mapping[str, Price], known: Iterable[str]) -> dict[str, Price]:
    """The price of every model of a pool, references included.

    Args:
        pool: its own prices hold where none is given.
        given: prices that replace them.
        known: names that `given` may hold besides those of the pool.

    Raises:
        InputError: a price for a model that nobody knows.
    """
    prices = pool.prices()
    names = dict.fromkeys([*prices, *known])
    for name, price in given.items():
        if name not in names:
            where = f"{name}: {price.source}"
            raise InputError(
                f"price for an unknown model: {where}; {suggestion(name, names)}".rstrip("; ")
            )
    return prices | {name: given[name] for name in prices if name in given}


def _from_file(file: Path) -> dict[str, Price]:
    where = str(file)
    raw = parse_text(read_text(where, PRICE_FILE), PRICE_FILE, where)
    for key in raw:
        if key != "prices":
            raise InputError(f"unknown key {key}: {where}; prices stand below [prices]")
    table = raw.get("prices")
    if not isinstance(table, dict) or not table:
        raise InputError(f"no prices: {where}; write lines like model = 0.003 below [prices]")
    return _from_table(table, where, f"{PRICE_FILE} {file.name}")


def _from_table(table: Mapping[str, Any], where: str, source: str) -> dict[str, Price]:
    return {name: Price(_from_value(value, name, where), source) for name, value in table.items()}


def _from_value(value: Any, name: str, where: str) -> Rate:
    """A rate, or a table of two."""
    if not isinstance(value, dict):
        return Rate.base(rate_from(value, f"price of {name}", where))
    if set(value) != {"in", "out"}:
        raise InputError(
            f"price of {name} must be a number or {{ in = 0.001, out = 0.004 }}: {where}; "
            "a name with a dot stands in quotes"
        )
    tokens_in, tokens_out = (
        rate_from(value[side], f"price of {name}, {side}", where) for side in ("in", "out")
    )
    return Rate(tokens_in, tokens_out)


def _from_items(items: Sequence[str]) -> dict[str, Price]:
    prices: dict[str, Price] = {}
    for item in items:
        name, equals, value = item.partition("=")
        name = name.strip()
        sides = value.split(":")
        if not name or not equals or len(sides) > 2:
            raise InputError(
                f"not a price: {FLAG} {item}; e.g. {FLAG} calc=0.003 or calc=0.001:0.004"
            )
        if name in prices:
            raise InputError(f"duplicate price for {name}: {FLAG} {item}; give one")
        rates = [rate_from(_number(side), f"price of {name}", f"{FLAG} {item}") for side in sides]
        prices[name] = Price(Rate(rates[0], rates[-1]), FLAG)
    return prices


def _number(text: str) -> float | str:
    """The number in a text; the text where there is none, for the message."""
    try:
        return float(text)
    except ValueError:
        return text


def overridden(
    pool: Pool,
    *,
    backend: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    timeout_s: float | None = None,
    insecure: bool | None = None,
    device: str | None = None,
) -> Pool:
    """The pool with every model run this way; None leaves a setting as it is.

    Args:
        pool: as read.
        backend: who runs the models; "openai" where a base_url is given.
        base_url, api_key_env, timeout_s, insecure: see `Endpoint`.
        device: see `ModelSpec`.

    Raises:
        InputError: a value that a pool file could not have either, or flags that contradict.
    """
    if backend is not None and backend not in CALLED:
        raise InputError(
            f"unknown backend: --backend {backend}; {suggestion(backend, CALLED)}".rstrip("; ")
        )
    if base_url is not None and backend not in (None, OPENAI):
        raise InputError(
            f"--base-url needs --backend {OPENAI}, got --backend {backend}; leave one of them out"
        )
    if device is not None:
        check_device(device, "--device")
    given = {
        "base_url": None if base_url is None else base_url.rstrip("/"),
        "api_key_env": api_key_env,
        "timeout_s": timeout_s,
        "insecure": insecure,
    }
    called = {
        "backend": backend or (OPENAI if base_url is not None else None),
        "device": device,
    }
    used = {backend} if backend else {OPENAI} if base_url else {m.backend for m in pool.everyone}
    if _stated(given) and OPENAI not in used:
        raise InputError(
            "no model of the pool is answered for by a server: --base-url, --api-key-env, "
            "--timeout and --insecure are for backend openai; leave them out"
        )
    if device is not None and used == {OPENAI}:
        raise InputError(
            f"all models of the pool run on servers: --device {device} has no effect; leave it out"
        )
    models, references = (
        tuple(_changed(model, _stated(called), _stated(given)) for model in group)
        for group in (pool.models, pool.references)
    )
    return replace(pool, models=models, references=references)


def _stated(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _changed(model: ModelSpec, called: dict[str, Any], endpoint: dict[str, Any]) -> ModelSpec:
    model = replace(model, **called)
    if model.backend != OPENAI or not endpoint:
        return model
    changed = replace(model.endpoint or Endpoint(), **endpoint)
    changed.check(f"model {model.name} endpoint")
    return replace(model, endpoint=changed)
