"""Read pools and prices as people write them: in TOML files and in flags."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from hierrouter.hub.repository import is_commit
from hierrouter.pools.pool import (
    MAX_ACTION_NAME,
    MAX_ACTIONS,
    MAX_POOL_NODES,
    OPENAI,
    POOL_PRICES,
    PRICE_NAMES,
    RESERVED_NAMES,
    START,
    Action,
    Currency,
    Draws,
    Endpoint,
    FittingScorer,
    Identity,
    ModelSpec,
    PerTokens,
    Pool,
    Price,
    TokenRate,
    require_distinct,
    with_each_model,
)
from hierrouter.pools.validation import unknown_key, validate
from hierrouter_cache.errors import InputError, read_small, suggestion
from hierrouter_cache.layout import SEPARATOR
from hierrouter_cache.tree import Rate

POOL_FILE_KIND = "pool file"  # in messages
RATE_UNITS = {"per_tokens": PerTokens, "currency": Currency}  # keys of the unit of rates
CALLABLE_BACKENDS = ("transformers", "openai")  # backends that a file may name
STORED_BACKENDS = (*CALLABLE_BACKENDS, "imported")  # backends that a plan may name
MODEL_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
ACTION_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*")
DEVICE_PATTERN = re.compile(r"auto|cpu|cuda(:\d{1,3})?|balanced")


def pool_names() -> list[str]:
    """Names of the pools that come with the package."""
    folder = resources.files("hierrouter.pools")
    return sorted(
        file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")
    )


def load_pool(name: str) -> Pool:
    """Load a pool by its name, or from a TOML file.

    Args:
        name: one of `pool_names`, or the path of a .toml file.

    Raises:
        InputError: an unknown name, or a file with a missing, unknown or impossible entry.
    """
    if name.endswith(".toml"):
        return parse_pool(_read_text(name, POOL_FILE_KIND), name)
    if name not in pool_names():
        raise InputError(
            f"unknown pool: {name}; {suggestion(name, pool_names())}or give a .toml file"
        )
    file = resources.files("hierrouter.pools") / f"{name}.toml"
    return parse_pool(file.read_text("utf-8"), file.name)


def parse_pool(text: str, where: str) -> Pool:
    """Parse a pool.

    Args:
        text: TOML.
        where: names the file in messages.

    Raises:
        InputError: with the key and what is expected there.
    """
    return _pool_of(_parse_toml(text, POOL_FILE_KIND, where), where)


DEFAULT_SCALE = (0.0, 10.0)  # the lowest and the highest score of a judge


def load_judge(file: str) -> tuple[Pool, tuple[float, float]]:
    """Load the pool file of a judge, which may have a table `[judge]` with its `scale`.

    Args:
        file: the path of a .toml file.

    Returns:
        The pool, and the lowest and the highest score that the judge may give.

    Raises:
        InputError: as `load_pool`; or the scale is no pair of two numbers, the lower one first.
    """
    raw = _parse_toml(_read_text(file, POOL_FILE_KIND), POOL_FILE_KIND, file)
    settings = validate(dict[str, Any], raw.pop("judge", {}), file, "judge")
    _require_known_keys(settings, ("scale",), f"{file} [judge]")
    scale = settings.get("scale", list(DEFAULT_SCALE))
    is_pair = isinstance(scale, list) and len(scale) == 2 and all(map(_is_score, scale))
    if not is_pair or scale[0] >= scale[1]:
        raise InputError(
            f"scale must be the lowest and the highest score, got {scale!r:.40}: {file} [judge]; "
            "write scale = [1, 5]"
        )
    return _pool_of(raw, file), (float(scale[0]), float(scale[1]))


def _is_score(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= MAX_SCORE


MAX_SCORE = 1e6  # of a judge's scale


def _pool_of(raw: dict[str, Any], where: str) -> Pool:
    """Make a pool of the tables of its file; see `parse_pool`."""
    _require_known_keys(raw, ("pool", "models", "references", "actions"), where)
    if "actions" in raw:
        if not raw["actions"]:
            raise InputError(f"actions is empty: {where}; write [[actions]] entries, or no actions")
        raw["roles"] = raw.pop("actions")
    head = validate(dict[str, Any], raw.pop("pool", {}), where, "pool")
    head_keys = ("hops", "stage_prompts", "encoder", "thoughts", "draws", *RATE_UNITS)
    _require_known_keys(head, head_keys, f"{where} [pool]")
    pool: Pool = validate(Pool, {**head, **raw}, where, "pool")
    _check_pool(pool, where, CALLABLE_BACKENDS)
    return pool


def stored_pool(text: str, where: str) -> tuple[Pool, dict[str, Identity]]:
    """Parse the pool of a plan, which others may have written: it is checked like a file.

    Args:
        text: JSON, as written by `Pool.to_json`.
        where: names the plan in messages.

    Returns:
        the pool, and the identities of its models and actions, see `Pool.tree_spec`.

    Raises:
        InputError: with the key and what is expected there.
    """
    try:
        stored = json.loads(text)
        # Half of a surrogate pair cannot be encoded, so it must not become a part of a key.
        json.dumps(stored, ensure_ascii=False).encode()
        sparse = _without_nulls(stored)
    except (ValueError, RecursionError):
        raise InputError(f"the pool of a plan is not JSON: {where}") from None
    if not isinstance(stored, dict):
        raise InputError(f"the pool of a plan must be an object: {where}")
    pool: Pool = validate(Pool, sparse.get("pool", {}), where, "pool")
    _check_pool(pool, where, STORED_BACKENDS)
    identities = validate(dict[str, Any], stored.get("identities", {}), where, "identities")
    for model in pool.all_models:
        if not _is_table_of_texts(identities.get(model.name)):
            raise InputError(f"identity must be a table of texts: {where}, model {model.name}")
    for role in pool.roles:
        if role.name in identities and not _is_table_of_texts(identities[role.name]):
            raise InputError(f"identity must be a table of texts: {where}, action {role.name}")
    return pool, identities


def stored_datasets(text: str) -> dict[str, str]:
    """The commits of the hub's datasets that the queries of a plan are from.

    Args:
        text: JSON, as written by `Pool.to_json`.

    Returns:
        commits by the repository's id; empty if none is stored, or the text cannot be read.
    """
    try:
        datasets = json.loads(text).get("datasets", {})
        return {id: commit for id, commit in datasets.items() if is_commit(commit)}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


COST_IN_TOKENS = "cost"  # of an import from a file that says what calls cost, not their tokens


def stored_scorer(text: str) -> FittingScorer | None:
    """The scorer that was chosen for Q when a plan was collected; None if none was.

    Args:
        text: JSON, as written by `Pool.to_json`. Others may have written it, so only a scorer that
            a collection may choose is returned.
    """
    try:
        scorer = json.loads(text)["pool"]["scorer"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    chosen: FittingScorer | None = scorer if scorer in get_args(FittingScorer) else None
    return chosen


def stored_import(text: str) -> dict[str, str]:
    """What was decided when the answers of a plan were imported.

    Args:
        text: JSON, as written by `Pool.to_json`.

    Returns:
        "draw": how one answer was made of several runs of a query. "scorer": what Q is unless the
        user names a scorer. "tokens": `COST_IN_TOKENS` if `tokens_out` holds costs. Keys without a
        value are absent; empty if nothing is stored, or the text cannot be read.
    """
    try:
        decided = json.loads(text).get("import", {})
    except (ValueError, AttributeError, RecursionError):
        return {}
    return decided if _is_table_of_texts(decided) else {}


def _is_table_of_texts(value: Any) -> bool:
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(text, str) for text in value.values())


def _without_nulls(value: Any) -> Any:
    """A JSON value without keys whose value is null, at any depth."""
    if isinstance(value, dict):
        return {key: _without_nulls(child) for key, child in value.items() if child is not None}
    if isinstance(value, list):
        return [_without_nulls(child) for child in value]
    return value


def _require_known_keys(raw: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for key in raw:
        if key not in allowed:
            raise InputError(unknown_key(key, allowed, where))


def _check_pool(pool: Pool, where: str, backends: Sequence[str]) -> None:
    """Check rules that concern several fields of a pool.

    Raises:
        InputError: a rule is broken.
    """
    if not pool.stage_prompts:
        raise InputError(f"stage_prompts must be a list of at least one text: {where}")
    if not pool.models:
        raise InputError(f"models is empty: {where}; a pool needs at least one [[models]] entry")
    for model in pool.all_models:
        _check_model(model, f"{where}, model {model.name}", backends)
    require_distinct([model.name for model in pool.all_models], where)
    _check_roles(pool, where, is_file=backends is CALLABLE_BACKENDS)
    _check_draws(pool, where)


def _check_roles(pool: Pool, where: str, is_file: bool) -> None:
    """Check the actions of a pool, and that they make a tree.

    Args:
        pool: the pool.
        where: names the file in messages.
        is_file: whether its hops are those that the user wrote; a plan may have fewer.

    Raises:
        InputError: a rule is broken.
    """
    if not pool.roles:
        return
    if len(pool.roles) > MAX_ACTIONS:
        raise InputError(f"{len(pool.roles):,} actions: {where}; at most {MAX_ACTIONS}, take fewer")
    names = [role.name for role in pool.roles]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"duplicate action {name:.60}: {where}; names must differ")
    models = {model.name: model for model in pool.models}
    for role in pool.roles:
        place = f"{where}, action {role.name:.60}"
        if not ACTION_NAME_PATTERN.fullmatch(role.name):
            raise InputError(f"invalid action name: {place}; use letters, digits and . _ : @ -")
        if len(role.name) > MAX_ACTION_NAME:
            raise InputError(
                f"action name has {len(role.name):,} characters: {place}; at most "
                f"{MAX_ACTION_NAME}, shorten it"
            )
        if is_file and role.at and max(role.at) > pool.hops:
            raise InputError(
                f"at names hop {max(role.at)}, and there are {pool.hops}: {place}; raise hops, or "
                "correct at"
            )
        if role.name in (*RESERVED_NAMES, START):
            raise InputError(f"action name is taken: {place}; choose another")
        if role.model not in models:
            hint = suggestion(role.model, models)
            raise InputError(f"unknown model {role.model:.60}: {place}; {hint}".rstrip("; "))
        is_own_name = role.name == role.model
        if not is_own_name and role.name in [model.name for model in pool.all_models]:
            raise InputError(f"action has the name of another model: {place}; choose another")
        if is_own_name and (role.rates or role.settings):
            raise InputError(
                f"action has the name of its model, but not its settings or price: {place}; "
                "choose another name"
            )
        for previous in role.after or ():
            if previous not in (*names, START):
                hint = suggestion(previous, (*names, START))
                raise InputError(
                    f"unknown action {previous:.60} in after: {place}; {hint}".rstrip("; ")
                )
        _check_rates(role.spec(models[role.model]), place)
    offered = [pool.offered(level) for level in range(pool.hops)]
    if not offered[0]:
        raise InputError(
            f"no action is offered at hop 1: {where}; offer one without after there, or after = []"
        )
    for number, name in enumerate(names):
        if not any(number in numbers for numbers in offered):
            raise InputError(
                f"action {name:.60} is never offered: {where}; at and after leave no hop for it"
            )
    for level, numbers in enumerate(offered):
        if not numbers:
            raise InputError(f"no action is offered at hop {level + 1}: {where}; take fewer hops")
        if is_file:
            _require_one_price(pool, level, where)


def _require_one_price(pool: Pool, level: int, where: str) -> None:
    """Require that actions which make the same call at a level have the same price.

    Args:
        pool: with roles.
        level: counted from 0.
        where: names the file in messages.

    Raises:
        InputError: two have not, so that nobody could say what the call costs.
    """
    actions = pool.actions
    first: dict[tuple[str, str, str], Action] = {}
    for number in sorted(pool.offered(level)):
        action = actions[number]
        settings = json.dumps(action.model.generation.settings, sort_keys=True)
        call = (action.model.name, pool.instruction(level, action), settings)
        other = first.setdefault(call, action)
        if other.model.price() != action.model.price():
            raise InputError(
                f"actions {other.name:.60} and {action.name:.60} make the same call at hop "
                f"{level + 1} at two prices: {where}; give both one price, or another instruction"
            )


def _check_rates(model: ModelSpec, where: str) -> None:
    """Require one way to state a price.

    Raises:
        InputError: there is none, or several.
    """
    has_base = model.base_rate is not None
    has_in = model.rate_in is not None
    has_out = model.rate_out is not None
    if has_in != has_out or (has_base and has_in):
        raise InputError(f"give base_rate alone, or both rate_in and rate_out: {where}")
    model.price(where)  # raises an error if there is none


def _check_draws(pool: Pool, where: str) -> None:
    """Check that draws can differ, and that a query's tree is not too large.

    Raises:
        InputError: every model is greedy, or there are too many nodes.
    """
    callers = [*pool.all_models, *(action.model for action in pool.actions)]
    if pool.draws > 1 and not any(model.generation.temperature for model in callers):
        raise InputError(
            f"every model is at temperature 0, where all draws are equal: {where}; give "
            "generation.temperature, or draws = 1"
        )
    require_size(pool, where)


def require_size(pool: Pool, where: str) -> None:
    """Require that a query's tree is not too large.

    Args:
        pool: the pool.
        where: names it in the message.

    Raises:
        InputError: there are too many nodes.
    """
    if not pool.as_stored and pool.calls > MAX_POOL_NODES:
        draws = f" with {pool.draws} draws" if pool.draws > 1 else ""
        kind = "actions" if pool.roles else "models"
        raise InputError(
            f"{pool.calls:,} nodes per query: {where}; "
            f"{len(pool.actions)} {kind} at {pool.hops} hops{draws} exceed {MAX_POOL_NODES:,}, "
            "take fewer of either"
        )


def with_draws(pool: Pool, draws: int | str | None, where: str = "--draws") -> Pool:
    """Return a pool with another number of draws of each call; None leaves it as it is.

    Args:
        pool: the models.
        draws: of each call; or the least and the most, such as "2..8".
        where: for messages.

    Raises:
        InputError: not a number of draws, every model is greedy, or there are too many nodes.
    """
    if draws is None:
        return pool
    least = None
    most: Any = draws
    if isinstance(draws, str) and ".." in draws:
        first, _, last = draws.partition("..")
        if not (first.isdecimal() and last.isdecimal() and 2 <= int(first) < int(last)):
            raise InputError(
                f"not a range of draws: {where} {draws:.40}; give the least, 2 or more, and a "
                "larger number, such as 2..8"
            )
        least = int(first)
        most = int(last)
    elif isinstance(draws, str) and draws.isdecimal():
        most = int(draws)
    validate(Draws, most, where, "draws")
    changed = replace(pool, draws=most, least_draws=least)
    _check_draws(changed, f"{where} {draws}")
    return changed


def _check_model(model: ModelSpec, where: str, backends: Sequence[str]) -> None:
    if not MODEL_NAME_PATTERN.fullmatch(model.name) or SEPARATOR in model.name:
        raise InputError(f"invalid model name: {where}; use letters, digits and . _ : -")
    if model.name in RESERVED_NAMES:
        raise InputError(f"model name is taken: {where}; reports use it, choose another")
    if model.backend not in backends:
        hint = suggestion(model.backend, backends)
        raise InputError(f"unknown backend {model.backend}: {where}; {hint}".rstrip("; "))
    if model.backend in CALLABLE_BACKENDS and ".." in Path(model.model).parts:
        raise InputError(f"invalid model path with ../: {where}; give an absolute path or hub id")
    _check_device(model.device, where)
    if model.endpoint:
        model.endpoint.check(f"{where} endpoint")
    _check_rates(model, where)


def _check_device(device: str, where: str) -> None:
    if not DEVICE_PATTERN.fullmatch(device):
        raise InputError(
            f"unknown device {device:.40}: {where}; known: auto, cpu, cuda, cuda:N, balanced"
        )


def override_pool(
    pool: Pool,
    *,
    backend: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    timeout_s: float | None = None,
    insecure: bool | None = None,
    device: str | None = None,
) -> Pool:
    """Change how every model of a pool is run; None leaves a setting as it is.

    Args:
        pool: as read.
        backend: the engine; "openai" if a base_url is given.
        base_url: see `Endpoint`; replaces all servers.
        api_key_env: see `Endpoint`.
        timeout_s: see `Endpoint`.
        insecure: see `Endpoint`.
        device: see `ModelSpec`.

    Raises:
        InputError: a value that a pool file could not have either, or flags that contradict.
    """
    if backend is not None and backend not in CALLABLE_BACKENDS:
        hint = suggestion(backend, CALLABLE_BACKENDS)
        raise InputError(f"unknown backend: --backend {backend}; {hint}".rstrip("; "))
    if base_url is not None and backend not in (None, OPENAI):
        raise InputError(
            f"--base-url needs --backend {OPENAI}, got --backend {backend}; leave one of them out"
        )
    if device is not None:
        _check_device(device, "--device")
    if backend is None and base_url is not None:
        backend = OPENAI
    settings: dict[str, Any] = {
        "base_url": None if base_url is None else base_url.rstrip("/"),
        "api_key_env": api_key_env,
        "timeout_s": timeout_s,
        "insecure": insecure,
    }
    endpoint_changes = {name: value for name, value in settings.items() if value is not None}
    if base_url is not None:
        endpoint_changes["replicas"] = ()
    backends = {backend or model.backend for model in pool.all_models}
    if endpoint_changes and OPENAI not in backends:
        raise InputError(
            "no model of the pool is answered for by a server: --base-url, --api-key-env, "
            "--timeout and --insecure are for backend openai; leave them out"
        )
    if device is not None and backends == {OPENAI}:
        raise InputError(
            f"all models of the pool run on servers: --device {device} has no effect; leave it out"
        )

    def override(model: ModelSpec) -> ModelSpec:
        model = replace(model, backend=backend or model.backend, device=device or model.device)
        if model.backend != OPENAI or not endpoint_changes:
            return model
        endpoint = replace(model.endpoint or Endpoint(), **endpoint_changes)
        endpoint.check(f"model {model.name} endpoint")
        return replace(model, endpoint=endpoint)

    return with_each_model(pool, override)


# Prices.

PRICE_FLAG = "--price"
PRICE_FILE_KIND = "price file"  # in messages


def price_lists(files: Sequence[Path], items: Sequence[str]) -> dict[str, dict[str, Price]]:
    """Read price lists: one for each file, with the prices of the flags instead of the file's.

    Models that a list does not name keep the price of the pool.

    Args:
        files: TOML files; a list has the name of its file, without folder and suffix.
        items: flags, each `model=rate` or `model=in:out`.

    Returns:
        prices by model, for each list by its name; without files, one list with those of the flags.

    Raises:
        InputError: a file or a flag that cannot be used, or two files of the same name.
    """
    from_flags = _read_price_flags(items)
    lists: dict[str, dict[str, Price]] = {}
    for file in files:
        if file.stem in lists:
            raise InputError(f"two price files are called {file.stem}: --prices; rename one")
        lists[file.stem] = {**_read_price_file(file), **from_flags}
    return lists or {POOL_PRICES: from_flags}


def parse_prices(prices: str | Path | Mapping[str, Any] | None) -> dict[str, Price]:
    """Read prices that Python code gives.

    Args:
        prices: path of a TOML file, or a mapping from each model to a rate in the pool's unit, or
            to {"in": ..., "out": ...}; None is no price.

    Raises:
        InputError: a file or a rate that cannot be used.
    """
    if prices is None:
        return {}
    if isinstance(prices, str | Path):
        return _read_price_file(Path(prices))
    return _parse_price_table(prices, "prices=", "prices=")


def prices_of(
    pool: Pool, replacements: Mapping[str, Price], known_models: Iterable[str]
) -> dict[str, Price]:
    """The price of a token of every model of a pool, references included.

    Args:
        pool: has the prices of models without a replacement, and the unit of prices without one.
        replacements: prices that replace those of the pool.
        known_models: names that `replacements` may have besides those of the pool.

    Raises:
        InputError: a price for an unknown model.
    """
    prices = pool.prices()
    names = dict.fromkeys([*prices, *known_models])
    for name, price in replacements.items():
        if name not in names:
            where = f"{name}: {price.source}"
            raise InputError(
                f"price for an unknown model: {where}; {suggestion(name, names)}".rstrip("; ")
            )
        if name in prices:
            prices[name] = price.of_a_token(pool.per_tokens)
    for action in pool.actions:
        if action.name not in replacements and action.model.name in replacements:
            own = prices[action.name]
            prices[action.name] = action.price_on(prices[action.model.name], own, pool)
    return prices


def currency_of(pool: Pool, price_lists: Sequence[Mapping[str, Price]]) -> str:
    """The currency of all prices; amounts in different currencies are never shown together.

    Args:
        pool: has the currency of prices that name none.
        price_lists: prices of every model, see `prices_of`.

    Raises:
        InputError: there are several currencies.
    """
    sources: dict[str, str] = {}
    for prices in price_lists:
        for price in prices.values():
            sources.setdefault(price.currency or pool.currency, price.source)
    if len(sources) > 1:
        listed = " and ".join(f"{currency} ({source})" for currency, source in sources.items())
        raise InputError(
            f"prices in several currencies: {listed}; convert them, or price every model in one"
        )
    return next(iter(sources), pool.currency)


def _read_price_file(file: Path) -> dict[str, Price]:
    where = str(file)
    raw = _parse_toml(_read_text(where, PRICE_FILE_KIND), PRICE_FILE_KIND, where)
    unit = {key: raw.pop(key) for key in RATE_UNITS if key in raw}
    for key in raw:
        if key != "prices":
            raise InputError(f"unknown key {key}: {where}; prices stand below [prices]")
    for key, value in unit.items():
        validate(RATE_UNITS[key], value, where, key)
    table = raw.get("prices")
    if not isinstance(table, dict) or not table:
        raise InputError(f"no prices: {where}; write lines like model = 0.003 below [prices]")
    prices = _parse_price_table(table, where, f"{PRICE_FILE_KIND} {file.name}")
    return {name: replace(price, **unit) for name, price in prices.items()}


def _parse_price_table(table: Mapping[str, Any], where: str, source: str) -> dict[str, Price]:
    """Prices by model, from a rate for each model or one for each side."""
    prices = {}
    for name, value in table.items():
        sides = {"": value}
        if isinstance(value, dict):
            if not {"in", "out"} <= set(value) <= set(PRICE_NAMES):
                raise InputError(
                    f"price of {name} must be a number or {{ in = 0.001, out = 0.004 }}: {where}; "
                    f"{', '.join(PRICE_NAMES[2:])} may follow; a name with a dot stands in quotes"
                )
            sides = value
        prices[name] = _price(name, sides, where, source)
    return prices


def _read_price_flags(items: Sequence[str]) -> dict[str, Price]:
    prices: dict[str, Price] = {}
    for item in items:
        name, equals_sign, value = item.partition("=")
        name = name.strip()
        sides = _sides(value)
        if not name or not equals_sign or not sides:
            raise InputError(
                f"not a price: {PRICE_FLAG} {item}; e.g. {PRICE_FLAG} calc=0.003, calc=0.001:0.004 "
                "or calc=0.001:0.004:cached=0.0001"
            )
        if name in prices:
            raise InputError(f"duplicate price for {name}: {PRICE_FLAG} {item}; give one")
        prices[name] = _price(name, sides, f"{PRICE_FLAG} {item}", PRICE_FLAG)
    return prices


def _sides(value: str) -> dict[str, float | str]:
    """The rates of a flag by their side; empty if it is not written as one.

    Args:
        value: such as `0.003`, `0.001:0.004` or `0.001:0.004:cached=0.0001:call=0.01`.
    """
    plain: list[float | str] = []
    further: dict[str, float | str] = {}
    for part in value.split(":"):
        side, equals_sign, rate = part.partition("=")
        if equals_sign and side in PRICE_NAMES[2:] and side not in further:
            further[side] = _number_or_text(rate)
        elif equals_sign or further:
            return {}
        else:
            plain.append(_number_or_text(part))
    if len(plain) == 1 and not further:
        return {"": plain[0]}
    if not plain or len(plain) > 2:
        return {}
    return {"in": plain[0], "out": plain[-1], **further}


def _number_or_text(text: str) -> float | str:
    """The number in a text; the text itself if it is no number, for the message."""
    try:
        return float(text)
    except ValueError:
        return text


def _price(name: str, sides: Mapping[str, Any], where: str, source: str) -> Price:
    """Make a price.

    Args:
        name: of the model.
        sides: rates by `PRICE_NAMES`, or one without a name for tokens in and out.
        where: names the file or flag in messages.
        source: of the price.
    """
    rates: dict[str, float] = {}
    for side, rate in sides.items():
        title = f"price of {name}, {side}" if side else f"price of {name}"
        rates[side] = validate(TokenRate, rate, where, title)
    tokens_in = rates.get("", rates.get("in", 0.0))
    tokens_out = rates.get("", rates.get("out", 0.0))
    cached = rates.get("cached")
    return Price(
        Rate(tokens_in, tokens_out, cached, rates.get("thoughts"), rates.get("call", 0.0)), source
    )


# TOML.

MAX_TOML_BYTES = 1 << 19
MAX_KEY_PARTS = 64  # the memory of tomllib grows with the square of the parts of a key
# Strings and comments. A string without an end goes as far as tomllib would look for it.
TOML_STRING_PATTERN = re.compile(
    r'"{3}(?:[^\\]|\\.)*?(?:"{3,5}|\Z)|"(?:[^"\\\n]|\\.)*+"?'
    r"|'{3}.*?(?:'{3,5}|\Z)|'[^'\n]*'?|#[^\n]*",
    re.DOTALL,
)
# Parts of the messages of tomllib.
TOML_POSITION_PATTERN = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
TOML_DUPLICATE_PATTERN = re.compile(r"Cannot overwrite a value|Cannot declare .* twice")
TOML_NAME_PATTERN = re.compile(r"\s*(\[[^\]]*\]|[^=\s]+)")  # the table or key of a line


def _read_text(name: str, kind: str) -> str:
    """Read a small text file.

    Args:
        name: path of the file.
        kind: what the file is, for messages.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        return read_small(Path(name), MAX_TOML_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise InputError(f"{kind} not found: {name}; give the path of a .toml file") from None
    except IsADirectoryError:
        raise InputError(f"{kind} is a directory: {name}; name a .toml file") from None
    except UnicodeDecodeError:
        raise InputError(f"{kind} is not UTF-8: {name}; save it as UTF-8") from None
    except OSError as error:
        raise InputError(
            f"{kind} cannot be read: {name}: {error.strerror}; give another one"
        ) from None


def _parse_toml(text: str, kind: str, where: str) -> dict[str, Any]:
    """Parse TOML.

    Args:
        text: of the file.
        kind: what the file is, for messages.
        where: names the file in messages.

    Raises:
        InputError: not TOML, or TOML that would take much memory.
    """
    if not text.strip():
        raise InputError(f"{kind} is empty: {where}; give one with tables in it")
    lines = TOML_STRING_PATTERN.sub("x", text).splitlines()
    if any(_key_parts(line) > MAX_KEY_PARTS for line in lines):
        raise InputError(
            f"{kind} has a key of more than {MAX_KEY_PARTS} parts: {where}; write it flat"
        )
    try:
        tables = tomllib.loads(text)
        # Python reads hexadecimal numbers that are too long to be printed in a message.
        repr(tables)
        return tables
    except tomllib.TOMLDecodeError as error:
        line, reason = _toml_fault(text, str(error))
        raise InputError(f"{kind} is not TOML: {where}:{line}: {reason}; mend that line") from None
    except ValueError:
        raise InputError(f"{kind} has a number of too many digits: {where}; mend it") from None
    except RecursionError:
        raise InputError(f"{kind} is nested too deeply: {where}; write it flat") from None


def _key_parts(line: str) -> int:
    """The largest number of words in a line with only dots between them: the parts of a key."""
    longest = 0
    length = 0
    for part in line.split("."):
        length = length + 1 if len(part.split()) == 1 else 1
        longest = max(longest, length)
    return longest


def _toml_fault(text: str, message: str) -> tuple[int, str]:
    """The line of a fault, and the reason; a key or table that occurs twice is named.

    Args:
        text: of the file.
        message: of tomllib.
    """
    lines = text.splitlines()
    position = TOML_POSITION_PATTERN.search(message)
    number = int(position[1]) if position and position[1] else len(lines)
    reason = TOML_POSITION_PATTERN.sub("", message)
    name = TOML_NAME_PATTERN.match(lines[number - 1])
    if name and TOML_DUPLICATE_PATTERN.fullmatch(reason):
        reason = f"duplicate key {name[1]}"
    return number, reason
