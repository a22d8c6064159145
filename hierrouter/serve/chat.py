"""A request for a chat completion, and what is sent back.

Out: `ChatRequest`, checked; bodies as OpenAI has them, with one more key `hierrouter`: route, cost,
and each call. Not covered: HTTP (`app`).
"""

from __future__ import annotations

import time
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from hierrouter.live.routed import Routed
from hierrouter.serve.names import BASE
from hierrouter_cache.errors import InputError

# What would change the answer if it were heeded; nobody shall believe that it was.
REFUSED = ("tools", "tool_choice", "functions", "function_call", "response_format", "logprobs")
KNOWN = frozenset({"model", "messages", "stream", "stream_options", "n", "hierrouter", "user"})


class StreamOptions(BaseModel):
    """How a stream ends."""

    include_usage: bool = False


class Wishes(BaseModel):
    """What OpenAI's request has no word for."""

    model_config = ConfigDict(extra="forbid")
    alpha: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    max_cost: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class ChatRequest(BaseModel):
    """The body of a request. Each model decodes as its pool file says."""

    model_config = ConfigDict(extra="allow")
    model: str = BASE
    messages: list[dict[str, Any]]
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=1)
    hierrouter: Wishes = Wishes()

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of settings that change nothing here.

        Raises:
            InputError: one that must not be passed over.
        """
        given = [name for name, value in (self.model_extra or {}).items() if value is not None]
        for name in given:
            if name in REFUSED:
                raise InputError(f"{name} is not supported: the models of a pool answer in text")
        return tuple(sorted(name for name in given if name not in KNOWN))


def completion(name: str, model: str, routed: Routed) -> dict[str, Any]:
    """The whole answer.

    Args:
        name: id of the completion.
        model: name that the client asked for.
    """
    message = {"role": "assistant", "content": routed.answer}
    choice = {"index": 0, "message": message, "finish_reason": routed.finish_reason}
    return {
        **_named(name, model, "chat.completion"),
        "choices": [{**choice, "logprobs": None}],
        "usage": usage(routed),
        "hierrouter": extension(routed),
    }


def piece(
    name: str, model: str, delta: dict[str, Any], reason: str | None = None
) -> dict[str, Any]:
    """One chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
    return {**_named(name, model, "chat.completion.chunk"), "choices": [choice]}


def last_piece(name: str, model: str, routed: Routed, include_usage: bool) -> dict[str, Any]:
    """The end of a stream: no choice any more, the usage if it was asked for, and the route."""
    found = {**_named(name, model, "chat.completion.chunk"), "choices": []}
    if include_usage:
        found["usage"] = usage(routed)
    return {**found, "hierrouter": extension(routed)}


def usage(routed: Routed) -> dict[str, int]:
    """Tokens of all calls."""
    return {
        "prompt_tokens": routed.tokens_in,
        "completion_tokens": routed.tokens_out,
        "total_tokens": routed.tokens_in + routed.tokens_out,
    }


def extension(routed: Routed) -> dict[str, Any]:
    """Route, cost and calls; the answers of earlier hops are the log's."""
    found = routed.as_object()
    hidden = ("question", "answer", "steps", "tokens_in", "tokens_out", "finish_reason")
    steps = [
        {key: value for key, value in step.items() if key != "response"} for step in found["steps"]
    ]
    return {key: value for key, value in found.items() if key not in hidden} | {"steps": steps}


def _named(name: str, model: str, kind: str) -> dict[str, Any]:
    return {"id": name, "object": kind, "created": int(time.time()), "model": model}
