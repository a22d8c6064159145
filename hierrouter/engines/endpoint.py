"""The openai engine: models that an OpenAI-compatible server answers for.

The backend comes first, then `EndpointGenerator`, which asks for many answers at once, and
`Caller`, which makes one attempt at one. The connection, what its errors mean, and how long all
callers wait together are in `hierrouter.engines.endpoint_client`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from pydantic import BaseModel

from hierrouter.engines import endpoint_client as server
from hierrouter.engines.generator import (
    NO_OPTIONS,
    Answer,
    CallOptions,
    Confidence,
    Failure,
    Feed,
    Outage,
    Response,
    Stop,
    message_of,
    never,
    tokenize_prompt,
)
from hierrouter.engines.identity import endpoint_of, named_folder, served_identity
from hierrouter.pools.pool import Endpoint, Identity, ModelSpec
from hierrouter_cache.errors import WorldError, reason_of
from hierrouter_cache.keys import digest


class EndpointBackend:
    """Models that a server answers for."""

    def identify(self, spec: ModelSpec) -> Identity:
        """See `served_identity`; the key must be there, as it will be wanted.

        Raises InputError: no base_url, or no key in the variable that should hold it.
        """
        endpoint_of(spec).key(f"model {spec.name}")
        return served_identity(spec)

    def weight_bytes(self, spec: ModelSpec) -> int:
        """None of this machine's memory."""
        return 0

    def load(self, spec: ModelSpec) -> EndpointGenerator:
        """Ask the server whether it serves this model.

        Raises InputError: see `identify`; Outage: it cannot be reached, refuses the key, or serves
        other models; WorldError: the tokenizer that is to count cannot be loaded.
        """
        endpoint = endpoint_of(spec)
        key = endpoint.key(f"model {spec.name}")
        with _session(endpoint, key) as (portal, client):
            portal.call(_require_served, client, spec.model)
        return EndpointGenerator(spec, endpoint, key)


LIST_ATTEMPTS = 2
NAMED = 5  # models of a server, in a message


async def _require_served(client: server.Deployment, model: str) -> None:
    """Ask for the list of models; a server that has none is not asked further."""
    ask = partial(_listed, client)
    try:
        names = await server.Patience(LIST_ATTEMPTS, 1, ask, never).call_with_retries(ask)
    except server.Refusal as error:
        raise Outage(str(error)) from None
    # `transformers serve` lists what it has from the hub, but serves folders as well; Ollama
    # takes a name without its tag.
    if not names or Path(model).is_absolute() or {model, f"{model}:latest"} & set(names):
        return
    close = get_close_matches(model, names, NAMED, 0.0)
    more = f" and {len(names) - len(close)} more" if len(names) > len(close) else ""
    raise Outage(
        f"model {model} is not served at {client.address}, which serves "
        f"{', '.join(f'{name:.30}' for name in close)}{more}"
    )


async def _listed(client: server.Deployment) -> list[str]:
    """Names of the served models; empty where the server does not tell."""
    try:
        body = await client.list_models()
    except server.ServerBusy as busy:
        if busy.is_there:
            raise
        raise Outage(f"{busy}; start the server, or correct base_url") from None
    if body is None:
        return []
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        raise Outage(
            f"unexpected answer from {client.address}: no JSON; is base_url right "
            "(it often ends in /v1)?"
        ) from None
    models = parsed.get("data") if isinstance(parsed, dict) else None
    models = models if isinstance(models, list) else []
    names = [model.get("id") for model in models if isinstance(model, dict)]
    return [name for name in names if isinstance(name, str)]


class EndpointGenerator:
    """One model of one server.

    Args:
        key: for the server, where it wants one.

    Attributes:
        caller: how it is asked.
    """

    def __init__(self, spec: ModelSpec, endpoint: Endpoint, key: str | None) -> None:
        self._endpoint = endpoint
        self._key = key
        self.caller = Caller(spec, endpoint)

    def generate(
        self, prompts: Sequence[str] | Feed, stop: Stop = never
    ) -> Iterator[tuple[int, Answer]]:
        """The answers as they come.

        Once `stop()` is true, what the server is answering is still delivered; a call that waits
        for its next attempt is not made. Closing the iterator cancels what is under way. Raises
        Outage: the server gives nothing but failures; what was under way is delivered before;
        RuntimeError: another model answers, or answers come without token counts.

        `prompts`: all of them, or a feed that others fill meanwhile; it ends once that is closed.
        """
        width = self._endpoint.concurrency * len(self._endpoint.servers)
        if isinstance(prompts, Feed):
            feed = prompts
        else:
            feed, width = Feed(prompts), min(width, len(prompts))
            feed.close()
        stopping = Event()
        pending: dict[Future[Answer | None], int] = {}
        outage: Outage | None = None
        with _session(self._endpoint, self._key) as (portal, client):
            probe = partial(self.caller.probe, client)
            patience = server.Patience(self._endpoint.attempts, width, probe, stopping.is_set)
            try:
                while True:
                    feed.changed.clear()  # before it is looked at, so that nothing is missed
                    over, is_last = outage is not None or stop(), feed.closed
                    while not over and len(pending) < width and (item := feed.take()):
                        call = partial(self.caller.complete, client, item[1])
                        future = portal.start_task_soon(_final_answer, patience, call)
                        pending[future] = item[0]
                        future.add_done_callback(lambda _: feed.changed.set())
                        over = stop()
                    if over:
                        stopping.set()
                    if feed.cancelled or (not pending and (over or is_last)):
                        break
                    feed.changed.wait(server.TICK_S)
                    try:
                        yield from _finished(pending)
                    except Outage as error:
                        outage = outage or error
            finally:
                for future in pending:
                    future.cancel()
        if outage:
            raise outage


async def _final_answer(
    patience: server.Patience, call: Callable[[], Awaitable[Answer]]
) -> Answer | None:
    """What comes of one prompt; None where the collection stops before."""
    try:
        return await patience.call_with_retries(call)
    except server.Refusal as error:
        return Failure("error", str(error))
    except server.Cancellation:
        return None


def _finished(pending: dict[Future[Answer | None], int]) -> Iterator[tuple[int, Answer]]:
    """Take out what is finished; an error comes after the answers."""
    done = [future for future in pending if future.done()]
    for future in sorted(done, key=lambda each: each.exception() is not None):
        place = pending.pop(future)
        answer = future.result()
        if answer is not None:
            yield place, answer


PROBE_PROMPT = "Say OK."  # what tells a server that is out from prompts that never work
LIMIT, OTHER_LIMIT = "max_tokens", "max_completion_tokens"  # the second for newer hosted models
# What servers call the end of an answer: vLLM, llama.cpp, Ollama and hosted ones; then TGI.
STOPS = ("stop", "eos", "eos_token", "stop_sequence")
MOST_TOKENS = 2**31 - 1  # what the cache has room for


class Caller:
    """How one model of one server is asked, and how its answers are read.

    Raises:
        WorldError: the tokenizer that is to count cannot be loaded.
    """

    def __init__(self, spec: ModelSpec, endpoint: Endpoint) -> None:
        self._model = spec.model
        self._generation = spec.generation
        self._limit = LIMIT
        self._asks_logprobs = True
        named = endpoint.answers_as or spec.model
        # `transformers serve` puts the revision behind the name.
        self._names = (named, f"{named}@{spec.revision or 'main'}")
        self._tokenizer = _tokenizer(spec, endpoint.tokenizer) if endpoint.tokenizer else None

    async def complete(
        self,
        client: server.Deployment,
        prompt: str,
        on_text: Callable[[str], None] | None = None,
        options: CallOptions = NO_OPTIONS,
    ) -> Answer:
        """What one attempt gives.

        Raises TransientError, ServerBusy, Refusal, Outage: see
        `hierrouter.engines.endpoint_client`; perhaps after a part of the answer was told;
        RuntimeError: another model answers, or answers come without token counts.

        `client`: the connection to its server; `prompt`: the text; `on_text`: told what comes next
        of the answer, while it comes; `options`: by a client.
        """
        limit, asks_logprobs = self._limit, self._asks_logprobs
        request = self._request(prompt, limit, options)
        try:
            if on_text:
                body = await client.stream(request, self._gathered, on_text)
            else:
                body = await client.complete(request)
            return self._answer(prompt, body, has_tools="tools" in options.settings)
        except server.Refusal as refused:
            if refused.status != "error":
                return Failure(refused.status, str(refused))
            if asks_logprobs and "logprob" in str(refused):
                self._asks_logprobs = False
            elif limit != OTHER_LIMIT and OTHER_LIMIT in str(refused) and not refused.is_doubtful:
                self._limit = OTHER_LIMIT
            else:
                raise
        except ValueError as error:
            raise server.TransientError(
                f"unexpected answer from {client.address}: {error}"
            ) from None
        return await self.complete(client, prompt, on_text, options)

    async def probe(self, client: server.Deployment) -> None:
        """One attempt at a prompt that no server can mind."""
        answer = await self.complete(client, PROBE_PROMPT)
        if isinstance(answer, Failure):
            raise server.TransientError(answer.detail)

    def _request(self, prompt: str, limit: str, options: CallOptions) -> dict[str, Any]:
        generation, settings = self._generation, dict(options.settings)
        request: dict[str, Any] = {
            "model": self._model,
            "messages": message_of(prompt),
            "temperature": generation.temperature,
            limit: generation.max_new_tokens,
        }
        if options.images:
            text = {"type": "text", "text": prompt}
            request["messages"] = [{"role": "user", "content": [text, *options.images]}]
        if self._asks_logprobs and "tools" not in settings:  # some servers have them not together
            request["logprobs"] = True
        for name in (LIMIT, OTHER_LIMIT):
            if name in settings:
                request[limit] = settings.pop(name)
        if generation.temperature and not settings.keys() & {"temperature", "top_p", "seed"}:
            # A seed of its own for each model and prompt: see docs/decisions.md on draws.
            seed = digest(["draw", self._model, generation.seed, prompt])
            request |= {"top_p": generation.top_p, "seed": int(seed[:7], 16)}
        return {**request, **settings}

    def _answer(self, prompt: str, body: str, *, has_tools: bool = False) -> Answer:
        """The answer to `prompt` that this body holds.

        An empty text is an answer where the model ended by itself, and where all the tokens that it
        may generate went elsewhere, as into thinking that the server does not show. Raises
        ValueError: it is no JSON, is an error, lacks choice, text, reason or model, or counts what
        cannot be; RuntimeError: another model answers, or there are no token counts.
        """
        completion = _json_object(body)
        if words := _error_in(completion):
            if status := server.prompt_fault(words):
                return Failure(status, words)
            raise ValueError(f"an error: {words}")
        choices = completion.get("choices")
        if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
            raise ValueError("no choices")
        self._check_model(completion.get("model"))
        reason = choices[0].get("finish_reason")
        if reason == "content_filter":
            return Failure("filtered", "the server withheld the response")
        calls = _tool_calls(choices[0]) if has_tools else ()
        if reason not in (*STOPS, "length", *(["tool_calls"] if has_tools else [])):
            raise ValueError(f"finish_reason {reason!r:.40}")
        finish = "length" if reason == "length" else "stop"
        message = choices[0].get("message")
        text = message.get("content") if isinstance(message, dict) else None
        if text is None and isinstance(message, dict) and (finish == "length" or calls):
            text = ""
        if not isinstance(text, str):
            raise ValueError("no content")
        tokens_in, tokens_out = self._tokens(completion.get("usage"), prompt, text, finish)
        if tokens_out == 0 and finish == "length":
            return Failure("too_long", f"{tokens_in} tokens of prompt left no room for a response")
        sure = Confidence.of(_logprobs(choices[0]), tokens_out, has_end=finish == "stop")
        return Response(text.strip(), tokens_in, tokens_out, finish, sure, calls)

    async def _gathered(self, pieces: AsyncIterator[Any], on_text: Callable[[str], None]) -> str:
        """The body of a completion that comes in pieces, as if it had come whole.

        Raises ValueError: a piece that is none; RuntimeError: another model answers; nothing of
        that is told.

        `pieces`: `openai.types.chat.ChatCompletionChunk`s, which nobody has checked; `on_text`:
        told what each piece adds to the text.
        """
        texts: list[str] = []
        told: list[Any] = []
        body: dict[str, Any] = {}
        choice: dict[str, Any] = {}
        async for piece in pieces:
            found = _piece(piece)
            body |= {name: found[name] for name in ("model", "usage", "error") if found.get(name)}
            for first in found.get("choices") or ():
                if first.get("finish_reason"):
                    choice["finish_reason"] = first["finish_reason"]
                told += _logprobs(first)
                if text := (first.get("delta") or {}).get("content"):
                    self._check_model(body.get("model"))
                    texts.append(text)
                    on_text(text)
        if choice or texts:
            logprobs = {"content": [{"logprob": one} for one in told]}
            message = {"content": "".join(texts)}
            body["choices"] = [{**choice, "message": message, "logprobs": logprobs}]
        return json.dumps(body)

    def _check_model(self, named: Any) -> None:
        if named is None:
            raise ValueError("no name of a model")
        if named not in self._names:
            raise RuntimeError(
                f"answers come from {named!r:.50}; if that is the same model, set answers_as"
            )

    def _tokens(self, usage: Any, prompt: str, text: str, finish: str) -> tuple[int, int]:
        """Of prompt and response; those of the server where it sends them."""
        counts = usage if isinstance(usage, dict) else {}
        tokens_in = _token_count(counts.get("prompt_tokens"))
        tokens_out = _token_count(counts.get("completion_tokens"))
        # 0 for a text that is there is a count that the server did not make.
        if tokens_in and tokens_out is not None and (tokens_out or not text):
            return tokens_in, tokens_out
        if self._tokenizer is None:
            raise RuntimeError("answers come without usage (token counts); name a tokenizer")
        generated = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        # The end token counts too.
        return len(tokenize_prompt(self._tokenizer, prompt)), len(generated) + (finish == "stop")


def _tokenizer(spec: ModelSpec, name: str) -> Any:
    """What counts where the server does not: a folder, a hub id or `testbed:NAME`."""
    from transformers import AutoTokenizer  # with torch it takes seconds, and few pools need it

    place = f"model {spec.name}"
    source = str(named_folder(replace(spec, model=name)) or name)
    try:
        loaded = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        raise WorldError(
            f"cannot load tokenizer {name}: {place}: {reason}; name another"
        ) from error
    if loaded.chat_template is None:
        raise WorldError(f"tokenizer {name} has no chat template: {place}; name another")
    return loaded


def _json_object(body: str) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        kind = "HTML" if body.lstrip()[:1] == "<" else "cut or broken JSON"
        raise ValueError(kind if body.strip() else "an empty body") from None
    if not isinstance(parsed, dict):
        raise ValueError("JSON that is no object")
    return parsed


def _error_in(completion: dict[str, Any]) -> str:
    """The words of an error that came with status 200, as some servers send it; else nothing."""
    error = completion if completion.get("object") == "error" else completion.get("error")
    words = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(words).split())[: server.LONGEST_DETAIL] if words else ""


def _logprobs(choice: dict[str, Any]) -> list[Any]:
    """Of each token what the server sends, whatever that is; nothing where it sends none."""
    told = choice.get("logprobs")
    tokens = told.get("content") if isinstance(told, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, dict) for token in tokens):
        return []
    return [token.get("logprob") for token in tokens]


def _tool_calls(choice: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not calls:
        return ()
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ValueError("tool_calls that are none")
    return tuple(calls)


def _token_count(value: Any) -> int | None:
    """A number of tokens; None where none is sent."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise ValueError(f"{value!r:.20} tokens")
    return value


def _piece(piece: Any) -> dict[str, Any]:
    """A chunk as plain values, once they are known to be what they should be."""
    found = piece.model_dump(warnings=False) if isinstance(piece, BaseModel) else None
    choices = found.get("choices") or [] if isinstance(found, dict) else None
    if not isinstance(choices, list) or not all(map(_is_choice, choices)):
        raise ValueError("a piece of a stream that is none")
    return found or {}


def _is_choice(choice: Any) -> bool:
    delta = choice.get("delta") or {} if isinstance(choice, dict) else None
    return isinstance(delta, dict) and isinstance(delta.get("content") or "", str)


@contextmanager
def _session(
    endpoint: Endpoint, key: str | None
) -> Iterator[tuple[BlockingPortal, server.Deployment]]:
    """A client and an event loop in a thread of its own to run it in; both gone afterwards."""
    client = server.Deployment(endpoint, key)
    with start_blocking_portal("asyncio", name=f"endpoint {client.address}") as portal:
        try:
            yield portal, client
        finally:
            portal.call(client.close)
