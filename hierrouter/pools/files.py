"""Pools and prices as people write them: in TOML files and by flags."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from hierrouter.pools.pool import (
    MAX_NODES,
    OPENAI,
    POOL,
    RESERVED,
    Currency,
    Endpoint,
    Identity,
    ModelSpec,
    PerTokens,
    Pool,
    Price,
    TokenRate,
    require_distinct,
)
from hierrouter.pools.validation import unknown_key, validated
from hierrouter_cache.errors import InputError, read_small, suggestion
from hierrouter_cache.tree import SEPARATOR, Rate

POOL_FILE = "pool file"
UNIT = {"per_tokens": PerTokens, "currency": Currency}  # what rates are counted in
CALLED = ("transformers", "openai")  # backends that a file may name
STORED = (*CALLED, "imported")  # backends that a plan may name
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?|balanced")


def pool_names() -> list[str]:
    """Names of the pools that come with the package."""
    folder = resources.files("hierrouter.pools")
    return sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".toml"))


def load_pool(name: str) -> Pool:
    """The pool of this name, or in this TOML file.

    Raises:
        InputError: unknown name, or a file with a missing, unknown or impossible entry.
    """
    if name.endswith(".toml"):
        return parse_pool(_read_text(name, POOL_FILE), name)
    if name not in pool_names():
        raise InputError(
            f"unknown pool: {name}; {suggestion(name, pool_names())}or give a .toml file"
        )
    file = resources.files("hierrouter.pools") / f"{name}.toml"
    return parse_pool(file.read_text("utf-8"), file.name)


def parse_pool(text: str, where: str) -> Pool:
    """A pool from TOML text; `where` names it in messages.

    Raises InputError: with the key and what is expected there.
    """
    raw = _parse_toml(text, POOL_FILE, where)
    _require_keys(raw, ("pool", "models", "references"), where)
    head = validated(dict[str, Any], raw.pop("pool", {}), where, "pool")
    _require_keys(head, ("hops", "stage_prompts", "encoder", *UNIT), f"{where} [pool]")
    return _checked(validated(Pool, {**head, **raw}, where, "pool"), where, CALLED)


def stored_pool(text: str, where: str) -> tuple[Pool, dict[str, Identity]]:
    """The inverse of `Pool.to_json`, of a plan that others may have written: checked as a file is.

    Raises InputError: with the key and what is expected there.
    """
    try:
        stored = json.loads(text)
        json.dumps(stored, ensure_ascii=False).encode()  # half a character can be no part of a key
        sparse = _without_nulls(stored)
    except (ValueError, RecursionError):
        raise InputError(f"the pool of a plan is not JSON: {where}") from None
    if not isinstance(stored, dict):
        raise InputError(f"the pool of a plan must be an object: {where}")
    pool = _checked(validated(Pool, sparse.get("pool", {}), where, "pool"), where, STORED)
    identities = validated(dict[str, Any], stored.get("identities", {}), where, "identities")
    for name in (model.name for model in pool.everyone):
        identity = identities.get(name)
        texts = isinstance(identity, dict) and all(isinstance(it, str) for it in identity.values())
        if not identity or not texts:
            raise InputError(f"identity must be a table of texts: {where}, model {name}")
    return pool, identities


def _without_nulls(value: Any) -> Any:
    """The same without keys whose value is null, at any depth."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _require_keys(raw: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in raw:
        if key not in known:
            raise InputError(unknown_key(key, known, where))


def _checked(pool: Pool, where: str, backends: Sequence[str]) -> Pool:
    """The pool, where it also fulfils what concerns several of its fields."""
    if not pool.stage_prompts:
        raise InputError(f"stage_prompts must be a list of at least one text: {where}")
    if not pool.models:
        raise InputError(f"models is empty: {where}; a pool needs at least one [[models]] entry")
    for model in pool.everyone:
        _check_model(model, f"{where}, model {model.name}", backends)
    require_distinct([model.name for model in pool.everyone], where)
    if pool.routes.calls > MAX_NODES:
        raise InputError(
            f"{pool.routes.calls:,} nodes per query: {where}; "
            f"{len(pool.models)} models at {pool.hops} hops exceed {MAX_NODES:,}, "
            "take fewer of either"
        )
    return pool


def _check_model(model: ModelSpec, place: str, backends: Sequence[str]) -> None:
    if not MODEL_NAME.fullmatch(model.name) or SEPARATOR in model.name:
        raise InputError(f"invalid model name: {place}; use letters, digits and . _ : -")
    if model.name in RESERVED:
        raise InputError(f"model name is taken: {place}; reports use it, choose another")
    if model.backend not in backends:
        hint = suggestion(model.backend, backends)
        raise InputError(f"unknown backend {model.backend}: {place}; {hint}".rstrip("; "))
    if model.backend in CALLED and ".." in Path(model.model).parts:
        raise InputError(f"invalid model path with ../: {place}; give an absolute path or hub id")
    _check_device(model.device, place)
    if model.endpoint:
        model.endpoint.check(f"{place} endpoint")
    given = (model.base_rate, model.rate_in, model.rate_out)
    base, tokens_in, tokens_out = (rate is not None for rate in given)
    if tokens_in != tokens_out or (base and tokens_in):
        raise InputError(f"give base_rate alone, or both rate_in and rate_out: {place}")
    model.price(place)


def _check_device(device: str, place: str) -> None:
    if not DEVICE.fullmatch(device):
        raise InputError(
            f"unknown device {device:.40}: {place}; known: auto, cpu, cuda, cuda:N, balanced"
        )


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

    Raises InputError: a value that a pool file could not have either, or flags that contradict.

    `pool`: as read; `backend`: who runs the models; "openai" where a base_url is given; `base_url`,
    `api_key_env`, `timeout_s`, `insecure`: see `Endpoint`; `device`: see `ModelSpec`.
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
        _check_device(device, "--device")
    backend = backend or (OPENAI if base_url is not None else None)
    settings: dict[str, Any] = {
        "base_url": None if base_url is None else base_url.rstrip("/"),
        "api_key_env": api_key_env,
        "timeout_s": timeout_s,
        "insecure": insecure,
    }
    server = {name: value for name, value in settings.items() if value is not None}
    used = {backend or model.backend for model in pool.everyone}
    if server and OPENAI not in used:
        raise InputError(
            "no model of the pool is answered for by a server: --base-url, --api-key-env, "
            "--timeout and --insecure are for backend openai; leave them out"
        )
    if device is not None and used == {OPENAI}:
        raise InputError(
            f"all models of the pool run on servers: --device {device} has no effect; leave it out"
        )

    def changed(model: ModelSpec) -> ModelSpec:
        model = replace(model, backend=backend or model.backend, device=device or model.device)
        if model.backend != OPENAI or not server:
            return model
        if base_url is not None:
            server["replicas"] = ()
        endpoint = replace(model.endpoint or Endpoint(), **server)
        endpoint.check(f"model {model.name} endpoint")
        return replace(model, endpoint=endpoint)

    models, references = tuple(map(changed, pool.models)), tuple(map(changed, pool.references))
    return replace(pool, models=models, references=references)


FLAG = "--price"
PRICE_FILE = "price file"


def price_lists(files: Sequence[Path], items: Sequence[str]) -> dict[str, dict[str, Price]]:
    """One list a file, the items on top of each; without a file one list of the items alone.

    Models that a list does not name keep the pool's price. Raises InputError: a file or an item
    that cannot be used, or two files of one name.

    `files`: TOML files; a list is called like its file, without folder and ending; `items`: texts
    `model=rate` or `model=in:out`.
    """
    flags = _from_flags(items)
    lists: dict[str, dict[str, Price]] = {}
    for file in files:
        if file.stem in lists:
            raise InputError(f"two price files are called {file.stem}: --prices; rename one")
        lists[file.stem] = {**_from_file(file), **flags}
    return lists or {POOL: flags}


def given_prices(given: str | Path | Mapping[str, Any] | None) -> dict[str, Price]:
    """Prices as Python code gives them: the path of a TOML file, or a rate for each model.

    Raises InputError: a file or a rate that cannot be used.

    `given`: of a mapping each value is a rate in the pool's unit, or {"in": ..., "out": ...}.
    """
    if given is None:
        return {}
    if isinstance(given, str | Path):
        return _from_file(Path(given))
    return _from_table(given, "prices=", "prices=")


def prices_of(pool: Pool, given: Mapping[str, Price], known: Iterable[str]) -> dict[str, Price]:
    """The price of a token of every model of a pool, references included.

    Raises InputError: a price for a model that nobody knows.

    `pool`: its own prices hold where none is given, and its unit where a price has none; `given`:
    prices that replace them; `known`: names that `given` may hold besides those of the pool.
    """
    prices = pool.prices()
    names = dict.fromkeys([*prices, *known])
    for name, price in given.items():
        if name not in names:
            where = f"{name}: {price.source}"
            raise InputError(
                f"price for an unknown model: {where}; {suggestion(name, names)}".rstrip("; ")
            )
    used = {name: given[name] for name in prices if name in given}
    return prices | {name: price.of_a_token(pool.per_tokens) for name, price in used.items()}


def currency_of(pool: Pool, price_lists: Sequence[Mapping[str, Price]]) -> str:
    """The one currency of all these prices; nothing is ever shown in two.

    Raises InputError: there are several.

    `pool`: prices that name no currency are in the pool's; `price_lists`: of every model, see
    `prices_of`.
    """
    sources: dict[str, str] = {}
    for table in price_lists:
        for price in table.values():
            sources.setdefault(price.currency or pool.currency, price.source)
    if len(sources) > 1:
        said = " and ".join(f"{name} ({source})" for name, source in sources.items())
        raise InputError(
            f"prices in several currencies: {said}; convert them, or price every model in one"
        )
    return next(iter(sources), pool.currency)


def _from_file(file: Path) -> dict[str, Price]:
    where = str(file)
    raw = _parse_toml(_read_text(where, PRICE_FILE), PRICE_FILE, where)
    unit = {key: raw.pop(key) for key in UNIT if key in raw}
    for key in raw:
        if key != "prices":
            raise InputError(f"unknown key {key}: {where}; prices stand below [prices]")
    for key, value in unit.items():
        validated(UNIT[key], value, where, key)
    table = raw.get("prices")
    if not isinstance(table, dict) or not table:
        raise InputError(f"no prices: {where}; write lines like model = 0.003 below [prices]")
    found = _from_table(table, where, f"{PRICE_FILE} {file.name}")
    return {name: replace(price, **unit) for name, price in found.items()}


def _from_table(table: Mapping[str, Any], where: str, source: str) -> dict[str, Price]:
    prices = {}
    for name, value in table.items():
        sides = [("", value)]
        if isinstance(value, dict):
            if set(value) != {"in", "out"}:
                raise InputError(
                    f"price of {name} must be a number or {{ in = 0.001, out = 0.004 }}: {where}; "
                    "a name with a dot stands in quotes"
                )
            sides = [(", in", value["in"]), (", out", value["out"])]
        prices[name] = _price(name, sides, where, source)
    return prices


def _from_flags(items: Sequence[str]) -> dict[str, Price]:
    prices: dict[str, Price] = {}
    for item in items:
        name, equals, value = item.partition("=")
        name = name.strip()
        sides = [("", _number(side)) for side in value.split(":")]
        if not name or not equals or len(sides) > 2:
            raise InputError(
                f"not a price: {FLAG} {item}; e.g. {FLAG} calc=0.003 or calc=0.001:0.004"
            )
        if name in prices:
            raise InputError(f"duplicate price for {name}: {FLAG} {item}; give one")
        prices[name] = _price(name, sides, f"{FLAG} {item}", FLAG)
    return prices


def _number(text: str) -> float | str:
    """The number in a text; the text where there is none, for the message."""
    try:
        return float(text)
    except ValueError:
        return text


def _price(name: str, sides: Sequence[tuple[str, Any]], where: str, source: str) -> Price:
    """From (side, rate) of both sides, or of one rate for both."""
    rates = [validated(TokenRate, rate, where, f"price of {name}{side}") for side, rate in sides]
    return Price(Rate(rates[0], rates[-1]), source)


MAX_TOML = 1 << 19  # bytes
MAX_DOTS = 64  # tomllib's memory grows with the square of the parts of a key
# Strings and comments; those that nothing ends go as far as tomllib looks for their end.
QUOTED = re.compile(
    r'"{3}(?:[^\\]|\\.)*?(?:"{3,5}|\Z)|"(?:[^"\\\n]|\\.)*+"?'
    r"|'{3}.*?(?:'{3,5}|\Z)|'[^'\n]*'?|#[^\n]*",
    re.DOTALL,
)
AT = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
TWICE = re.compile(r"Cannot overwrite a value|Cannot declare .* twice")
KEY_OR_TABLE = re.compile(r"\s*(\[[^\]]*\]|[^=\s]+)")  # what a line names: a table or a key


def _read_text(name: str, what: str) -> str:
    """The text of a file; `what` says in messages what the file is."""
    try:
        return read_small(Path(name), MAX_TOML).decode("utf-8")
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


def _parse_toml(text: str, what: str, where: str) -> dict[str, Any]:
    """The tables in a text; `where` names it in messages."""
    if not text.strip():
        raise InputError(f"{what} is empty: {where}; give one with tables in it")
    if any(_dotted(line) > MAX_DOTS for line in QUOTED.sub("x", text).splitlines()):
        raise InputError(f"{what} has a key of more than {MAX_DOTS} parts: {where}; write it flat")
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


def _dotted(line: str) -> int:
    """The most names in a row with nothing but a dot between them: the parts of a key."""
    most = run = 0
    for part in line.split("."):
        run = run + 1 if len(part.split()) == 1 else 1
        most = max(most, run)
    return most


def _fault(text: str, said: str) -> tuple[int, str]:
    """The line that the parser stopped at, and why; what stands twice is named."""
    lines = text.splitlines()
    at = AT.search(said)
    number = int(at[1]) if at and at[1] else len(lines)
    reason = AT.sub("", said)
    name = KEY_OR_TABLE.match(lines[number - 1])
    twice = f"duplicate key {name[1]}" if name and TWICE.fullmatch(reason) else None
    return number, twice or reason
