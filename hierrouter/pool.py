"""The pool: which models may be called, and how.

In: a TOML file or the name of one that comes with the package. Out: `Pool`, plain values, every
key checked. Not covered: loading a model (`hierrouter.collect.backends`).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from hierrouter.pricing import (
    POOL,
    Price,
    parameters_from,
    price_by_size,
    rate_from,
    rates_of,
    size_in,
)
from hierrouter.toml_file import parse_text, read_text
from hierrouter_cache.errors import InputError
from hierrouter_cache.fingerprint import step_key
from hierrouter_cache.pricing import Rate
from hierrouter_cache.routes import SEPARATOR, Routes
from hierrouter_cache.walk import TreeSpec

MAX_NODES = 10_000
MAX_HOPS = 20
TEMPERATURES = (0.01, 100.0)  # besides 0; logits divided by less overflow
MAX_SEED = 2**31 - 1
WHAT = "pool file"
DTYPES = ("auto", "float32", "float16", "bfloat16")
# What a report calls its own policies.
RESERVED = ("hierrouter", "oracle", "random")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
# What a step key says of a model besides its generation settings and the instruction.
Identity = Mapping[str, str]


@dataclass(frozen=True)
class Generation:
    """How a model decodes.

    Attributes:
        max_new_tokens: the response is cut there and marked `length`.
        temperature: 0 is greedy; above, one response is drawn, and kept for good.
        top_p: draw only among the likeliest tokens that together have this probability.
        seed: another one draws another response.
    """

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    @property
    def settings(self) -> dict[str, float]:
        """What decides a response, for its key: greedy decoding knows no top_p and no seed."""
        if self.temperature == 0:
            return {"max_new_tokens": self.max_new_tokens, "temperature": 0.0}
        return asdict(self)


@dataclass(frozen=True)
class ModelSpec:
    """One model of a pool.

    Attributes:
        name: how routes and tables call it.
        model: hub id, local folder, or `testbed:NAME`.
        base_rate: cost per token, in and out (paper section 3.1 and appendix B).
        backend: who runs it.
        revision: branch, tag or commit on the hub; None is the default branch.
        dtype: a torch dtype by name, or "auto" for the checkpoint's own.
        generation: decoding settings.
        rate_in: cost per prompt token, where there is no `base_rate`.
        rate_out: cost per generated token, likewise.
        parameters: how many the model has; they make its price where no rate is given.
    """

    name: str
    model: str
    base_rate: float | None = None
    backend: str = "transformers"
    revision: str | None = None
    dtype: str = "auto"
    generation: Generation = field(default_factory=Generation)
    rate_in: float | None = None
    rate_out: float | None = None
    parameters: float | None = None

    def price(self, place: str = "") -> Price:
        """The rate that is given; else by the number of parameters, as given or in a name.

        Args:
            place: where the model stands, for the message.

        Raises:
            InputError: there is neither.
        """
        if self.base_rate is not None:
            return Price(Rate.base(self.base_rate), POOL)
        if self.rate_in is not None and self.rate_out is not None:
            return Price(Rate(self.rate_in, self.rate_out), POOL)
        parameters = self.parameters or size_in(self.name) or size_in(Path(self.model).name)
        if parameters is None:
            raise InputError(
                f"base_rate is missing and no name tells a size: {place or f'model {self.name}'}; "
                'give base_rate, rate_in and rate_out, or parameters = "3B"'
            )
        return price_by_size(parameters)


@dataclass(frozen=True)
class Pool:
    """M candidate models, L hops, the stage instructions, and larger models to compare with.

    Attributes:
        models: the candidates; action a calls `models[a]`.
        hops: L.
        stage_prompts: instruction of each stage; the last one serves all later stages.
        references: models outside the pool, called directly only.
        context_free: later hops are independent answers that saw no earlier one, as imported
            from a table of single calls.
    """

    models: tuple[ModelSpec, ...]
    hops: int
    stage_prompts: tuple[str, ...]
    references: tuple[ModelSpec, ...] = ()
    context_free: bool = False

    @property
    def routes(self) -> Routes:
        """The shape of the tree."""
        return Routes(len(self.models), self.hops)

    @property
    def everyone(self) -> tuple[ModelSpec, ...]:
        """Candidates and references, in the order of the direct calls."""
        return self.models + self.references

    def instruction(self, level: int) -> str:
        """The stage instruction at depth `level`, counted from 0."""
        return self.stage_prompts[min(level, len(self.stage_prompts) - 1)]

    def tree_spec(self, identities: Mapping[str, Identity]) -> TreeSpec:
        """The pool as content keys.

        Args:
            identities: what each model resolved to, by name.
        """

        def step(model: ModelSpec, instruction: str) -> str:
            return step_key(identities[model.name], model.generation.settings, instruction)

        return TreeSpec(
            models=tuple(model.name for model in self.models),
            steps=tuple(
                tuple(step(model, self.instruction(level)) for model in self.models)
                for level in range(self.hops)
            ),
            direct=tuple((model.name, step(model, "")) for model in self.everyone),
        )

    def rates(self) -> dict[str, Rate]:
        """The rate of every model, references included, by name."""
        return rates_of(self.prices())

    def prices(self) -> dict[str, Price]:
        """The price of every model, references included, by name."""
        return {model.name: model.price() for model in self.everyone}

    def sub_pool(self, models: Sequence[str] | None, hops: int | None) -> Pool:
        """Fewer models, in the order given, or fewer hops; None leaves them as they are.

        Raises:
            InputError: a model that is not in the pool, or more hops than it has.
        """
        names = [model.name for model in self.models]
        chosen = self.models
        if models is not None:
            for name in models:
                if name not in names:
                    raise InputError(
                        f"unknown model: {name}; {suggestion(name, names)}".rstrip("; ")
                    )
            _distinct(list(models), "--models")
            chosen = tuple(self.models[names.index(name)] for name in models)
        if hops is not None and not 1 <= hops <= self.hops:
            raise InputError(f"hops must be 1 to {self.hops}, as collected, got {hops}: --hops")
        return replace(self, models=chosen, hops=hops or self.hops)

    def to_json(self, identities: Mapping[str, Identity]) -> str:
        """The pool and what its models resolved to, as stored with a plan."""
        return json.dumps({"pool": asdict(self), "identities": dict(identities)}, sort_keys=True)


def pool_from_json(text: str) -> tuple[Pool, dict[str, Identity]]:
    """The inverse of `Pool.to_json`."""
    stored = json.loads(text)
    raw = stored["pool"]
    pool = Pool(
        models=tuple(_stored_model(model) for model in raw["models"]),
        hops=raw["hops"],
        stage_prompts=tuple(raw["stage_prompts"]),
        references=tuple(_stored_model(model) for model in raw["references"]),
        context_free=raw.get("context_free", False),
    )
    return pool, stored["identities"]


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
    _known(raw, ("pool", "models", "references"), where)
    head = _of(dict, raw, "pool", where, {})
    _known(head, ("hops", "stage_prompts"), f"{where} [pool]")
    models = _parse_models(raw, "models", where)
    references = _parse_models(raw, "references", where)
    prompts = _of(list, head, "stage_prompts", where, [""])
    if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
        raise InputError(f"stage_prompts must be a list of at least one text: {where}")
    hops = _number(head, "hops", int, where, default=2)
    if not 1 <= hops <= MAX_HOPS:
        raise InputError(f"hops must be at least 1 and at most {MAX_HOPS}, got {hops}: {where}")
    if not models:
        raise InputError(f"models is empty: {where}; a pool needs at least one [[models]] entry")
    _distinct([model.name for model in models + references], where)
    pool = Pool(models, hops, tuple(prompts), references)
    if pool.routes.calls > MAX_NODES:
        raise InputError(
            f"{pool.routes.calls:,} nodes per query: {where}; "
            f"{len(models)} models at {hops} hops exceed {MAX_NODES:,}, take fewer of either"
        )
    return pool


def suggestion(word: str, known: Iterable[str]) -> str:
    """`did you mean x? ` where something known is close, else `known: a, b; `."""
    candidates = list(known)
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    return f"did you mean {close[0]}? " if close else f"known: {', '.join(candidates)}; "


def _parse_models(raw: Mapping[str, Any], key: str, where: str) -> tuple[ModelSpec, ...]:
    entries = _of(list, raw, key, where, [])
    if not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{key} must be tables: {where}; write [[{key}]] above each entry")
    return tuple(_parse_model(entry, where) for entry in entries)


def _parse_model(raw: Mapping[str, Any], where: str) -> ModelSpec:
    place = f"{where}, model {raw.get('name', '?')}"
    if "api_key" in raw:
        raise InputError(f"api_key must not stand in a file: {place}; use the environment")
    _known(raw, [item.name for item in fields(ModelSpec)], place)
    for key in ("name", "model"):
        if not isinstance(raw.get(key), str) or not raw[key].strip():
            raise InputError(f"{key} is missing: {place}; each [[models]] entry needs one")
    if not NAME.fullmatch(raw["name"]) or SEPARATOR in raw["name"]:
        raise InputError(f"invalid model name: {place}; use letters, digits and . _ : -")
    if raw["name"] in RESERVED:
        raise InputError(f"model name is taken: {place}; reports call a policy of ours so")
    if ".." in Path(raw["model"]).parts:
        raise InputError(f"invalid model path with ../: {place}; give an absolute path or hub id")
    backend = raw.get("backend", "transformers")
    if backend != "transformers":
        raise InputError(f"unknown backend {backend}: {place}; known: transformers")
    dtype = _of(str, raw, "dtype", place, "auto")
    if dtype not in DTYPES:
        raise InputError(f"unknown dtype {dtype}: {place}; known: {', '.join(DTYPES)}")
    generation = _parse_generation(_of(dict, raw, "generation", place, {}), place)
    model = ModelSpec(
        name=raw["name"],
        model=raw["model"],
        backend=backend,
        revision=_of(str, raw, "revision", place, None),
        dtype=dtype,
        generation=generation,
        **_parse_price(raw, place),
    )
    model.price(place)
    return model


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
    _known(raw, [item.name for item in fields(Generation)], f"{place} generation")
    generation = Generation(
        _number(raw, "max_new_tokens", int, place, default=512),
        _number(raw, "temperature", float, place, default=0.0),
        _number(raw, "top_p", float, place, default=1.0),
        _number(raw, "seed", int, place, default=0),
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


def _stored_model(raw: Mapping[str, Any]) -> ModelSpec:
    return ModelSpec(**{**raw, "generation": Generation(**raw["generation"])})


def _of(kind: type, raw: Mapping[str, Any], key: str, where: str, default: Any) -> Any:
    """A value of this type, or the default where the key is missing."""
    value = raw.get(key, default)
    if key in raw and not isinstance(value, kind):
        names: dict[type, str] = {dict: "a table", list: "a list", str: "a text"}
        raise InputError(f"{key} must be {names[kind]}, got {value!r:.40}: {where}")
    return value


def _number(
    raw: Mapping[str, Any], key: str, kind: type, where: str, default: float | None = None
) -> Any:
    value = raw.get(key, default)
    if value is None:
        raise InputError(f"{key} is missing: {where}")
    accepted = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, accepted):
        name = "an integer" if kind is int else "a number"
        raise InputError(f"{key} must be {name}, got {value!r}: {where}")
    return kind(value)


def _known(raw: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    for key in raw:
        if key not in (known := list(keys)):
            raise InputError(f"unknown key {key}: {where}; {suggestion(key, known)}".rstrip("; "))


def _distinct(names: list[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"duplicate model {name}: {where}; names must differ")
