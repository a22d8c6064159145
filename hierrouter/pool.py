"""The pool: which models may be called, and how.

Plain values, and what follows from them: content keys, prices, the JSON that is stored with a plan.
Not covered: reading and checking a pool that a person wrote (`hierrouter.pool_file`), loading a
model (`hierrouter.collect.backends`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hierrouter.endpoint import OPENAI, Endpoint
from hierrouter.pricing import (
    POOL,
    Price,
    price_by_size,
    rates_of,
    size_in,
)
from hierrouter_cache.errors import InputError
from hierrouter_cache.fingerprint import step_key
from hierrouter_cache.pricing import Rate
from hierrouter_cache.routes import Routes
from hierrouter_cache.walk import TreeSpec

MAX_NODES = 10_000
MAX_HOPS = 20
# What a report calls its own policies, and the end of a route of fewer calls, `first>stop`.
RESERVED = ("hierrouter", "oracle", "random", "stop")
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
        device: auto, cpu, cuda, cuda:N, or balanced over all GPUs; for local engines.
        batching: static or continuous; for local engines.
        endpoint: the server that answers, for backend "openai".
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
    device: str = "auto"
    batching: str = "static"
    endpoint: Endpoint | None = None

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


def keys_sent(models: Iterable[ModelSpec]) -> Iterator[tuple[str, str]]:
    """(variable, address) of each model whose server is sent a key from the environment.

    A pool that was stored may come from others: it must not decide which secret goes where.
    """
    for model in models:
        if model.backend == OPENAI and model.endpoint and model.endpoint.api_key_env:
            yield model.endpoint.api_key_env, model.endpoint.address


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
            require_distinct(list(models), "--models")
            chosen = tuple(self.models[names.index(name)] for name in models)
        if hops is not None and not 1 <= hops <= self.hops:
            raise InputError(f"hops must be 1 to {self.hops}, as collected, got {hops}: --hops")
        return replace(self, models=chosen, hops=hops or self.hops)

    def to_json(self, identities: Mapping[str, Identity]) -> str:
        """The pool and what its models resolved to, as stored with a plan."""
        return json.dumps({"pool": asdict(self), "identities": dict(identities)}, sort_keys=True)


def pool_from_json(text: str) -> tuple[Pool, dict[str, Identity]]:
    """The inverse of `Pool.to_json`; a plan of others is for `pool_file.stored_pool`."""
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


def suggestion(word: str, known: Iterable[str]) -> str:
    """`did you mean x? ` where something known is close, else `known: a, b; `."""
    candidates = list(known)
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    return f"did you mean {close[0]}? " if close else f"known: {', '.join(candidates)}; "


def require_distinct(names: Sequence[str], where: str) -> None:
    """Refuse a name that stands twice; `where` says in the message where.

    Raises:
        InputError: with the name.
    """
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"duplicate model {name}: {where}; names must differ")


def _stored_model(raw: Mapping[str, Any]) -> ModelSpec:
    """A plan of an earlier version lacks the fields that came later."""
    endpoint = raw.get("endpoint")
    return ModelSpec(
        **{
            **raw,
            "generation": Generation(**raw["generation"]),
            "endpoint": None if endpoint is None else Endpoint(**endpoint),
        }
    )
