"""The openai engine: models on an OpenAI-compatible server.

From top to bottom: `EndpointBackend` checks that the server has a model; `EndpointGenerator` keeps
many calls under way at once; `Caller` makes one attempt at one call. All differences between
servers (vLLM, llama.cpp, TGI, Ollama, `transformers serve`, hosted ones) are in `Caller`. The
connection, what its errors mean, and how all callers wait together are in
`hierrouter.engines.endpoint_client`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from pydantic import BaseModel

from hierrouter.engines import endpoint_client as server
from hierrouter.engines.bills import Bill, read_usage
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
from hierrouter.engines.identity import endpoint_of, named_folder, served_identity, tokenizer_commit
from hierrouter.hub.repository import quiet_loading
from hierrouter.pools.pool import Endpoint, Identity, ModelSpec
from hierrouter_cache.errors import WorldError, reason_of
from hierrouter_cache.keys import digest, sound_json


class EndpointBackend:
    """Models on a server."""

    def identify(self, spec: ModelSpec) -> Identity:
        """Identify a model, as `served_identity`, and check that its key is set.

        Args:
            spec: a model with an endpoint.

        Returns:
            What decides its responses.

        Raises:
            InputError: it has no base_url, or the key's environment variable is not set.
        """
        endpoint_of(spec).key(f"model {spec.name}")
        return served_identity(spec)

    def weight_bytes(self, spec: ModelSpec) -> int:
        """Return 0: the model takes no memory of this machine."""
        return 0

    def load(self, spec: ModelSpec) -> EndpointGenerator:
        """Check that the server has the model.

        Args:
            spec: a model with an endpoint.

        Returns:
            The model, ready to answer.

        Raises:
            InputError: as `identify`.
            Outage: the server cannot be reached, refuses the key, or does not have the model.
            WorldError: the tokenizer that counts tokens cannot be loaded.
        """
        endpoint = endpoint_of(spec)
        key = endpoint.key(f"model {spec.name}")
        with _connection(endpoint, key) as (portal, client):
            portal.call(_require_model, client, spec.model)
        return EndpointGenerator(spec, endpoint, key)


LISTING_ATTEMPTS = 2
MAX_LISTED_MODELS = 5  # of a server, in a message


async def _require_model(client: server.Deployment, model: str) -> None:
    """Check that a server lists a model; without a list, the first call will tell."""
    request_list = partial(_list_models, client)
    patience = server.Patience(LISTING_ATTEMPTS, 1, request_list, never)
    try:
        names = await patience.call_with_retries(request_list)
    except server.Refusal as error:
        raise Outage(str(error)) from None
    if not names:
        return
    # `transformers serve` lists its models of the hub, but serves folders as well.
    if Path(model).is_absolute():
        return
    # Ollama accepts a name without its tag.
    if model in names or f"{model}:latest" in names:
        return
    close = get_close_matches(model, names, MAX_LISTED_MODELS, 0.0)
    rest = f" and {len(names) - len(close)} more" if len(names) > len(close) else ""
    raise Outage(
        f"model {model} is not served at {client.address}, which serves "
        f"{', '.join(f'{name:.30}' for name in close)}{rest}"
    )


async def _list_models(client: server.Deployment) -> list[str]:
    """Return the names of a server's models; empty if it has no list."""
    try:
        body = await client.list_models()
    except server.ServerBusy as busy:
        if busy.is_reachable:
            raise
        raise Outage(f"{busy}; start the server, or correct base_url") from None
    if body is None:
        return []
    try:
        reply = sound_json(body)
    except (ValueError, RecursionError):
        raise Outage(
            f"unexpected answer from {client.address}: no JSON; is base_url right "
            "(it often ends in /v1)?"
        ) from None
    models = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(models, list):
        return []
    names = [model.get("id") for model in models if isinstance(model, dict)]
    return [name for name in names if isinstance(name, str)]


class EndpointGenerator:
    """A model of one endpoint.

    Args:
        spec: the model.
        endpoint: its endpoint.
        key: the API key; None for a server that needs none.

    Attributes:
        caller: makes the calls.
    """

    def __init__(self, spec: ModelSpec, endpoint: Endpoint, key: str | None) -> None:
        self._endpoint = endpoint
        self._key = key
        self.caller = Caller(spec, endpoint)

    def generate(
        self, prompts: Sequence[str] | Feed, stop: Stop = never
    ) -> Iterator[tuple[int, Answer]]:
        """Answer prompts, many at a time. Closing the iterator cancels the calls under way.

        Args:
            prompts: the prompts, or a feed that another thread fills; the iterator ends once the
                feed is closed.
            stop: once it returns true, no further prompt is begun, and calls that wait for their
                next attempt are given up. Calls that the server is answering are finished.

        Yields:
            (position, answer) as the answers arrive.

        Raises:
            Outage: the server returns nothing but failures; answers under way are yielded before.
            RuntimeError: another model answers, or answers come without token counts.
        """
        max_pending = self._endpoint.concurrency * len(self._endpoint.servers)
        if isinstance(prompts, Feed):
            feed = prompts
        else:
            feed = Feed(prompts)
            feed.close()
            max_pending = min(max_pending, len(prompts))
        stopping = Event()
        pending: dict[Future[Answer | None], int] = {}  # positions by call
        outage: Outage | None = None
        with _connection(self._endpoint, self._key) as (portal, client):
            probe = partial(self.caller.probe, client)
            patience = server.Patience(self._endpoint.attempts, max_pending, probe, stopping.is_set)
            try:
                while True:
                    # Cleared before the feed is read, so that no change is missed.
                    feed.changed.clear()
                    is_over = outage is not None or stop()
                    is_last = feed.closed
                    while not is_over and len(pending) < max_pending and (item := feed.take()):
                        position, prompt = item
                        call = partial(self.caller.complete, client, prompt)
                        future = portal.start_task_soon(_final_answer, patience, call)
                        pending[future] = position
                        future.add_done_callback(lambda _: feed.changed.set())
                        is_over = stop()
                    if is_over:
                        stopping.set()
                    if feed.cancelled or (not pending and (is_over or is_last)):
                        break
                    feed.changed.wait(server.TICK_S)
                    try:
                        yield from _take_finished(pending)
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
    """Return the answer to one prompt after all attempts; None if the collection was stopped."""
    try:
        return await patience.call_with_retries(call)
    except server.Refusal as error:
        return Failure("error", str(error))
    except server.Cancellation:
        return None


def _take_finished(pending: dict[Future[Answer | None], int]) -> Iterator[tuple[int, Answer]]:
    """Remove the finished calls, and yield their answers; errors are raised after the answers."""
    done = [future for future in pending if future.done()]
    done.sort(key=lambda future: future.exception() is not None)
    for future in done:
        position = pending.pop(future)
        answer = future.result()
        if answer is not None:
            yield position, answer


PROBE_PROMPT = "Say OK."  # no server can mind it: it tells a failed server from bad prompts
# Two names of the longest response: newer hosted models accept the second one only.
MAX_TOKENS_FIELD = "max_tokens"
MAX_COMPLETION_TOKENS_FIELD = "max_completion_tokens"
# Reasons for the end of a complete response: vLLM, llama.cpp, Ollama and hosted ones; then TGI.
STOP_REASONS = ("stop", "eos", "eos_token", "stop_sequence")
# Settings for which a server may have another default: vLLM and SGLang take that of the model's
# generation_config.json, llama.cpp that of its flags. These values change nothing. Servers that do
# not know a setting ignore it, or refuse it by name.
NEUTRAL_PENALTIES = {
    "repeat_penalty": 1.0,  # the name that llama.cpp has for `repetition_penalty`
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,  # `transformers serve` has no other name for a repetition penalty
}
THOUGHT_PARTS = ("thinking", "reasoning", "thought")  # types of the parts of a content
NEUTRAL_DRAWS = {"top_k": -1, "min_p": 0.0}  # above temperature 0


@dataclass(frozen=True)
class Dialect:
    """Parameters that not all servers accept; learned from what a server refuses.

    Attributes:
        max_tokens_field: the parameter for the longest response.
        has_logprobs: whether log-probabilities are requested.
        refused: settings that the server does not know.
    """

    max_tokens_field: str = MAX_TOKENS_FIELD
    has_logprobs: bool = True
    refused: frozenset[str] = frozenset()


# What a response is by the reason of its end, see `generator.RESPONSE_KINDS`.
KINDS_BY_REASON = {"content_filter": "filtered", "safety": "filtered", "refusal": "refusal"}


@dataclass(frozen=True)
class Message:
    """What a choice of a completion says; the fields are those of `Response`.

    Attributes:
        text: of the response, or of a refusal.
        thought: that the server sends in another field.
        kind: "refusal" or "filtered"; "" for an answer, which may be empty.
        finish: "stop" or "length".
        tool_calls: of a model that was given tools.
    """

    text: str
    thought: str
    kind: str
    finish: str
    tool_calls: tuple[dict[str, Any], ...] = ()


class Caller:
    """Makes one attempt at a call of one model, and reads the reply.

    `complete` runs through these methods, in this order. To support a server with another dialect,
    override the method whose step differs:

        request_body   the prompt and options as the body of a request
        adapt          a changed dialect, if the server refuses a parameter
        gather_stream  the pieces of a stream as the body of one reply
        read_reply     the body of a reply as an answer
        check_model    is the reply from the right model?
        read_message   text, thought, tool calls, and what the response is
        read_bill      tokens of prompt and response, and what else the server bills

    Args:
        spec: the model.
        endpoint: its endpoint.

    Raises:
        WorldError: the tokenizer that counts tokens cannot be loaded.
    """

    def __init__(self, spec: ModelSpec, endpoint: Endpoint) -> None:
        self._model = spec.model
        self._generation = spec.generation
        self._dialect = Dialect()
        name = endpoint.answers_as or spec.model
        # `transformers serve` appends the revision to the name.
        self._model_names = (name, f"{name}@{spec.revision or 'main'}")
        self._tokenizer = _load_tokenizer(spec, endpoint.tokenizer) if endpoint.tokenizer else None

    async def complete(
        self,
        client: server.Deployment,
        prompt: str,
        on_text: Callable[[str], None] | None = None,
        options: CallOptions = NO_OPTIONS,
    ) -> Answer:
        """Make one attempt at one call.

        Args:
            client: the connection.
            prompt: the prompt's text.
            on_text: called with each further piece of the text while it arrives; None to request
                the response at once.
            options: of the user's client.

        Returns:
            The answer.

        Raises:
            TransientError: see `hierrouter.engines.endpoint_client`; with `on_text`, perhaps after
                a part of the text, as all of these.
            ServerBusy: likewise.
            Refusal: likewise.
            Outage: likewise.
            RuntimeError: another model answers, or answers come without token counts.
        """
        dialect = self._dialect  # other calls may change it before this one is refused
        request = self.request_body(prompt, options, dialect)
        try:
            if on_text:
                reply = await client.stream(request, self.gather_stream, on_text)
            else:
                reply = await client.complete(request)
            answer = self.read_reply(prompt, reply.body, has_tools="tools" in options.settings)
            return replace(answer, time=reply.time) if isinstance(answer, Response) else answer
        except server.Refusal as refusal:
            if refusal.status != "error":
                return Failure(refusal.status, str(refusal))
            if not self.adapt(dialect, refusal):
                raise
        except ValueError as error:
            message = f"unexpected answer from {client.address}: {error}"
            raise server.TransientError(message) from None
        return await self.complete(client, prompt, on_text, options)

    async def probe(self, client: server.Deployment) -> None:
        """Make one attempt at a prompt that no server can mind.

        Args:
            client: the connection.

        Raises:
            TransientError: the server has no response, or as `complete`.
            ServerBusy: as `complete`.
            Refusal: as `complete`.
            Outage: as `complete`.
            RuntimeError: as `complete`.
        """
        answer = await self.complete(client, PROBE_PROMPT)
        if isinstance(answer, Failure):
            raise server.TransientError(answer.detail)

    def request_body(self, prompt: str, options: CallOptions, dialect: Dialect) -> dict[str, Any]:
        """Write the body of a request.

        Args:
            prompt: the prompt's text.
            options: of the user's client; its settings override those of the pool.
            dialect: of the server.

        Returns:
            The body.
        """
        generation = self._generation
        settings = dict(options.settings)
        request: dict[str, Any] = {
            "model": self._model,
            "messages": message_of(prompt),
            "temperature": generation.temperature,
            dialect.max_tokens_field: generation.max_new_tokens,
        }
        if options.images:
            text = {"type": "text", "text": prompt}
            request["messages"] = [{"role": "user", "content": [text, *options.images]}]
        # Some servers do not support log-probabilities and tools together.
        if dialect.has_logprobs and "tools" not in settings:
            request["logprobs"] = True
        # A client may use either name; the server may accept one only.
        for name in (MAX_TOKENS_FIELD, MAX_COMPLETION_TOKENS_FIELD):
            if name in settings:
                request[dialect.max_tokens_field] = settings.pop(name)
        if generation.temperature and not settings.keys() & {"temperature", "top_p", "seed"}:
            # A different seed for each model and prompt: see docs/decisions.md on draws.
            seed = digest(["draw", self._model, generation.seed, prompt])
            request["top_p"] = generation.top_p
            request["seed"] = int(seed[:7], 16)
        for name, value in self._fixed_settings().items():
            if name not in dialect.refused:
                request[name] = value
        return {**request, **settings}

    def _fixed_settings(self) -> dict[str, float]:
        """Return the settings that must not be left to the server's defaults."""
        penalty = self._generation.repetition_penalty
        settings = {**NEUTRAL_PENALTIES, "repetition_penalty": penalty, "repeat_penalty": penalty}
        return {**settings, **NEUTRAL_DRAWS} if self._generation.temperature else settings

    def adapt(self, dialect: Dialect, refusal: server.Refusal) -> bool:
        """Change the dialect if the server refused a parameter.

        Args:
            dialect: of the refused request.
            refusal: the server's message.

        Returns:
            Whether the call should be made again.
        """
        message = str(refusal)
        if dialect.has_logprobs and "logprob" in message:
            self._dialect = replace(self._dialect, has_logprobs=False)
            return True
        is_other_name = MAX_COMPLETION_TOKENS_FIELD in message and not refusal.needs_probe
        if is_other_name and dialect.max_tokens_field != MAX_COMPLETION_TOKENS_FIELD:
            self._dialect = replace(self._dialect, max_tokens_field=MAX_COMPLETION_TOKENS_FIELD)
            return True
        sent = self._fixed_settings().keys() - dialect.refused
        refused = {name for name in sent if name in message}
        self._dialect = replace(self._dialect, refused=self._dialect.refused | refused)
        return bool(refused)

    async def gather_stream(
        self, pieces: AsyncIterator[Any], on_text: Callable[[str], None]
    ) -> str:
        """Join the pieces of a stream to the body of one reply.

        Args:
            pieces: `openai.types.chat.ChatCompletionChunk`s, not validated.
            on_text: called with each piece's text, once the model's name is checked.

        Returns:
            The body, as if it had come in one piece.

        Raises:
            ValueError: a piece is malformed.
            RuntimeError: another model answers; `on_text` has not been called.
        """
        texts: list[str] = []
        logprobs: list[Any] = []
        body: dict[str, Any] = {}
        choice: dict[str, Any] = {}
        further: dict[str, str] = {}  # texts of the fields beside the content
        async for piece in pieces:
            chunk = _chunk_of(piece)
            for name in ("model", "usage", "error"):
                if chunk.get(name):
                    body[name] = chunk[name]
            for chunk_choice in chunk.get("choices") or ():
                if chunk_choice.get("finish_reason"):
                    choice["finish_reason"] = chunk_choice["finish_reason"]
                logprobs += _logprobs(chunk_choice)
                delta = chunk_choice.get("delta") or {}
                text = delta.get("content")
                if text:
                    self.check_model(body.get("model"))
                    texts.append(text)
                    on_text(text)
                for name in (*server.THOUGHT_FIELDS, "refusal"):
                    if isinstance(delta.get(name), str):
                        further[name] = further.get(name, "") + delta[name]
        if choice or texts:
            choice["message"] = {**further, "content": "".join(texts)}
            choice["logprobs"] = {"content": [{"logprob": logprob} for logprob in logprobs]}
            body["choices"] = [choice]
        return json.dumps(body)

    def read_reply(self, prompt: str, body: str, *, has_tools: bool = False) -> Answer:
        """Read the answer to a prompt out of a reply.

        Args:
            prompt: the prompt's text.
            body: of the reply.
            has_tools: whether the model was given tools.

        Returns:
            The answer. A response may have an empty text, see `read_message`.

        Raises:
            ValueError: the body is no JSON, holds an error, lacks a choice, text, reason or model
                name, or has impossible token counts.
            RuntimeError: another model answers, or there are no token counts.
        """
        completion = _json_object(body)
        error_message = _error_in(completion)
        if error_message:
            status = server.prompt_fault(error_message)
            if status:
                return Failure(status, error_message)
            raise ValueError(f"an error: {error_message}")
        choices = completion.get("choices")
        if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
            raise ValueError("no choices")
        choice = choices[0]
        self.check_model(completion.get("model"))
        message = self.read_message(choice, has_tools)
        usage = completion.get("usage")
        if message.kind == "filtered" and not usage and self._tokenizer is None:
            # Withheld before the model began: there is nothing to pay for.
            return Failure("filtered", "the server withheld the response")
        complete_text = "".join((message.thought, message.text))
        bill = self.read_bill(usage, prompt, complete_text, message.finish)
        tokens_in = bill.tokens_in or 0
        tokens_out = bill.tokens_out or 0
        if tokens_out == 0 and message.finish == "length":
            return Failure("too_long", f"{tokens_in} tokens of prompt left no room for a response")
        has_end = message.finish == "stop"
        return Response(
            message.text,
            tokens_in,
            tokens_out,
            message.finish,
            Confidence.of(_logprobs(choice), tokens_out, has_end),
            message.tool_calls,
            message.kind,
            message.thought,
            bill,
        )

    def check_model(self, name: Any) -> None:
        """Check that a reply is from the right model.

        Args:
            name: the model's name in the reply, not validated.

        Raises:
            ValueError: the reply names no model.
            RuntimeError: it names another model.
        """
        if name is None:
            raise ValueError("no name of a model")
        if name not in self._model_names:
            raise RuntimeError(
                f"answers come from {name!r:.50}; if that is the same model, set answers_as"
            )

    def read_message(self, choice: dict[str, Any], has_tools: bool) -> Message:
        """Read the message of a choice.

        A refusal, a response without text, and one that a filter withholds are responses of the
        model, too: it has worked for them, and would give them again.

        Args:
            choice: of a completion.
            has_tools: whether the model was given tools.

        Returns:
            The message.

        Raises:
            ValueError: there is no message, its text is no text, or the reason of the end is
                unknown.
        """
        tool_calls = _tool_calls(choice) if has_tools else ()
        reason = choice.get("finish_reason")
        is_tool_call = has_tools and reason == "tool_calls"
        if reason not in (*STOP_REASONS, *KINDS_BY_REASON, "length") and not is_tool_call:
            raise ValueError(f"finish_reason {reason!r:.40}")
        fields = choice.get("message")
        if not isinstance(fields, dict):
            raise ValueError("no message")
        content = fields.get("content")
        text, thought = _texts_of(content)
        for name in server.THOUGHT_FIELDS:
            if not thought and isinstance(fields.get(name), str):
                thought = fields[name].strip()
        if "</" in text and thought in text:
            thought = ""  # some servers send it in both fields
        refusal = fields.get("refusal")
        kind = KINDS_BY_REASON.get(str(reason), "")
        if isinstance(refusal, str) and refusal.strip() and not text:
            text = refusal.strip()
            kind = "refusal"
        finish = "length" if reason == "length" else "stop"
        return Message(text, thought, kind, finish, tool_calls)

    def read_bill(self, usage: Any, prompt: str, text: str, finish: str) -> Bill:
        """Return the bill of a call, with the tokens as the server counts them if it does.

        Args:
            usage: the server's counts, not validated.
            prompt: the prompt's text.
            text: the response's text.
            finish: "stop" or "length".

        Returns:
            The bill; it has the tokens of the prompt, and those of the response, the end token
            included.

        Raises:
            ValueError: the server's counts are impossible.
            RuntimeError: the server sends no counts, and no tokenizer is named.
        """
        bill = read_usage(usage)
        # A server that reports 0 tokens for a text has not counted them.
        if bill.tokens_in and bill.tokens_out is not None and (bill.tokens_out or not text):
            return bill
        if self._tokenizer is None:
            raise RuntimeError("answers come without usage (token counts); name a tokenizer")
        generated = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        end_tokens = 1 if finish == "stop" else 0
        return replace(
            bill,
            tokens_in=len(tokenize_prompt(self._tokenizer, prompt)),
            tokens_out=len(generated) + end_tokens,
        )


def _load_tokenizer(spec: ModelSpec, name: str) -> Any:
    """Load the tokenizer that counts for a server: a folder, a hub id or `testbed:NAME`."""
    from transformers import AutoTokenizer  # with torch it takes seconds, and few pools need it

    folder = named_folder(replace(spec, model=name))
    commit = None if folder else tokenizer_commit(name)
    try:
        with quiet_loading():
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder or name),
                revision=commit,
                local_files_only=commit is not None,
                trust_remote_code=False,
            )
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        raise WorldError(
            f"cannot load tokenizer {name}: model {spec.name}: {reason}; name another"
        ) from error
    if tokenizer.chat_template is None:
        raise WorldError(f"tokenizer {name} has no chat template: model {spec.name}; name another")
    return tokenizer


def _json_object(body: str) -> dict[str, Any]:
    try:
        value = sound_json(body)
    except (ValueError, RecursionError):
        if not body.strip():
            raise ValueError("an empty body") from None
        kind = "HTML" if body.lstrip()[:1] == "<" else "cut or broken JSON"
        raise ValueError(kind) from None
    if not isinstance(value, dict):
        raise ValueError("JSON that is no object")
    return value


def _error_in(completion: dict[str, Any]) -> str:
    """Return the message of an error that some servers send with status 200; else nothing."""
    error = completion if completion.get("object") == "error" else completion.get("error")
    message = error.get("message", error) if isinstance(error, dict) else error
    if not message:
        return ""
    return " ".join(str(message).split())[: server.MAX_DETAIL_LENGTH]


def _logprobs(choice: dict[str, Any]) -> list[Any]:
    """Return each token's log-probability as the server sends it; none if it sends none."""
    logprobs = choice.get("logprobs")
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, dict) for token in tokens):
        return []
    return [token.get("logprob") for token in tokens]


def _texts_of(content: Any) -> tuple[str, str]:
    """Return the text and the thought of a message's content, which may be a list of parts.

    Raises:
        ValueError: it is neither a text, nor null, nor a list of parts.
    """
    if content is None or isinstance(content, str):
        return (content or "").strip(), ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ValueError("content that is no text")
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        is_thought = part.get("type") in THOUGHT_PARTS
        inner = part.get("thinking") if is_thought else part.get("text")
        if isinstance(inner, list):  # Mistral: a thought is a list of parts itself
            inner = _texts_of(inner)[0]
        inner = inner or part.get("text")
        if isinstance(inner, str):
            (thoughts if is_thought else texts).append(inner)
    return "".join(texts).strip(), "".join(thoughts).strip()


def _tool_calls(choice: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    message = choice.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not calls:
        return ()
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ValueError("malformed tool_calls")
    return tuple(calls)


def _chunk_of(piece: Any) -> dict[str, Any]:
    """Validate a piece of a stream, and return it as plain values."""
    # OpenAI's client builds chunks without validation.
    chunk = piece.model_dump(warnings=False) if isinstance(piece, BaseModel) else None
    choices = chunk.get("choices") or [] if isinstance(chunk, dict) else None
    if not isinstance(choices, list) or not all(map(_is_choice, choices)):
        raise ValueError("a malformed piece of a stream")
    return chunk or {}


def _is_choice(choice: Any) -> bool:
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta") or {}
    return isinstance(delta, dict) and isinstance(delta.get("content") or "", str)


@contextmanager
def _connection(
    endpoint: Endpoint, key: str | None
) -> Iterator[tuple[BlockingPortal, server.Deployment]]:
    """Open a connection, and an event loop in a thread to use it; close both with the block."""
    client = server.Deployment(endpoint, key)
    with start_blocking_portal("asyncio", name=f"endpoint {client.address}") as portal:
        try:
            yield portal, client
        finally:
            portal.call(client.close)
