"""Chat completions as OpenAI has them: requests, model names, answers, chunks and errors."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hierrouter.engines.bills import MAX_TOKEN_COUNT
from hierrouter.engines.generator import CallOptions, Confidence, Response
from hierrouter.learning.router import TrainedRouter
from hierrouter.questions.query import MAX_GROUP_NAME
from hierrouter.serving.decisions import Decision, LivePolicy
from hierrouter.serving.messages import Unroutable, group_in_header, text_and_images
from hierrouter.serving.results import Call, RouteResult
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import sound_text, sound_values

BASE_NAME = "hierrouter"
# Settings that no route can heed. They are refused, so that no client believes they were heeded.
REFUSED_SETTINGS = (
    *("functions", "function_call"),
    *("logprobs", "top_logprobs"),
    *("audio", "modalities"),
)
# Settings that only some models take, see `hierrouter.pools.pool.Ability`, with their options.
TOOLS = "tools"
TOOL_CHOICE = "tool_choice"
TOOL_SETTINGS = (TOOLS, TOOL_CHOICE, "parallel_tool_calls")
RESPONSE_FORMAT = "response_format"
# Values with which any of these settings asks for nothing.
NEUTRAL_VALUES: tuple[Any, ...] = (False, [], {}, "none", "auto", ["text"], {"type": "text"})
DECODING_SETTINGS = (
    *("temperature", "top_p"),
    *("max_tokens", "max_completion_tokens"),
    *("stop", "seed"),
)
CLIENT_SETTINGS = ("user", "metadata", "store")  # name the client, and change no answer
# Limits of the header that lists ignored settings.
MAX_LISTED_SETTINGS = 20
MAX_SETTING_NAME = 40


class UnknownModel(InputError):
    """A client asked for a model that is not served."""


@dataclass(frozen=True)
class ModelNames:
    """The model names that clients may ask for.

    Attributes:
        alphas: the alpha of each listed name; None is the policy's own.
        any_alpha: whether `hierrouter@X` takes any X.
    """

    alphas: Mapping[str, float | None]
    any_alpha: bool

    @classmethod
    def of(cls, policy: LivePolicy, alpha: float | None = None) -> ModelNames:
        """Return the names of a policy.

        A policy for every alpha has the names `cheap`, `balanced` and `best` as well.

        Args:
            policy: answers.
            alpha: of the plain name; None is the policy's own.

        Raises:
            InputError: the policy does not answer for this alpha.
        """
        policy.at(alpha)
        if not policy.any_alpha:
            return cls({BASE_NAME: alpha}, any_alpha=False)
        grid = policy.alphas
        short_names = {"best": grid[0], "balanced": grid[len(grid) // 2], "cheap": grid[-1]}
        alphas = {f"{BASE_NAME}:{name}": value for name, value in short_names.items()}
        return cls({BASE_NAME: alpha, **alphas}, any_alpha=True)

    def alpha(self, name: str) -> float | None:
        """Return the alpha that a name asks for; None is the policy's own.

        Raises:
            UnknownModel: there is no such name.
        """
        if name in self.alphas:
            return self.alphas[name]
        base, _, text = name.partition("@")
        if base == BASE_NAME and text and self.any_alpha:
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if math.isfinite(value) and value >= 0:
                return value
        hint = suggestion(name[:80], self.alphas).rstrip("; ")
        if self.any_alpha:
            hint += f"; any alpha as {BASE_NAME}@ALPHA"
        raise UnknownModel(f"model not found: {name[:80]!r}; {hint}")

    def require(self, name: str) -> None:
        """Refuse a name that clients cannot ask for.

        Raises:
            UnknownModel: there is no such name.
        """
        self.alpha(name)


class StreamOptions(BaseModel):
    """How a stream ends."""

    include_usage: bool = False


class Extension(BaseModel):
    """The settings of this router, which OpenAI's request lacks."""

    model_config = ConfigDict(extra="forbid")
    alpha: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    group: str = Field(default="", max_length=MAX_GROUP_NAME)

    def with_header(self, headers: Mapping[str, str]) -> Extension:
        """The same with the group that a header names, unless the body names one.

        Raises:
            InputError: see `group_in_header`.
        """
        return self.model_copy(update={"group": self.group or group_in_header(headers)})


class Body(BaseModel):
    """The body of a request; all text in it is made sound, names of unknown settings included."""

    @model_validator(mode="before")
    @classmethod
    def _with_sound_text(cls, body: Any) -> Any:
        return sound_values(body)


class ChatRequest(Body):
    """The body of a request for a chat completion."""

    model_config = ConfigDict(extra="allow")
    model: str = BASE_NAME
    messages: list[dict[str, Any]]
    stream: bool = Field(default=False, strict=True)
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=128)
    temperature: float | None = Field(default=None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKEN_COUNT)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKEN_COUNT)
    stop: str | list[str] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    hierrouter: Extension = Extension()

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, body: Any) -> Any:
        """Leave out keys that are null: clients send them for "not set"."""
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if value is not None}

    def question_and_options(self) -> tuple[str, CallOptions]:
        """Return the question as models see it, and what the client wants beside a text.

        Raises:
            InputError: see `question_of`.
            Unroutable: the request asks for more than a route can give.
        """
        if self.n > 1:
            raise Unroutable(f"n: {self.n} answers; a route gives one")
        extra = self.model_extra or {}
        for name in REFUSED_SETTINGS:
            if name in extra and not _asks_for_nothing(extra[name]):
                raise Unroutable(f"{name} is not supported; the models of a pool answer in text")
        question, images = text_and_images(self.messages)
        left_out = {*REFUSED_SETTINGS, *CLIENT_SETTINGS}
        if _asks_for_nothing(extra.get(TOOLS, [])) or extra.get(TOOL_CHOICE) == "none":
            left_out.update(TOOL_SETTINGS)
        if _asks_for_nothing(extra.get(RESPONSE_FORMAT, {})):
            left_out.add(RESPONSE_FORMAT)
        settings = {name: value for name, value in extra.items() if name not in left_out}
        for name in DECODING_SETTINGS:
            value = getattr(self, name)
            if value is not None:
                settings[name] = value
        return question, CallOptions(settings, tuple(images))

    def body_to_forward(self) -> dict[str, Any]:
        """Return the body for another server, without the router's own settings."""
        return self.model_dump(exclude={"hierrouter", "model"}, exclude_unset=True)


def setting_list(names: Iterable[str]) -> str:
    """Join names of settings for a header."""
    listed = sorted(names)[:MAX_LISTED_SETTINGS]
    return ", ".join(quote(name[:MAX_SETTING_NAME]) for name in listed)


class ClientCall(BaseModel):
    """A call that the client made itself, and its response."""

    model_config = ConfigDict(extra="forbid")
    model: str
    content: str
    tokens_in: int = Field(ge=0, le=MAX_TOKEN_COUNT, strict=True)
    tokens_out: int = Field(ge=0, le=MAX_TOKEN_COUNT, strict=True)
    finish_reason: Literal["stop", "length"] = "stop"
    logprobs: list[float] | None = None

    @property
    def call(self) -> Call:
        """The call as the router reads it."""
        has_end = self.finish_reason == "stop"
        response = Response(
            text=self.content,
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
            finish_reason=self.finish_reason,
            confidence=Confidence.of(self.logprobs or [], self.tokens_out, has_end),
        )
        return Call(model=self.model, response=response)


class DecideRequest(Body):
    """The state of a question whose calls the client makes itself."""

    model_config = ConfigDict(extra="forbid")
    model: str = BASE_NAME
    messages: list[dict[str, Any]]
    answers: list[ClientCall] = []
    unavailable: list[str] | None = None
    hierrouter: Extension = Extension()


def decision_object(
    decision: Decision, trained: TrainedRouter, messages: list[dict[str, str]], remaining: int
) -> dict[str, Any]:
    """Return a decision as a client reads it.

    Args:
        decision: of the policy.
        trained: the router that decided.
        messages: for the model that is to be called.
        remaining: how many decisions may come after this one.
    """
    actions = trained.actions
    models = trained.origin.models
    names = actions.names(models)
    action = decision.action
    is_deferred = bool(decision.deferred_to)
    is_call = action < actions.calls or is_deferred
    model = decision.deferred_to or models[action % len(models)]
    body: dict[str, Any] = {
        "object": "hierrouter.decision",
        "alpha": trained.alpha,
        "call": model if is_call else None,
        "last": not remaining or action >= len(models) or is_deferred,
        "deferred": is_deferred,
        "return": None if is_call else action - actions.calls + 1,
        "chances": dict(zip(names, decision.chances.tolist(), strict=True)),
        "expected": None,
        "best_probability": decision.best_probability,
        "unavailable": list(decision.unavailable),
        "messages": messages if is_call else [],
        "router_s": round(decision.router_s, 6),
    }
    if decision.expected is not None:
        body["expected"] = {
            name: {"quality": quality, "cost": cost}
            for name, (quality, cost) in zip(names, decision.expected.tolist(), strict=True)
            if not math.isnan(quality)
        }
    return body


def _asks_for_nothing(value: Any) -> bool:
    """Whether a setting with this value is the same as no setting; 0 is not False."""
    return any(type(value) is type(neutral) and value == neutral for neutral in NEUTRAL_VALUES)


def completion(completion_id: str, model: str, result: RouteResult) -> dict[str, Any]:
    """Return the body of a complete answer.

    Args:
        completion_id: of this completion.
        model: name that the client asked for.
        result: of the question.
    """
    message: dict[str, Any] = {"role": "assistant", "content": result.answer}
    tool_calls = result.answer_hop.response.tool_calls
    if tool_calls:
        message["content"] = result.answer or None
        message["tool_calls"] = list(tool_calls)
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": _finish_reason(result),
        "logprobs": None,
    }
    return {
        **_head(completion_id, model, "chat.completion"),
        "choices": [choice],
        "usage": _usage(result),
        "hierrouter": _extension(result),
    }


def chunk(
    completion_id: str, model: str, delta: dict[str, Any], reason: str | None = None
) -> dict[str, Any]:
    """Return one chunk of a stream.

    Args:
        completion_id: as in `completion`.
        model: as in `completion`.
        delta: what the chunk adds to the message.
        reason: why the answer ends; None before its end.
    """
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
    return {**_head(completion_id, model, "chat.completion.chunk"), "choices": [choice]}


def last_chunks(
    completion_id: str, model: str, result: RouteResult, include_usage: bool
) -> Iterator[dict[str, Any]]:
    """Yield the end of a stream: tool calls, finish reason and route, and usage on request.

    Args:
        completion_id: as in `completion`.
        model: as in `completion`.
        result: of the question.
        include_usage: whether the client wants a chunk with the tokens.
    """
    tool_calls = result.answer_hop.response.tool_calls
    if tool_calls:
        numbered = [{**call, "index": number} for number, call in enumerate(tool_calls)]
        yield chunk(completion_id, model, {"tool_calls": numbered})
    last = chunk(completion_id, model, {}, _finish_reason(result))
    yield {**last, "hierrouter": _extension(result)}
    if include_usage:
        head = _head(completion_id, model, "chat.completion.chunk")
        yield {**head, "choices": [], "usage": _usage(result)}


def _finish_reason(result: RouteResult) -> str:
    response = result.answer_hop.response
    return "tool_calls" if response.tool_calls else response.finish_reason


def _usage(result: RouteResult) -> dict[str, int]:
    return {
        "prompt_tokens": result.tokens_in,
        "completion_tokens": result.tokens_out,
        "total_tokens": result.tokens_in + result.tokens_out,
    }


def _extension(result: RouteResult) -> dict[str, Any]:
    """Return route, cost and calls; the text of earlier responses is only in the log."""
    body = result.as_object()
    for key in ("question", "answer", "tokens_in", "tokens_out", "finish_reason"):
        del body[key]
    # The steps come last in this view.
    steps = body.pop("steps")
    for step in steps:
        del step["response"]
    return {**body, "steps": steps}


def _head(completion_id: str, model: str, kind: str) -> dict[str, Any]:
    return {"id": completion_id, "object": kind, "created": int(time.time()), "model": model}


def error_object(
    message: str, kind: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """Return an error as a client reads it.

    Args:
        message: what is wrong.
        kind: OpenAI's `type` of the error.
        code: OpenAI's, if it has one for this error.
        param: name of the part of the request that is wrong.
    """
    return {
        "error": {
            "message": " ".join(sound_text(message).split()),
            "type": kind,
            "param": param,
            "code": code,
        }
    }
