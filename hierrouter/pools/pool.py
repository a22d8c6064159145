"""A pool of models: which models may be called, on which servers, and what they cost."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from hierrouter.pools.validation import FORBID_EXTRA_KEYS, FieldCheck, must_be, validate
from hierrouter_cache import MAX_DRAWS
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import draw_step, step_key
from hierrouter_cache.layout import Layout
from hierrouter_cache.tree import Rate, RouteTree
from hierrouter_cache.walk import TreeSpec

MAX_POOL_NODES = 10_000  # calls of one query's tree
MAX_ACTIONS = 500  # of a pool with roles
MAX_ACTION_NAME = 200  # characters
MAX_INSTRUCTION = 100_000  # characters of an action's instruction
MAX_HOPS = 20
MAX_SEED = 2**31 - 1
OPENAI = "openai"  # the backend of models on a server
IMPORTED = "imported"  # the backend of models whose responses were imported
# Names of policies in reports, and the end of an action that stops, `first>stop`.
RESERVED_NAMES = ("hierrouter", "oracle", "random", "stop")
START = "start"  # in `after` of an action: the question itself, before any call
# The weights or the server of a model, as they enter a step key beside the generation settings and
# the instruction.
Identity = Mapping[str, str]


# Checks of fields. Each returns the value to keep, and raises a `ValueError` whose text follows the
# key in the message.


def _require_text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _require_rate(value: float) -> float:
    if not isfinite(value) or value < 0:
        raise ValueError(f"must be finite and >= 0, got {value}")
    return value + 0.0  # turns -0.0 into 0.0


def _parse_size(value: object) -> object:
    """Turn a text such as "3B" into a number; leave other values to the next check."""
    if not isinstance(value, str):
        return value
    if not SIZE_PATTERN.fullmatch(value.strip()) or not size_in_name(value):
        raise ValueError(f'must be like "3B" or 3.0e9, got {value!r:.40}')
    return size_in_name(value)


def _require_parameter_count(value: float) -> float:
    count = _require_rate(value)
    if count < 1_000:  # a number of billions, such as 3
        raise ValueError(f'must be like "3B" or 3.0e9, got {count:g}')
    return count


def _require_variable(name: str) -> str:
    # The message does not repeat the value: somebody may have written the key itself.
    if not VARIABLE_PATTERN.fullmatch(name):
        raise ValueError("must be the name of an environment variable; not the key itself")
    return name


def _require_url(url: str) -> str:
    # No message repeats a part of the URL before the checks for secrets in it have passed.
    url = url.rstrip("/")
    example = "e.g. http://127.0.0.1:8000/v1"
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None
    except ValueError:  # such as a port that is no number
        parts = urlsplit("")
        host = None
    is_http = bool(VISIBLE_PATTERN.fullmatch(url)) and parts.scheme in ("http", "https")
    if url and not (host and is_http):
        raise ValueError(f"must be http:// or https:// and a host; {example}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must hold no user and password; use api_key_env")
    if parts.query or parts.fragment:
        raise ValueError(f"must end after the path; {example}")
    address = _ip_address(host or "")
    # Clouds serve credentials at link-local addresses, to any program that asks.
    if address and address.is_link_local:
        raise ValueError(f"{host} is a link-local http address; {example}")
    return url


def _require_tags(value: object) -> object:
    """Turn pairs of a list into tuples, which pydantic expects after the check."""
    pairs: list[Any] = value if isinstance(value, list) else [None]
    for pair in pairs:
        is_pair = isinstance(pair, list) and len(pair) == 2
        if not is_pair or not all(isinstance(tag, str) and tag.strip() for tag in pair):
            raise ValueError(f'must be like [["<thought>", "</thought>"]], got {value!r:.40}')
    return tuple(map(tuple, pairs))


def _require_instruction(text: str) -> str:
    # Newlines and tabs are a text's own; a chat template may read other control characters.
    if any((ord(letter) < 32 and letter not in "\n\t") or letter == "\x7f" for letter in text):
        raise ValueError("must have no control characters; write lines and tabs only")
    if len(text) > MAX_INSTRUCTION:
        raise ValueError(f"must have at most {MAX_INSTRUCTION:,} characters, got {len(text):,}")
    return text


def _require_one_model(value: object) -> object:
    if isinstance(value, list):
        raise ValueError(
            f"must be the name of one model, got {value!r:.40}; write an [[actions]] entry for each"
        )
    return value


def _require_hops(hops: tuple[int, ...]) -> tuple[int, ...]:
    if not hops or any(not 1 <= hop <= MAX_HOPS for hop in hops):
        raise ValueError(f"must be numbers of hops from 1, got {list(hops)}; write at = [1]")
    return tuple(sorted(set(hops)))


def _parse_body(value: object) -> object:
    """Turn a table into JSON with sorted keys; a stored plan has that text already."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value else {}
        except (ValueError, RecursionError):
            raise ValueError("must be a table") from None
    if not isinstance(value, dict):
        raise ValueError("must be a table")
    for name in value:
        if name in RESERVED_FIELDS:
            raise ValueError(f"must not have {name}, which the tool sends; leave it out")
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False) if value else ""
    except ValueError:
        raise ValueError("must have finite numbers") from None


def _refuse_server(name: str) -> str:
    # A pool may come from others: it must not send texts to a server.
    if "://" in name or name.endswith(".toml"):
        raise ValueError("must name no server; --encoder does")
    return name


Text = Annotated[str, FieldCheck(_require_text)]
Variable = Annotated[str, FieldCheck(_require_variable)]
TokenRate = Annotated[float, FieldCheck(_require_rate)]  # cost of `per_tokens` tokens
PerMinute = Annotated[float, must_be("a number above 0", lambda count: 0 < count < inf)]
# The number of tokens that a rate is the price of: 1,000 in the paper, 1,000,000 at most providers.
PerTokens = Annotated[int, must_be("1 to 1000000000", lambda count: 1 <= count <= 1_000_000_000)]
Currency = Annotated[
    str, must_be("1 to 12 letters such as USD", lambda name: name.isalpha() and len(name) <= 12)
]
DEFAULT_CURRENCY = "money"  # of a pool that names none
NO_PENALTY = 1.0
# Scorers that a collection of own files may choose for Q.
FittingScorer = Literal["numeric", "choice", "boxed", "accuracy"]
Thoughts = Literal["keep", "drop"]
KEEP_THOUGHTS: Thoughts = "keep"
DROP_THOUGHTS: Thoughts = "drop"
LATER_RATES = ("rate_cached", "rate_thoughts", "rate_call", "rate_batch")  # fields of `ModelSpec`
Draws = Annotated[
    int, must_be(f"at least 1 and at most {MAX_DRAWS}", lambda draws: 1 <= draws <= MAX_DRAWS)
]
Parameters = Annotated[  # 3e9 or "3B"
    float, FieldCheck(_parse_size, before=True), FieldCheck(_require_parameter_count)
]


# Fields of a request that `extra_body` must not replace.
RESERVED_FIELDS = (
    *("model", "messages", "stream", "stream_options", "n", "logprobs", "seed", "tools"),
    *("temperature", "top_p", "max_tokens", "max_completion_tokens", "response_format"),
    *("repetition_penalty", "repeat_penalty", "reasoning_effort"),
)
MaxNewTokens = Annotated[int, must_be("at least 1", lambda count: count >= 1)]
Temperature = Annotated[
    float, must_be("0 (greedy) or 0.01 to 100", lambda t: t == 0 or 0.01 <= t <= 100)
]
TopP = Annotated[float, must_be("above 0 and at most 1", lambda p: 0 < p <= 1)]
Seed = Annotated[int, must_be(f"0 to {MAX_SEED}", lambda seed: 0 <= seed <= MAX_SEED)]
RepetitionPenalty = Annotated[
    float, must_be("above 0 and at most 10", lambda penalty: 0 < penalty <= 10)
]
ExtraBody = Annotated[str, FieldCheck(_parse_body, before=True)]
LATER_SETTINGS = ("effort", "extra_body")  # fields of `Generation` that are for servers


@dataclass(frozen=True)
class Generation:
    """Decoding settings of a model.

    Attributes:
        max_new_tokens: a longer response is cut there and marked `length`.
        temperature: 0 is greedy decoding. Above, one response is drawn and stored. Logits divided
            by less than 0.01 would overflow.
        top_p: draw only among the likeliest tokens that together have this probability.
        seed: of the draw.
        repetition_penalty: divides the positive logits of tokens that prompt or response have
            already, and multiplies the negative ones; 1 changes nothing.
        effort: `reasoning_effort` of the request, such as "low"; for models on a server.
        extra_body: further fields of the request, as JSON; for models on a server.
    """

    __pydantic_config__ = FORBID_EXTRA_KEYS

    max_new_tokens: MaxNewTokens = 512
    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    seed: Seed = 0
    repetition_penalty: RepetitionPenalty = NO_PENALTY
    effort: Text | None = None
    extra_body: ExtraBody = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that a response depends on, for its key.

        Greedy decoding depends on neither top_p nor seed.
        """
        settings = asdict(self)
        if self.temperature == 0:
            settings = {"max_new_tokens": self.max_new_tokens, "temperature": 0.0}
        # Keys of calls without a penalty are those from before there was this setting.
        settings.pop("repetition_penalty", None)
        if self.repetition_penalty != NO_PENALTY:
            settings["repetition_penalty"] = self.repetition_penalty
        for name in LATER_SETTINGS:
            settings.pop(name, None)
            if getattr(self, name):
                settings[name] = getattr(self, name)
        return settings

    @property
    def further_fields(self) -> dict[str, Any]:
        """Fields of a request to a server besides those of every call."""
        effort = {"reasoning_effort": self.effort} if self.effort else {}
        return {**effort, **(json.loads(self.extra_body) if self.extra_body else {})}


Ability = Literal["tools", "response_format", "images"]
# Opening and closing tag of each kind of thought.
ThoughtTags = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server, and how it is called.

    Attributes:
        base_url: up to and with the version, e.g. `http://127.0.0.1:8000/v1`; empty if the command
            line gives it.
        api_key_env: the environment variable with the API key; None if the server needs none.
        deployment: identifies the served model; None is the base_url. With a deployment, responses
            stay valid when the server moves to another address.
        answers_as: the model name that responses must have; None is the requested name.
        tokenizer: folder or hub id; counts tokens if the server reports no usage.
        concurrency: concurrent calls at each server.
        timeout_s: seconds for one call, from the connection to the last byte.
        replicas: base_url of further servers of the same deployment; they share the calls.
        requests_per_minute: limit for all servers together; None is no limit.
        tokens_per_minute: limit for all servers together, in tokens that calls may take at most;
            None is no limit.
        attempts: how often one call is tried before it has failed.
        insecure: send the key over plain http to another machine.
        takes: what the server supports beside text and decoding settings, if a client of
            `hierrouter serve` asks for it.
        public_only: call neither this machine nor a private network. For stored pools, which may
            come from others, see `restrict_hosts`. Not stored itself.
    """

    __pydantic_config__ = FORBID_EXTRA_KEYS

    base_url: Annotated[str, FieldCheck(_require_url)] = ""
    api_key_env: Variable | None = None
    deployment: Text | None = None
    answers_as: Text | None = None
    tokenizer: Text | None = None
    concurrency: Annotated[int, must_be("1 to 1000", lambda calls: 1 <= calls <= 1000)] = 16
    timeout_s: Annotated[
        float, must_be("above 0 and at most 86400 seconds", lambda seconds: 0 < seconds <= 86_400)
    ] = 600.0
    replicas: tuple[Annotated[str, FieldCheck(_require_url)], ...] = ()
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    attempts: Annotated[int, must_be("1 to 20", lambda attempts: 1 <= attempts <= 20)] = 5
    insecure: bool = False
    takes: tuple[Ability, ...] = ()
    public_only: bool = False

    def __post_init__(self) -> None:
        # JSON has lists; a frozen class with lists could not be hashed.
        for name in ("replicas", "takes"):
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
        """The base_url of each server; empty if none is given."""
        return tuple(url for url in (self.base_url, *self.replicas) if url)

    def check(self, where: str) -> None:
        """Refuse settings that cannot be used, or not safely.

        Args:
            where: names the endpoint in messages.

        Raises:
            InputError: with the field and what is expected there; never with a secret.
        """
        validate(Endpoint, asdict(self), where)
        if self.api_key_env and not self.insecure and any(map(_is_unencrypted, self.servers)):
            raise InputError(
                f"the key in {self.api_key_env} would go over plain http: {where}; "
                "use https, or insecure = true (--insecure)"
            )

    def key(self, where: str) -> str | None:
        """Read the API key from the environment.

        Args:
            where: names the endpoint in messages.

        Returns:
            the key; None if the server needs none.

        Raises:
            InputError: see `read_api_key`.
        """
        return None if self.api_key_env is None else read_api_key(self.api_key_env, where)


def _is_unencrypted(url: str) -> bool:
    """Whether calls leave this machine over plain http."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


@dataclass(frozen=True)
class ModelSpec:
    """One model of a pool.

    Attributes:
        name: in routes and tables.
        model: hub id, local folder, or a shipped model such as `testbed:calc`.
        base_rate: cost of the pool's `per_tokens` tokens, in and out (paper section 3.1 and
            appendix B).
        backend: the engine that runs it.
        revision: branch, tag or commit on the hub; None is the default branch.
        dtype: a torch dtype by name, or "auto" for that of the checkpoint.
        generation: decoding settings.
        rate_in: cost of `per_tokens` prompt tokens, if there is no `base_rate`.
        rate_out: cost of `per_tokens` generated tokens, if there is no `base_rate`.
        rate_cached: cost of `per_tokens` prompt tokens that the provider read from its cache; None
            is that of other prompt tokens.
        rate_thoughts: cost of `per_tokens` generated tokens of a thought; None is that of other
            generated tokens.
        rate_call: cost of a call, on top of its tokens.
        rate_batch: factor of all rates, for calls that are made through a provider's batch API; 0.5
            is half the price.
        parameters: number of parameters; it determines the price if no rate is given.
        device: auto, cpu, cuda, cuda:N, or balanced over all GPUs; for local engines.
        endpoint: the server, for the backend "openai".
        window: largest number of tokens of prompt and response together, if less than the model's;
            for local engines.
        thought_tags: opening and closing tag of each kind of thought that the model writes, beyond
            those that are known anyway, see `hierrouter.questions.final.without_thoughts`.
    """

    __pydantic_config__ = FORBID_EXTRA_KEYS

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
    rate_cached: TokenRate | None = None
    rate_thoughts: TokenRate | None = None
    rate_call: TokenRate | None = None
    rate_batch: Annotated[float, must_be("above 0 and at most 1", lambda f: 0 < f <= 1)] | None = (
        None
    )
    thought_tags: Annotated[ThoughtTags, FieldCheck(_require_tags, before=True)] = ()

    def __post_init__(self) -> None:
        # JSON has lists; a frozen class with lists could not be hashed.
        tags = tuple((opening, closing) for opening, closing in self.thought_tags)
        object.__setattr__(self, "thought_tags", tags)

    def price(self, where: str = "") -> Price:
        """The price of the pool's `per_tokens` tokens; `Pool.prices` has the price of one token.

        It is the given rate, else by the number of parameters: the given number, or the one in a
        name. The price of a call is that of one call in either.

        Args:
            where: names the model in messages.

        Raises:
            InputError: there is neither a rate nor a number of parameters.
        """
        price = self._token_price(where)
        rate = replace(
            price.rate,
            cached=self.rate_cached,
            thoughts=self.rate_thoughts,
            call=self.rate_call or 0.0,
        )
        return replace(price, rate=rate if self.rate_batch is None else rate.times(self.rate_batch))

    def with_rate(self, rate: Rate) -> ModelSpec:
        """This model with other rates, and no further ones."""
        return replace(
            self,
            base_rate=None,
            rate_in=rate.tokens_in,
            rate_out=rate.tokens_out,
            rate_cached=rate.cached,
            rate_thoughts=rate.thoughts,
            rate_call=rate.call or None,
            rate_batch=None,
        )

    def _token_price(self, where: str) -> Price:
        """The price of plain tokens; see `price`."""
        if self.base_rate is not None:
            return Price(Rate.base(self.base_rate), POOL_PRICES)
        if self.rate_in is not None and self.rate_out is not None:
            return Price(Rate(self.rate_in, self.rate_out), POOL_PRICES)
        parameters = (
            self.parameters or size_in_name(self.name) or size_in_name(Path(self.model).name)
        )
        if parameters is None:
            raise InputError(
                f"base_rate is missing and no name tells a size: {where or f'model {self.name}'}; "
                'give base_rate, rate_in and rate_out, or parameters = "3B"'
            )
        return price_by_size(parameters)


def refuse_stored_keys(
    models: Iterable[ModelSpec], owner: str, folder: Path, collects: bool = False
) -> None:
    """Refuse a stored pool that would send an API key to a server.

    A stored pool may come from others. It must not decide which server gets a secret.

    Args:
        models: of the pool.
        owner: names the pool in the message.
        folder: folder that it is stored in.
        collects: whether the command has the option `--api-key-env`.

    Raises:
        InputError: a model needs a key from the environment.
    """
    for model in models:
        if model.backend != OPENAI or model.endpoint is None:
            continue
        variable = model.endpoint.api_key_env
        if variable:
            remedy = f", or --api-key-env {variable}" if collects else ""
            raise InputError(
                f"{owner} would send {variable} to {model.endpoint.address}: {folder}; "
                f"say so yourself with --pool{remedy}"
            )


# Fields of `ModelSpec` that an action may have for itself.
RATE_FIELDS = ("base_rate", "rate_in", "rate_out", *LATER_RATES)


@dataclass(frozen=True)
class RoleGeneration:
    """Decoding settings of an action; None is that of its model. See `Generation`."""

    __pydantic_config__ = FORBID_EXTRA_KEYS

    max_new_tokens: MaxNewTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Seed | None = None
    repetition_penalty: RepetitionPenalty | None = None


@dataclass(frozen=True)
class Role:
    """An entry of `[[actions]]`: a model with an instruction, and where it is offered.

    Attributes:
        name: of the action, in routes and tables, such as `plan@qwen`.
        model: name of its model in the pool.
        instruction: follows the context in the prompt; None is the pool's stage instruction of the
            hop.
        at: the hops at which it is offered, counted from 1; None is all of them.
        after: names of the actions after which it is offered, and `START` for the question before
            any call; empty is `START` alone; None is the question and all actions.
        generation: decoding settings that replace those of the model.
        effort: see `Generation`.
        extra_body: see `Generation`.
        base_rate: as in `ModelSpec`, as all further rates; None is that of the model.
    """

    __pydantic_config__ = FORBID_EXTRA_KEYS

    name: Text
    model: Annotated[str, FieldCheck(_require_one_model, before=True)]
    instruction: Annotated[str, FieldCheck(_require_instruction)] | None = None
    at: Annotated[tuple[int, ...], FieldCheck(_require_hops)] | None = None
    after: tuple[str, ...] | None = None
    generation: RoleGeneration = field(default_factory=RoleGeneration)
    effort: Text | None = None
    extra_body: ExtraBody = ""
    base_rate: TokenRate | None = None
    rate_in: TokenRate | None = None
    rate_out: TokenRate | None = None
    rate_cached: TokenRate | None = None
    rate_thoughts: TokenRate | None = None
    rate_call: TokenRate | None = None
    rate_batch: Annotated[float, must_be("above 0 and at most 1", lambda f: 0 < f <= 1)] | None = (
        None
    )

    def __post_init__(self) -> None:
        # JSON has lists; a frozen class with lists could not be hashed.
        for name in ("at", "after"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def rates(self) -> dict[str, float]:
        """The action's own rates, by field; empty if it has those of its model."""
        rates = {name: getattr(self, name) for name in RATE_FIELDS}
        return {name: rate for name, rate in rates.items() if rate is not None}

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of `Generation` that the action replaces."""
        settings = {**asdict(self.generation), "effort": self.effort, "extra_body": self.extra_body}
        return {name: value for name, value in settings.items() if value not in (None, "")}

    def follows(self, previous: str) -> bool:
        """Whether the action is offered after an action; `START` is the question."""
        return self.after is None or previous in (self.after or (START,))

    def spec(self, model: ModelSpec) -> ModelSpec:
        """The model with the settings and the price of the action.

        Args:
            model: of the pool.
        """
        rates: dict[str, float | None] = dict(self.rates)
        if "base_rate" in rates or "rate_in" in rates or "rate_out" in rates:
            rates = {**dict.fromkeys(("base_rate", "rate_in", "rate_out")), **rates}
        changes: dict[str, Any] = dict(rates)
        if self.settings:
            changes["generation"] = replace(model.generation, **self.settings)
        return replace(model, **changes) if changes else model


@dataclass(frozen=True)
class Action:
    """What a router may choose at a hop: a model with an instruction and settings.

    In a pool without roles each model is an action of its name.

    Attributes:
        name: of the action.
        model: the model, with the settings and the price of the action. Its name is the model's.
        instruction: follows the context in the prompt; None is the pool's stage instruction.
        role: the entry of the pool; None if the pool has no roles.
    """

    name: str
    model: ModelSpec
    instruction: str | None = None
    role: Role | None = None

    def price_on(self, replaced: Price, own: Price, pool: Pool) -> Price:
        """The price of a token if its model gets another price.

        Args:
            replaced: the new price of a token of the model.
            own: the price of a token of the action in its pool.
            pool: has the unit of the action's own rates.

        Returns:
            The new price of the model, with the rates that the action has for itself in place of
            those of the model. It is `own` if the action has rates for all plain tokens, or amounts
            in another currency, which nobody could add.
        """
        rates = self.role.rates if self.role else {}
        if "base_rate" in rates or "rate_in" in rates:
            return own
        has_amounts = bool(rates.keys() - {"rate_batch"})
        if has_amounts and (replaced.currency or pool.currency) != pool.currency:
            return own
        count = pool.per_tokens or 1
        rate = replaced.rate
        if "rate_cached" in rates:
            rate = replace(rate, cached=rates["rate_cached"] / count)
        if "rate_thoughts" in rates:
            rate = replace(rate, thoughts=rates["rate_thoughts"] / count)
        rate = replace(rate, call=rates.get("rate_call", rate.call))
        return replace(replaced, rate=rate.times(rates.get("rate_batch", 1.0)))


# The actions that are offered: by level, from 0, and the number of the action before, plus 1.
Offers = tuple[tuple[tuple[int, ...], ...], ...]


@lru_cache(maxsize=32)
def _layout(offers: Offers, draws: tuple[int, ...]) -> Layout:
    """The layout of these offers.

    Args:
        offers: at each level.
        draws: of a call of each action.
    """
    actions = tuple(range(len(draws)))
    is_complete = all(offered == actions for level in offers for offered in level)
    if is_complete and set(draws) == {1}:
        return Layout.full(len(draws), len(offers))

    def offered(path: tuple[int, ...]) -> tuple[int, ...]:
        if len(path) == len(offers):
            return ()
        return offers[len(path)][path[-1] + 1 if path else 0]

    return Layout.grown(len(draws), offered, draws.__getitem__)


@dataclass(frozen=True)
class Pool:
    """M candidate models, L hops, the stage instructions, and larger models to compare with.

    Attributes:
        models: the candidates. Without roles, action a calls `models[a]`.
        hops: L, the largest number of calls of a route.
        stage_prompts: instruction of each stage; the last one is used for all later stages.
        references: models outside the pool, which are only called directly.
        context_free: whether later hops are independent responses that saw no earlier one, as
            imported from a table of single calls.
        draws: responses of each call at a temperature above 0, at most; greedy decoding has one.
        least_draws: responses that each of these calls has at least: which of them have more is
            decided as answers come, see `hierrouter.collection.adaptive`. None if all have `draws`.
        per_tokens: the number of tokens that the rates are the price of; None is one, see
            `unit_note`.
        currency: of the rates.
        encoder: the encoder that a router reads texts with, a name of `load_encoder`; None is
            `default_encoder`.
        thoughts: what r_t is for a response with a thought: "keep" is the complete response, as in
            the paper, "drop" what follows the thought. It is what the next call, `token_f1` and
            routers read, see `hierrouter.engines.generator.visible_text`.
        scorer: what Q is of the questions that the pool was collected for, unless the user names
            another scorer; None is that of the paper. No pool file has it.
        as_stored: whether the routes are those that an imported log has, which a cache knows, and
            not each model at each hop; see `hierrouter_cache.walk.stored_layout`. No pool file has
            it.
        roles: entries of `[[actions]]`: the actions and where they are offered. Empty if each model
            is an action that is offered at each hop, as in the paper.
    """

    __pydantic_config__ = FORBID_EXTRA_KEYS

    models: tuple[ModelSpec, ...] = ()
    hops: Annotated[
        int, must_be(f"at least 1 and at most {MAX_HOPS}", lambda hops: 1 <= hops <= MAX_HOPS)
    ] = 2
    stage_prompts: tuple[str, ...] = ("",)
    references: tuple[ModelSpec, ...] = ()
    context_free: bool = False
    draws: Draws = 1
    per_tokens: PerTokens | None = None
    currency: Currency = DEFAULT_CURRENCY
    encoder: Annotated[Text, FieldCheck(_refuse_server)] | None = None
    thoughts: Thoughts = KEEP_THOUGHTS
    scorer: FittingScorer | None = None
    as_stored: bool = False
    roles: tuple[Role, ...] = ()
    least_draws: Draws | None = None

    @property
    def actions(self) -> tuple[Action, ...]:
        """What may be called at the hops of the tree, in the order of the tree's actions."""
        if not self.roles:
            return tuple(Action(model.name, model) for model in self.models)
        models = {model.name: model for model in self.models}
        return tuple(
            Action(role.name, role.spec(models[role.model]), role.instruction, role)
            for role in self.roles
        )

    @cached_property
    def offers(self) -> Offers:
        """Which actions are offered: `offers[level][number of the action before + 1]`.

        Position 0 is the question before any call. Levels count from 0. Nothing is offered after an
        action that the level before does not offer.
        """
        if not self.roles:
            all_actions = tuple(range(len(self.models)))
            return ((all_actions,) * (len(self.models) + 1),) * self.hops
        names = [START, *(role.name for role in self.roles)]
        offers = []
        reached = {START}
        for level in range(self.hops):
            at_level = [
                number
                for number, role in enumerate(self.roles)
                if role.at is None or level + 1 in role.at
            ]
            by_previous = []
            for previous in names:
                follows = previous in reached
                offered = [
                    number
                    for number in at_level
                    if follows and self.roles[number].follows(previous)
                ]
                by_previous.append(tuple(offered))
            offers.append(tuple(by_previous))
            reached = {names[number + 1] for offered in by_previous for number in offered}
        return tuple(offers)

    def offered(self, level: int) -> frozenset[int]:
        """The numbers of the actions that are offered anywhere at a level, counted from 0."""
        return frozenset(number for offered in self.offers[level] for number in offered)

    @property
    def layout(self) -> Layout:
        """The routes of the tree; if they are those of a log, the first calls only."""
        if self.as_stored:
            return Layout.full(len(self.models), 1)
        counts = tuple(self.draws_of(action.model) for action in self.actions)
        return _layout(self.offers, counts)

    @property
    def calls(self) -> int:
        """Calls of one query's tree; counted without making the layout, which may be huge."""
        counts = [self.draws_of(action.model) for action in self.actions]
        total = 0
        nodes = {0: 1}  # nodes of a level by the number of the action before, plus 1
        for level in self.offers:
            following: dict[int, int] = {}
            for previous, count in nodes.items():
                for number in level[previous]:
                    further = count * counts[number]
                    following[number + 1] = following.get(number + 1, 0) + further
            nodes = following
            total += sum(nodes.values())
        return total

    def draws_of(self, model: ModelSpec) -> int:
        """The largest number of responses of a call of a model."""
        return self.draws if model.generation.temperature else 1

    @property
    def direct_calls(self) -> int:
        """Direct calls of one query: each model's, with the draws that all of them have."""
        return sum(map(self.with_least_draws.draws_of, self.all_models))

    @property
    def with_least_draws(self) -> Pool:
        """The pool where each call has only the draws that all of them have."""
        return replace(self, draws=self.least_draws or self.draws, least_draws=None)

    @property
    def with_most_draws(self) -> Pool:
        """The pool where each call has as many draws as any may have."""
        return replace(self, least_draws=None)

    @property
    def calls_per_query(self) -> int:
        """Calls of one query: the nodes of its tree, and the direct calls; with the least draws."""
        return self.with_least_draws.layout.calls + self.direct_calls

    @property
    def all_models(self) -> tuple[ModelSpec, ...]:
        """Candidates and references, in the order of the direct calls."""
        return self.models + self.references

    def instruction(self, level: int, action: Action | None = None) -> str:
        """The instruction of an action at a level of the tree.

        Args:
            level: counted from 0.
            action: has perhaps an instruction of its own; None is the pool's stage instruction.
        """
        if action and action.instruction is not None:
            return action.instruction
        return self.stage_prompts[min(level, len(self.stage_prompts) - 1)]

    @property
    def thought_tags(self) -> dict[str, ThoughtTags]:
        """The `thought_tags` of each model and action that has some, by name."""
        tags = {model.name: model.thought_tags for model in self.all_models}
        tags |= {action.name: action.model.thought_tags for action in self.actions}
        return {name: pairs for name, pairs in tags.items() if pairs}

    def own_generation(self, action: Action) -> Generation | None:
        """The decoding settings of an action; None if they are those of its model."""
        models = {model.name: model for model in self.models}
        generation = action.model.generation
        return None if generation == models[action.model.name].generation else generation

    def tree_spec(self, identities: Mapping[str, Identity]) -> TreeSpec:
        """The content keys of all steps.

        Args:
            identities: of each model, by name, and of actions that are not answered as their models
                are, see `hierrouter.engines.identify_pool`.
        """

        def key(model: ModelSpec, instruction: str, name: str = "") -> str:
            settings: dict[str, Any] = {**model.generation.settings}
            # What follows a call is another context without its thought. Keys of a pool that keeps
            # thoughts are those from before there was this setting.
            if self.thoughts != KEEP_THOUGHTS:
                settings["thoughts"] = self.thoughts
                settings["thought_tags"] = model.thought_tags
            identity = identities.get(name) or identities[model.name]
            return step_key(identity, settings, instruction)

        actions = self.actions
        steps = []
        for level in range(self.hops):
            offered = self.offered(level)
            steps.append(
                tuple(
                    key(action.model, self.instruction(level, action), action.name)
                    if number in offered
                    else ""
                    for number, action in enumerate(actions)
                )
            )
        return TreeSpec(
            models=tuple(action.name for action in actions),
            steps=tuple(steps),
            # In a log the calls on the question alone are the first ones of its routes.
            direct=tuple(
                (model.name, draw_step(key(model, ""), draw))
                for model in (() if self.as_stored else self.all_models)
                for draw in range(self.with_least_draws.draws_of(model))
            ),
            layout=self.layout,
            callers=tuple(action.model.name for action in actions),
            least_draws=self.least_draws or 0,
        )

    def rates(self) -> dict[str, Rate]:
        """The rate of a token of every model and action, references included, by name."""
        return rates_of(self.prices())

    def prices(self) -> dict[str, Price]:
        """The price of a token of every model and action, references included, by name.

        Raises:
            InputError: a model has neither a rate nor a number of parameters.
        """
        callers = {model.name: model for model in self.all_models}
        callers |= {action.name: action.model for action in self.actions}
        return {name: model.price().of_a_token(self.per_tokens) for name, model in callers.items()}

    def unit_note(self) -> str | None:
        """A note that the pool does not name the unit of its rates; None if it does."""
        if self.per_tokens is not None:
            return None
        return "the pool has no per_tokens: its rates are read per token; see [pool] per_tokens"

    @property
    def imported(self) -> bool:
        """Whether responses of it were imported, so that its models cannot be called."""
        return any(model.backend == IMPORTED for model in self.all_models)

    def sub_pool(
        self, models: Sequence[str] | None, hops: int | None, without: Sequence[str] = ()
    ) -> Pool:
        """A pool with fewer models or fewer hops.

        Args:
            models: names of the candidates to keep, in their new order; None keeps all.
                References are kept.
            hops: new number of hops; None keeps it.
            without: names of candidates and references to leave out.

        Raises:
            InputError: a model is not in the pool or named twice, no candidate is left, or more
                hops than the pool has.
        """
        names = [action.name for action in self.actions]
        _require_members(models or (), names)
        all_names = dict.fromkeys([*names, *(model.name for model in self.all_models)])
        _require_members(without, list(all_names))
        if models is not None:
            require_distinct(list(models), "--models")
        if hops is not None and not 1 <= hops <= self.hops:
            raise InputError(f"hops must be 1 to {self.hops}, as collected, got {hops}: --hops")
        kept_names = [name for name in (names if models is None else models) if name not in without]
        references = tuple(model for model in self.references if model.name not in without)
        if not self.roles:
            by_name = {model.name: model for model in self.models}
            kept = tuple(by_name[name] for name in kept_names)
            pool = replace(self, models=kept, references=references, hops=hops or self.hops)
        else:
            roles = {role.name: role for role in self.roles}
            pool = replace(
                self,
                roles=tuple(roles[name] for name in kept_names if roles[name].model not in without),
                references=references,
                hops=hops or self.hops,
            )._without_unreachable(models or ())
        if not pool.actions:
            raise InputError(f"no model is left: --without {','.join(without)}; leave out fewer")
        return pool

    def direct_pool(self, models: Sequence[str] | None, without: Sequence[str] = ()) -> Pool:
        """A pool with the direct calls of some models: one hop, without roles, with one draw.

        Args:
            models: names of the candidates to keep, in their new order, without references; None
                keeps all, and the references.
            without: names of models and references to leave out.

        Raises:
            InputError: a model is not in the pool or named twice, or none is left.
        """
        # Every model is called directly, wherever its actions are offered.
        plain = replace(self, roles=(), draws=1, least_draws=None)
        names = {role.name for role in self.roles}.difference(model.name for model in self.models)
        for name in (*(models or ()), *without):
            if name in names:
                [role] = [role for role in self.roles if role.name == name]
                raise InputError(
                    f"{name} is an action, and a direct call is one of a model: "
                    f"name its model, {role.model}"
                )
        pool = plain.sub_pool(models, 1, without)
        return pool if models is None else replace(pool, references=())

    def _without_unreachable(self, names: Sequence[str]) -> Pool:
        """The pool without actions that no route reaches, and without models that none calls.

        Args:
            names: of actions that must be reached.

        Raises:
            InputError: one of them is not reached.
        """
        reached = set().union(*map(self.offered, range(self.hops)))
        for number, role in enumerate(self.roles):
            if number not in reached and role.name in names:
                raise InputError(
                    f"action {role.name} is not offered after the others: "
                    f"--models {','.join(names)}; name one that it follows, too"
                )
        roles = tuple(role for number, role in enumerate(self.roles) if number in reached)
        called = {role.model for role in roles}
        models = tuple(model for model in self.models if model.name in called)
        hops = max([level + 1 for level in range(self.hops) if self.offered(level)], default=1)
        return replace(self, roles=roles, models=models, hops=hops)

    def to_json(
        self,
        identities: Mapping[str, Identity],
        datasets: Mapping[str, str] | None = None,
        imported: Mapping[str, str] | None = None,
    ) -> str:
        """The pool and the identities of its models, as stored with a plan.

        Args:
            identities: of the models and actions, see `tree_spec`.
            datasets: commits of the hub's repositories that the plan's queries are from, by id.
            imported: what was decided when the answers were imported, see `stored_import`.
        """
        values = asdict(self)
        for model in (*values["models"], *values["references"]):
            if model["endpoint"]:
                del model["endpoint"]["public_only"]
            # A plan without further rates is the same as one from before these could be given.
            for name in LATER_RATES:
                if model[name] is None:
                    del model[name]
            # A plan without a setting is the same as one from before there was this setting.
            generation = model["generation"]
            if generation["repetition_penalty"] == NO_PENALTY:
                del generation["repetition_penalty"]
            for name in LATER_SETTINGS:
                if not generation[name]:
                    del generation[name]
            if not model["thought_tags"]:
                del model["thought_tags"]
        if values["thoughts"] == KEEP_THOUGHTS:
            del values["thoughts"]
        if values["scorer"] is None:
            del values["scorer"]
        if values["draws"] == 1:
            del values["draws"]
        if values["least_draws"] is None:
            del values["least_draws"]
        if not values["as_stored"]:
            del values["as_stored"]
        if not values["roles"]:
            del values["roles"]
        value = {"pool": values, "identities": dict(identities)}
        if datasets:
            value["datasets"] = dict(datasets)
        if imported:
            value["import"] = dict(imported)
        return json.dumps(value, sort_keys=True)


def _require_members(names: Sequence[str], members: Sequence[str]) -> None:
    for name in names:
        if name not in members:
            raise InputError(f"unknown model: {name}; {suggestion(name, members)}".rstrip("; "))


def restrict_hosts(pool: Pool, allowed: Collection[str] | None, where: str) -> Pool:
    """Restrict a stored pool to public servers and the hosts that the user allows.

    A stored pool may come from others. It must not reach this machine or a private network.

    Args:
        pool: as stored.
        allowed: host names or addresses; None allows all.
        where: names the pool in messages.

    Returns:
        the pool, with `public_only` for models that call a host which is not in `allowed`.

    Raises:
        InputError: a model is on this machine or on a private network, and not allowed.
    """

    def restrict(model: ModelSpec) -> ModelSpec:
        endpoint = model.endpoint
        if endpoint is None or not endpoint.base_url:
            return model
        if allowed is None:
            return replace(model, endpoint=replace(endpoint, public_only=False))
        public_only = False
        for url in endpoint.servers:
            host = urlsplit(url).hostname or ""
            if host in allowed:
                continue
            public_only = True
            address = _ip_address(host)
            if host == "localhost" or (address and not address.is_global):
                raise InputError(
                    f"{where} would call {replace(endpoint, base_url=url).address}, on this "
                    f"machine or a private network; give --allow-endpoint {host}, or --pool"
                )
        return replace(model, endpoint=replace(endpoint, public_only=public_only))

    return with_each_model(pool, restrict)


def with_each_model(pool: Pool, change: Callable[[ModelSpec], ModelSpec]) -> Pool:
    """The pool with a change made to each candidate and reference."""
    return replace(
        pool,
        models=tuple(change(model) for model in pool.models),
        references=tuple(change(model) for model in pool.references),
    )


def require_distinct(names: Sequence[str], where: str) -> None:
    """Refuse a name that occurs twice.

    Args:
        names: of models.
        where: names the list in the message.

    Raises:
        InputError: with the name.
    """
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"duplicate model {name}: {where}; names must differ")


VARIABLE_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VISIBLE_PATTERN = re.compile(r"[!-~]+")  # characters that HTTP headers and addresses may have


def read_api_key(variable: str, where: str) -> str:
    """Read an API key from the environment.

    Args:
        variable: name of the environment variable.
        where: names the setting in messages.

    Raises:
        InputError: not a name of a variable, the variable is not set, or its value cannot be sent
            in a header.
    """
    validate(Variable, variable, where, "api_key_env")
    value = os.environ.get(variable, "").strip()
    if not value:
        raise InputError(f"{variable} is not set: {where}; it must hold the API key")
    if not VISIBLE_PATTERN.fullmatch(value):
        raise InputError(f"{variable} holds characters that no key has: {where}; set it again")
    return value


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine."""
    address = _ip_address(host)
    # Names such as x.localhost do not count: some machines ask a name server for them.
    return address.is_loopback if address else host == "localhost"


def _ip_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


# Prices.

PRICE_NAMES = ("in", "out", "cached", "thoughts", "call")  # of `Rate`, as people write them
POOL_PRICES = "pool"  # source of a price, and name of the list of prices of a pool
SIZE_PRICES = "size"
# The paper's rates (appendix B) for its models of 3, 8 and 14 billion parameters. Its model of 1.5
# billion has 0.002 there instead of 0.0015.
RATE_PER_BILLION = 0.001
SIZE_UNITS = {"b": 1e9, "m": 1e6}
# A size in a name is between delimiters: `-3B-`, `_7b`, `-8x7B`; `v0.1b2` has none.
SIZE_PATTERN = re.compile(
    r"(?<![A-Za-z0-9.])(?:(\d{1,9})x)?(\d{1,9}(?:\.\d+)?)([bm])(?![A-Za-z0-9])", re.IGNORECASE
)


@dataclass(frozen=True)
class Price:
    """The rate of one model, and the source of that rate.

    Attributes:
        rate: cost of `per_tokens` tokens; that of a call is of one call.
        source: "pool", "price file NAME", "--price", or "size (3B)".
        per_tokens: None is that of the pool; if that is divided out already, one token.
        currency: None is that of the pool.
    """

    rate: Rate
    source: str
    per_tokens: int | None = None
    currency: str | None = None

    def of_a_token(self, per_tokens: int | None) -> Price:
        """The price of one token.

        Args:
            per_tokens: the number of tokens of a price that names none; None is one.
        """
        count = self.per_tokens or per_tokens or 1
        rate = self.rate
        token_rate = Rate(
            rate.tokens_in / count,
            rate.tokens_out / count,
            None if rate.cached is None else rate.cached / count,
            None if rate.thoughts is None else rate.thoughts / count,
            rate.call,
        )
        return replace(self, rate=token_rate, per_tokens=None)


def size_in_name(name: str) -> float | None:
    """The number of parameters that the name of a model states.

    Returns:
        3e9 for `x-3B-Instruct`, 56e9 for `8x7B`, 350e6 for `350M`; the first of several sizes; None
        if the name states none.
    """
    match = SIZE_PATTERN.search(name)
    if not match:
        return None
    experts, number, unit = match.groups()
    return int(experts or 1) * float(number) * SIZE_UNITS[unit.lower()] or None


def price_by_size(parameters: float) -> Price:
    """The heuristic price of a model: 0.001 for each billion parameters.

    It is the price of the pool's `per_tokens` tokens; in the paper they are 1,000.

    Args:
        parameters: number of parameters.

    Source: paper, section 3.1.
    """
    rate = float(f"{RATE_PER_BILLION * parameters / SIZE_UNITS['b']:.12g}")  # 0.003, not 0.0030…01
    unit = "b" if parameters >= SIZE_UNITS["b"] else "m"
    size = f"{parameters / SIZE_UNITS[unit]:.4g}{unit.upper()}"
    return Price(Rate.base(rate), f"{SIZE_PRICES} ({size})")


def guessed_prices_note(tree: RouteTree) -> str | None:
    """A note that names the models whose price comes from their size; None if there are none."""
    guessed = []
    for name, (price, *_) in _rates_of_tree(tree).items():
        source = tree.priced_by.get(name, "")
        if source.startswith(SIZE_PRICES):
            guessed.append(f"price of {name} unknown: {price:g} per token by its {source}")
    return f"{', '.join(guessed)}; give base_rate or --price" if guessed else None


def price_table(tree: RouteTree) -> dict[str, dict[str, Any]]:
    """The rates of every model of a tree, per token, and their sources, as JSON values."""
    return {
        # Three more where a model of the tree has further prices.
        name: {
            **dict(zip(PRICE_NAMES, rate, strict=False)),
            "source": tree.priced_by.get(name, POOL_PRICES),
        }
        for name, rate in _rates_of_tree(tree).items()
    }


def _rates_of_tree(tree: RouteTree) -> dict[str, list[float]]:
    """The prices of every model of a tree, those that are called directly included, by name."""
    rates = dict(zip(tree.models, tree.rate.tolist(), strict=True))
    return rates | dict(zip(tree.direct.models, tree.direct.rate.tolist(), strict=True))


def rates_of(prices: Mapping[str, Price]) -> dict[str, Rate]:
    """The rates of prices, by model."""
    return {name: price.rate for name, price in prices.items()}
