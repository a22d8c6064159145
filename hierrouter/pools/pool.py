"""A pool of models: what may be called, where it is served, and what it costs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from hierrouter.pools.validation import NO_MORE, Checked, must_be, validated
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import step_key
from hierrouter_cache.tree import Rate, Routes, RouteTree
from hierrouter_cache.walk import TreeSpec

MAX_NODES = 10_000
MAX_HOPS = 20
MAX_SEED = 2**31 - 1
OPENAI = "openai"  # the backend of models that a server answers for
IMPORTED = "imported"  # the backend of models whose answers came from elsewhere
# What a report calls its own policies, and the end of an action that stops, `first>stop`.
RESERVED = ("hierrouter", "oracle", "random", "stop")
# What a step key says of a model besides its generation settings and the instruction.
Identity = Mapping[str, str]


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _rate(value: float) -> float:
    if not isfinite(value) or value < 0:
        raise ValueError(f"must be finite and >= 0, got {value}")
    return value + 0.0  # not -0.0


def _size(value: object) -> object:
    """The number that "3B" stands for."""
    if not isinstance(value, str):
        return value
    if not SIZE_IN_NAME.fullmatch(value.strip()) or not size_in(value):
        raise ValueError(f'must be like "3B" or 3.0e9, got {value!r:.40}')
    return size_in(value)


def _count(value: float) -> float:
    count = _rate(value)
    if count < 1_000:  # billions, written as a plain number
        raise ValueError(f'must be like "3B" or 3.0e9, got {count:g}')
    return count


def _variable(name: str) -> str:
    """Without repeating it: a key may have been given in its place."""
    if not VARIABLE.fullmatch(name):
        raise ValueError("must be the name of an environment variable; not the key itself")
    return name


def _url(url: str) -> str:
    """Nothing of it is repeated in a message before it is known to be clean."""
    url, example = url.rstrip("/"), "e.g. http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(url)
        host = parts.port != 0 and parts.hostname
    except ValueError:
        parts, host = urlsplit(""), None
    if url and (not host or not VISIBLE.fullmatch(url) or parts.scheme not in ("http", "https")):
        raise ValueError(f"must be http:// or https:// and a host; {example}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must hold no user and password; use api_key_env")
    if parts.query or parts.fragment:
        raise ValueError(f"must end after the path; {example}")
    address = _ip_address(host or "")
    if address and address.is_link_local:  # where clouds serve credentials to whoever asks
        raise ValueError(f"{host} is a link-local http address; {example}")
    return url


def _no_server(name: str) -> str:
    if "://" in name or name.endswith(".toml"):  # a pool may come from others
        raise ValueError("must name no server; --encoder does")
    return name


Text = Annotated[str, Checked(_not_empty)]
Variable = Annotated[str, Checked(_variable)]
TokenRate = Annotated[float, Checked(_rate)]  # cost of `per_tokens` tokens
PerMinute = Annotated[float, must_be("a number above 0", lambda count: 0 < count < inf)]
# What of tokens a rate is the price of: 1,000 in the paper, 1,000,000 where providers print it.
PerTokens = Annotated[int, must_be("1 to 1000000000", lambda count: 1 <= count <= 1_000_000_000)]
Currency = Annotated[
    str, must_be("1 to 12 letters such as USD", lambda name: name.isalpha() and len(name) <= 12)
]
MONEY = "money"  # of a pool that names no currency
Parameters = Annotated[float, Checked(_size, before=True), Checked(_count)]  # 3e9 or "3B"


@dataclass(frozen=True)
class Generation:
    """How a model decodes.

    Attributes:
        max_new_tokens: the response is cut there and marked `length`.
        temperature: 0 is greedy; above, one response is drawn, and kept for good. Logits divided
            by less than 0.01 overflow.
        top_p: draw only among the likeliest tokens that together have this probability.
    """

    __pydantic_config__ = NO_MORE

    max_new_tokens: Annotated[int, must_be("at least 1", lambda count: count >= 1)] = 512
    temperature: Annotated[
        float, must_be("0 (greedy) or 0.01 to 100", lambda t: t == 0 or 0.01 <= t <= 100)
    ] = 0.0
    top_p: Annotated[float, must_be("above 0 and at most 1", lambda p: 0 < p <= 1)] = 1.0
    seed: Annotated[int, must_be(f"0 to {MAX_SEED}", lambda seed: 0 <= seed <= MAX_SEED)] = 0

    @property
    def settings(self) -> dict[str, float]:
        """What decides a response, for its key: greedy decoding knows no top_p and no seed."""
        if self.temperature == 0:
            return {"max_new_tokens": self.max_new_tokens, "temperature": 0.0}
        return asdict(self)


Ability = Literal["tools", "response_format", "images"]


@dataclass(frozen=True)
class Endpoint:
    """Where an OpenAI-compatible server is and how it is called.

    Attributes:
        base_url: up to and with the version, e.g. `http://127.0.0.1:8000/v1`; empty where the
            command line names it.
        api_key_env: the environment variable that holds the key; None where none is wanted.
        deployment: names what is served, for the model's identity; None is the base_url. With
            a name of its own a server keeps its answers when it moves to another address.
        answers_as: the model that answers must name; None is the one that is asked for.
        tokenizer: folder or hub id; counts tokens where the server sends no usage.
        replicas: further servers of the same deployment, as `base_url`; they share the calls.
        concurrency: calls under way at once, at each server.
        requests_per_minute, tokens_per_minute: what all servers together are asked for at most;
            tokens are those that a call may take. None is as much as they take.
        timeout_s: seconds for one call, from the connection to the last byte.
        attempts: how often one call is made before it has failed.
        insecure: send the key over plain http to another machine.
        takes: what it heeds beside text and decoding settings, of `Ability`, when a client of
            `hierrouter serve` asks for it.
        public_only: call neither this machine nor a private network; of stored pools, which may
            come from others, see `reachable`. Not stored itself.
    """

    __pydantic_config__ = NO_MORE

    base_url: Annotated[str, Checked(_url)] = ""
    api_key_env: Variable | None = None
    deployment: Text | None = None
    answers_as: Text | None = None
    tokenizer: Text | None = None
    concurrency: Annotated[int, must_be("1 to 1000", lambda calls: 1 <= calls <= 1000)] = 16
    timeout_s: Annotated[
        float, must_be("above 0 and at most 86400 seconds", lambda seconds: 0 < seconds <= 86_400)
    ] = 600.0
    replicas: tuple[Annotated[str, Checked(_url)], ...] = ()
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    attempts: Annotated[int, must_be("1 to 20", lambda attempts: 1 <= attempts <= 20)] = 5
    insecure: bool = False
    takes: tuple[Ability, ...] = ()
    public_only: bool = False

    def __post_init__(self) -> None:
        for name in ("replicas", "takes"):  # lists where they are read
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def address(self) -> str:
        """host:port, for messages."""
        parts = urlsplit(self.base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or ""
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def servers(self) -> tuple[str, ...]:
        """The base_url of each server; empty where none is named."""
        return tuple(url for url in (self.base_url, *self.replicas) if url)

    def check(self, place: str) -> None:
        """Refuse what cannot be called, or not safely.

        Raises InputError: with the field and what is expected there; never with a secret.
        """
        validated(Endpoint, asdict(self), place)
        parts = map(urlsplit, self.servers)
        risky = any(at.scheme == "http" and not is_loopback(at.hostname or "") for at in parts)
        if self.api_key_env and risky and not self.insecure:
            raise InputError(
                f"the key in {self.api_key_env} would go over plain http: {place}; "
                "use https, or insecure = true (--insecure)"
            )

    def key(self, place: str) -> str | None:
        """The key, from the environment; None where none is wanted.

        Raises InputError: see `key_in`.
        """
        return None if self.api_key_env is None else key_in(self.api_key_env, place)


@dataclass(frozen=True)
class ModelSpec:
    """One model of a pool.

    Attributes:
        name: how routes and tables call it.
        model: hub id, local folder, or `testbed:NAME`.
        base_rate: cost of the pool's `per_tokens` tokens, in and out (paper section 3.1 and
            appendix B).
        backend: who runs it.
        revision: branch, tag or commit on the hub; None is the default branch.
        dtype: a torch dtype by name, or "auto" for the checkpoint's own.
        device: auto, cpu, cuda, cuda:N, or balanced over all GPUs; for local engines.
        endpoint: the server that answers, for backend "openai".
        window: tokens of prompt and response together, where it is less than the model's own; for
            local engines.
        rate_in: cost of so many prompt tokens, where there is no `base_rate`.
        rate_out: cost of so many generated tokens, likewise.
        parameters: how many the model has; they make its price where no rate is given.
    """

    __pydantic_config__ = NO_MORE

    name: Text
    model: Text
    base_rate: TokenRate | None = None
    backend: str = "transformers"
    revision: str | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    generation: Generation = field(default_factory=Generation)
    rate_in: TokenRate | None = None
    rate_out: TokenRate | None = None
    parameters: Parameters | None = None
    device: str = "auto"
    endpoint: Endpoint | None = None
    window: Annotated[int, must_be("at least 1", lambda count: count >= 1)] | None = None

    def price(self, place: str = "") -> Price:
        """The rate that is given; else by the number of parameters, as given or in a name.

        It is the price of the pool's `per_tokens` tokens; `Pool.prices` has it per token. Raises
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


def refuse_stored_keys(
    models: Iterable[ModelSpec], who: str, folder: Path, collects: bool = False
) -> None:
    """A pool that was stored may come from others: it must not decide which secret goes where.

    Raises InputError: a model wants a key from the environment.

    `who`: names the pool; `collects`: the command has `--api-key-env`, too.
    """
    for model in models:
        if model.backend == OPENAI and model.endpoint and (name := model.endpoint.api_key_env):
            remedy = f", or --api-key-env {name}" if collects else ""
            raise InputError(
                f"{who} would send {name} to {model.endpoint.address}: {folder}; "
                f"say so yourself with --pool{remedy}"
            )


@dataclass(frozen=True)
class Pool:
    """M candidate models, L hops, the stage instructions, and larger models to compare with.

    Attributes:
        models: the candidates; action a calls `models[a]`.
        stage_prompts: instruction of each stage; the last one serves all later stages.
        references: models outside the pool, called directly only.
        context_free: later hops are independent answers that saw no earlier one, as imported
            from a table of single calls.
        per_tokens: how many tokens the rates are the price of; None is one, see `unit_note`.
        currency: of the rates.
        encoder: what a router reads the texts with, a name of `load_encoder`; None is
            `default_encoder`.
    """

    __pydantic_config__ = NO_MORE

    models: tuple[ModelSpec, ...] = ()
    hops: Annotated[
        int, must_be(f"at least 1 and at most {MAX_HOPS}", lambda hops: 1 <= hops <= MAX_HOPS)
    ] = 2
    stage_prompts: tuple[str, ...] = ("",)
    references: tuple[ModelSpec, ...] = ()
    context_free: bool = False
    per_tokens: PerTokens | None = None
    currency: Currency = MONEY
    encoder: Annotated[Text, Checked(_no_server)] | None = None

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
        """The pool as content keys."""

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
        """The rate of a token of every model, references included, by name."""
        return rates_of(self.prices())

    def prices(self) -> dict[str, Price]:
        """The price of a token of every model, references included, by name."""
        return {model.name: model.price().of_a_token(self.per_tokens) for model in self.everyone}

    def unit_note(self) -> str | None:
        """A sentence where the pool does not say how many tokens its rates are the price of."""
        if self.per_tokens is not None:
            return None
        return "the pool has no per_tokens: its rates are read per token; see [pool] per_tokens"

    @property
    def imported(self) -> bool:
        """Whether answers of it came from elsewhere, so that nobody can call its models."""
        return any(model.backend == IMPORTED for model in self.everyone)

    def sub_pool(
        self, models: Sequence[str] | None, hops: int | None, without: Sequence[str] = ()
    ) -> Pool:
        """Fewer models, in the order given, or fewer hops; None leaves them as they are.

        Raises InputError: a model that is not in the pool, none that is left, or more hops than it
        has.

        `models`: names of those to keep; references stay; `hops`: how many; `without`: names of
        models and references to leave out.
        """
        names = [model.name for model in self.models]
        everyone = [model.name for model in self.everyone]
        for given, known in ((models or (), names), (without, everyone)):
            for name in given:
                if name not in known:
                    raise InputError(
                        f"unknown model: {name}; {suggestion(name, known)}".rstrip("; ")
                    )
        chosen = self.models
        if models is not None:
            require_distinct(list(models), "--models")
            chosen = tuple(self.models[names.index(name)] for name in models)
        chosen = tuple(model for model in chosen if model.name not in without)
        references = tuple(model for model in self.references if model.name not in without)
        if not chosen:
            raise InputError(f"no model is left: --without {','.join(without)}; leave out fewer")
        if hops is not None and not 1 <= hops <= self.hops:
            raise InputError(f"hops must be 1 to {self.hops}, as collected, got {hops}: --hops")
        return replace(self, models=chosen, references=references, hops=hops or self.hops)

    def to_json(self, identities: Mapping[str, Identity]) -> str:
        """The pool and what its models resolved to, as stored with a plan."""
        found = asdict(self)
        for model in (*found["models"], *found["references"]):
            if model["endpoint"]:
                del model["endpoint"]["public_only"]
        return json.dumps({"pool": found, "identities": dict(identities)}, sort_keys=True)


def reachable(pool: Pool, allowed: Collection[str] | None, where: str) -> Pool:
    """A stored pool that calls the open network, and beside it the hosts that the user allows.

    Raises InputError: a model is on this machine or on a private network.

    `allowed`: host names or addresses; None is all; `where`: names the pool in messages.
    """

    def told(model: ModelSpec) -> ModelSpec:
        end = model.endpoint
        if end is None or not end.base_url:
            return model
        is_allowed = True
        for url in () if allowed is None else end.servers:
            host = urlsplit(url).hostname or ""
            address, is_here = _ip_address(host), host in (allowed or ())
            if not is_here and (host == "localhost" or (address and not address.is_global)):
                raise InputError(
                    f"{where} would call {replace(end, base_url=url).address}, on this machine or "
                    f"a private network; give --allow-endpoint {host}, or --pool"
                )
            is_allowed &= is_here
        return replace(model, endpoint=replace(end, public_only=not is_allowed))

    models, references = (tuple(map(told, group)) for group in (pool.models, pool.references))
    return replace(pool, models=models, references=references)


def require_distinct(names: Sequence[str], where: str) -> None:
    """Refuse a name that stands twice; `where` says in the message where.

    Raises InputError: with the name.
    """
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"duplicate model {name}: {where}; names must differ")


VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VISIBLE = re.compile(r"[!-~]+")  # what an HTTP header and an address take


def key_in(variable: str, place: str) -> str:
    """The key that an environment variable holds.

    Raises InputError: no variable has this name, it is not set, or it holds what no header takes.
    """
    validated(Variable, variable, place, "api_key_env")
    value = os.environ.get(variable, "").strip()
    if not value:
        raise InputError(f"{variable} is not set: {place}; it must hold the API key")
    if not VISIBLE.fullmatch(value):
        raise InputError(f"{variable} holds characters that no key has: {place}; set it again")
    return value


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine."""
    address = _ip_address(host)  # some machines ask a server where names below localhost lead
    return address.is_loopback if address else host == "localhost"


def _ip_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


POOL = "pool"
SIZE = "size"
# The paper's list (appendix B) for its models of 3, 8 and 14 billion parameters; its model of 1.5
# billion stands there with 0.002 instead of 0.0015.
RATE_PER_BILLION = 0.001
UNITS = {"b": 1e9, "m": 1e6}
# A size in a name stands between delimiters: `-3B-`, `_7b`, `-8x7B`; not `v0.1b2`.
SIZE_IN_NAME = re.compile(
    r"(?<![A-Za-z0-9.])(?:(\d{1,9})x)?(\d{1,9}(?:\.\d+)?)([bm])(?![A-Za-z0-9])", re.IGNORECASE
)


@dataclass(frozen=True)
class Price:
    """The rate of one model.

    Attributes:
        rate: cost of `per_tokens` tokens in and out.
        source: who says so: "pool", "price file NAME", "--price", or "size (3B)".
        per_tokens: None is the pool's, and a single one where the pool's is divided out already.
        currency: None is the pool's.
    """

    rate: Rate
    source: str
    per_tokens: int | None = None
    currency: str | None = None

    def of_a_token(self, per_tokens: int | None) -> Price:
        """The same per token, where it is of `per_tokens` unless it says otherwise."""
        count = self.per_tokens or per_tokens or 1
        rate = Rate(self.rate.tokens_in / count, self.rate.tokens_out / count)
        return replace(self, rate=rate, per_tokens=None)


def size_in(name: str) -> float | None:
    """Parameters of a model by its name: `x-3B-Instruct` is 3e9, `8x7B` 56e9, `350M` 350e6.

    None where the name tells no size; of several sizes the first one counts.
    """
    found = SIZE_IN_NAME.search(name)
    if not found:
        return None
    experts, number, unit = found.groups()
    return int(experts or 1) * float(number) * UNITS[unit.lower()] or None


def price_by_size(parameters: float) -> Price:
    """The heuristic price of a model (paper section 3.1): 0.001 for each billion parameters.

    It is of the pool's `per_tokens` tokens; the paper's are 1,000.

    `parameters`: how many the model has.
    """
    rate = float(f"{RATE_PER_BILLION * parameters / UNITS['b']:.12g}")  # 0.003, no 0.00300000001
    unit = "b" if parameters >= UNITS["b"] else "m"
    return Price(Rate.base(rate), f"{SIZE} ({parameters / UNITS[unit]:.4g}{unit.upper()})")


def guesses(tree: RouteTree) -> str | None:
    """A sentence that names the models whose price is by their size alone, or None."""
    guessed = [
        f"price of {name} unknown: {rate:g} per token by its {source}"
        for name, rate in zip(tree.direct.models, tree.direct.rate[:, 0].tolist(), strict=True)
        if (source := tree.priced_by.get(name, "")).startswith(SIZE)
    ]
    return f"{', '.join(guessed)}; give base_rate or --price" if guessed else None


def price_table(tree: RouteTree) -> dict[str, dict[str, Any]]:
    """JSON values: the rates of every model of a tree, per token, and where they are from."""
    return {
        name: {"in": rate[0], "out": rate[1], "source": tree.priced_by.get(name, POOL)}
        for name, rate in zip(tree.direct.models, tree.direct.rate.tolist(), strict=True)
    }


def rates_of(prices: Mapping[str, Price]) -> dict[str, Rate]:
    """The rates alone, by model."""
    return {name: price.rate for name, price in prices.items()}
