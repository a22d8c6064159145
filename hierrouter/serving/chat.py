"""Chat completions as OpenAI has them: requests, model names, answers, chunks and errors."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hierrouter.engines.generator import CallOptions, Confidence
from hierrouter.learning.training import TrainedRouter
from hierrouter.questions.query import storable
from hierrouter.serving.decisions import Decision, LivePolicy
from hierrouter.serving.messages import Unroutable, asked_of
from hierrouter.serving.router import Answered, RouteResult
from hierrouter_cache.errors import InputError, suggestion

BASE = "hierrouter"
# What no route can give; nobody shall believe that it was heeded.
REFUSED = ("functions", "function_call", "logprobs", "top_logprobs", "audio", "modalities")
# What only some models take: `hierrouter.pools.pool.Ability`, and what belongs to it.
TOOLS, FORMAT = "tools", "response_format"
OF_TOOLS = ("tool_choice", "parallel_tool_calls")
# Of all these, what asks for nothing.
HARMLESS: tuple[Any, ...] = (False, [], {}, "none", "auto", ["text"], {"type": "text"})
DECODING = ("temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed")
SILENT = ("user", "metadata", "store")  # name the client, and change no answer
NAMED, NAME_LENGTH = 20, 40  # of ignored settings, in a header


class UnknownModel(InputError):
    """A client asked for a model that is not served."""


@dataclass(frozen=True)
class ModelNames:
    """The models that clients may ask for.

    Attributes:
        alphas: of each name that is listed; None is the policy's own.
        any_alpha: whether `hierrouter@X` takes any X.
    """

    alphas: Mapping[str, float | None]
    any_alpha: bool

    @classmethod
    def of(cls, policy: LivePolicy, alpha: float | None = None) -> ModelNames:
        """The names of a policy; one for every alpha has `cheap`, `balanced` and `best`, too.

        Raises InputError: an alpha that the policy does not answer.

        `alpha`: of the plain name; None is the policy's own.
        """
        policy.at(alpha)
        if not policy.any_alpha:
            return cls({BASE: alpha}, any_alpha=False)
        grid = policy.alphas
        short = {"best": grid[0], "balanced": grid[len(grid) // 2], "cheap": grid[-1]}
        alphas = {f"{BASE}:{name}": value for name, value in short.items()}
        return cls({BASE: alpha, **alphas}, any_alpha=True)

    def alpha(self, name: str) -> float | None:
        """The alpha that a name asks for; None is the policy's own.

        Raises UnknownModel: there is no such name.
        """
        if name in self.alphas:
            return self.alphas[name]
        base, _, text = name.partition("@")
        if base == BASE and text and self.any_alpha:
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if math.isfinite(value) and value >= 0:
                return value
        hint = suggestion(name[:80], self.alphas).rstrip("; ")
        more = f"; any alpha as {BASE}@ALPHA" if self.any_alpha else ""
        raise UnknownModel(f"model not found: {name[:80]!r}; {hint}{more}")


class StreamOptions(BaseModel):
    """How a stream ends."""

    include_usage: bool = False


class Extension(BaseModel):
    """What OpenAI's request has no word for."""

    model_config = ConfigDict(extra="forbid")
    alpha: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class ChatRequest(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="allow")
    model: str = BASE
    messages: list[dict[str, Any]]
    stream: bool = Field(default=False, strict=True)
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=128)
    temperature: float | None = Field(default=None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    hierrouter: Extension = Extension()

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, found: Any) -> Any:
        """Null is as if the key were not there."""
        if not isinstance(found, dict):
            return found
        return {name: value for name, value in found.items() if value is not None}

    def asked(self) -> tuple[str, CallOptions]:
        """The question as models see it, and what the answer to it is to heed.

        Raises InputError: see `question_of`; Unroutable: it asks for what no route can give.
        """
        if self.n > 1:
            raise Unroutable(f"n: {self.n} answers; a route gives one")
        extra = self.model_extra or {}
        for name in REFUSED:
            if name in extra and not _asks_for_nothing(extra[name]):
                raise Unroutable(f"{name} is not supported; the models of a pool answer in text")
        question, images = asked_of(self.messages)
        left_out = {*REFUSED, *SILENT}
        if _asks_for_nothing(extra.get(TOOLS, [])) or extra.get("tool_choice") == "none":
            left_out |= {TOOLS, *OF_TOOLS}
        if _asks_for_nothing(extra.get(FORMAT, {})):
            left_out.add(FORMAT)
        settings = {name: value for name, value in extra.items() if name not in left_out}
        for name in DECODING:
            if (value := getattr(self, name)) is not None:
                settings[name] = value
        return question, CallOptions(settings, tuple(images))

    def forwarded(self) -> dict[str, Any]:
        """The body for another server, without what is ours."""
        return self.model_dump(exclude={"hierrouter", "model"}, exclude_unset=True)


def listed(names: Iterable[str]) -> str:
    """Names of settings, for a header."""
    return ", ".join(quote(name[:NAME_LENGTH]) for name in sorted(names)[:NAMED])


class Said(BaseModel):
    """An answer that the client has got on the route so far."""

    model_config = ConfigDict(extra="forbid")
    model: str
    content: str
    tokens_in: int = Field(ge=0, strict=True)
    tokens_out: int = Field(ge=0, strict=True)
    finish_reason: Literal["stop", "length"] = "stop"
    logprobs: list[float] | None = None

    @property
    def answered(self) -> Answered:
        """As the router takes it."""
        has_end = self.finish_reason == "stop"
        return Answered(
            model=self.model,
            response=self.content,
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
            finish_reason=self.finish_reason,
            confidence=Confidence.of(self.logprobs or [], self.tokens_out, has_end),
        )


class DecideRequest(BaseModel):
    """Where a question stands: what a client asks to be told before it makes the next call."""

    model_config = ConfigDict(extra="forbid")
    model: str = BASE
    messages: list[dict[str, Any]]
    answers: list[Said] = []
    hierrouter: Extension = Extension()


def decision_object(
    decision: Decision, trained: TrainedRouter, messages: list[dict[str, str]], left: int
) -> dict[str, Any]:
    """What to do next, as a client reads it.

    `decision`: of the policy; `trained`: who made it; `messages`: for the model that is called;
    `left`: how many decisions may come after this one.
    """
    actions, models = trained.actions, trained.origin.models
    names, action = actions.names(models), decision.action
    calls = action < actions.calls or bool(decision.hands_to)
    called = decision.hands_to or models[action % len(models)]
    found: dict[str, Any] = {
        "object": "hierrouter.decision",
        "alpha": trained.alpha,
        "call": called if calls else None,
        "last": not left or action >= len(models) or bool(decision.hands_to),
        "deferred": bool(decision.hands_to),
        "return": None if calls else action - actions.calls + 1,
        "chances": dict(zip(names, decision.chances.tolist(), strict=True)),
        "expected": None,
        "messages": messages if calls else [],
        "router_s": round(decision.router_s, 6),
    }
    if decision.expected is not None:
        found["expected"] = {
            name: {"quality": quality, "cost": cost}
            for name, (quality, cost) in zip(names, decision.expected.tolist(), strict=True)
            if not math.isnan(quality)
        }
    return found


def _asks_for_nothing(value: Any) -> bool:
    """Whether a setting with this value is as if it were not there; 0 is not False."""
    return any(type(value) is type(harmless) and value == harmless for harmless in HARMLESS)


def completion(name: str, model: str, result: RouteResult) -> dict[str, Any]:
    """The whole answer.

    `name`: id of the completion; `model`: name that the client asked for.
    """
    message: dict[str, Any] = {"role": "assistant", "content": result.answer}
    if calls := result.given.tool_calls:
        message |= {"content": result.answer or None, "tool_calls": list(calls)}
    choice = {"index": 0, "message": message, "finish_reason": _reason(result), "logprobs": None}
    return {
        **_named(name, model, "chat.completion"),
        "choices": [choice],
        "usage": _usage(result),
        "hierrouter": _extension(result),
    }


def chunk(
    name: str, model: str, delta: dict[str, Any], reason: str | None = None
) -> dict[str, Any]:
    """One chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
    return {**_named(name, model, "chat.completion.chunk"), "choices": [choice]}


def last_chunks(
    name: str, model: str, result: RouteResult, include_usage: bool
) -> Iterator[dict[str, Any]]:
    """The end of a stream: the calls of tools, the reason and the route; usage if asked for."""
    if calls := result.given.tool_calls:
        numbered = [{**call, "index": at} for at, call in enumerate(calls)]
        yield chunk(name, model, {"tool_calls": numbered})
    last = chunk(name, model, {}, _reason(result))
    yield last | {"hierrouter": _extension(result)}
    if include_usage:
        named = _named(name, model, "chat.completion.chunk")
        yield {**named, "choices": [], "usage": _usage(result)}


def _reason(result: RouteResult) -> str:
    return "tool_calls" if result.given.tool_calls else result.given.finish_reason


def _usage(result: RouteResult) -> dict[str, int]:
    return {
        "prompt_tokens": result.tokens_in,
        "completion_tokens": result.tokens_out,
        "total_tokens": result.tokens_in + result.tokens_out,
    }


def _extension(result: RouteResult) -> dict[str, Any]:
    """Route, cost and calls; the answers of earlier hops are the log's."""
    found = result.as_object()
    hidden = ("question", "answer", "steps", "tokens_in", "tokens_out", "finish_reason")
    steps = [
        {key: value for key, value in step.items() if key != "response"} for step in found["steps"]
    ]
    return {key: value for key, value in found.items() if key not in hidden} | {"steps": steps}


def _named(name: str, model: str, kind: str) -> dict[str, Any]:
    return {"id": name, "object": kind, "created": int(time.time()), "model": model}


def error_object(
    message: str, kind: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """The object that a client reads.

    `message`: what is wrong; `kind`, `code`, `param`: as OpenAI's, where there is one.
    """
    return {
        "error": {
            "message": " ".join(storable(message).split()),
            "type": kind,
            "param": param,
            "code": code,
        }
    }
