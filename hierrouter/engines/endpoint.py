"""The openai engine: models on an OpenAI-compatible server.

From top to bottom: `EndpointBackend` checks that the server has a model; `EndpointGenerator` keeps
many calls under way at once; `Caller` makes one attempt at one call. All differences between
servers (vLLM, llama.cpp, TGI, Ollama, `transformers serve`, hosted ones) are in
`hierrouter.engines.dialects`. The connection and what its errors mean are in
`hierrouter.engines.endpoint_client`, and which server gets a call and how often it is tried in
`hierrouter.engines.health`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
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
from hierrouter.engines.bills import USAGE_FIELDS, Bill, read_usage, usage_in, usage_text
from hierrouter.engines.dialects import (
    LOGPROBS_FIELD,
    MAX_COMPLETION_TOKENS_FIELD,
    MAX_TOKENS_FIELD,
    MEMORY,
    NEUTRAL_DRAWS,
    NEUTRAL_PENALTIES,
    STREAM_OPTIONS_FIELD,
    THOUGHT_FIELDS,
    Complaint,
    Dialect,
    ReportedError,
    content_parts,
    error_in,
    is_listed,
    json_object,
    read_content,
    read_finish,
    tool_calls_of,
)
from hierrouter.engines.generator import (
    NO_OPTIONS,
    Answer,
    CallOptions,
    Confidence,
    Failure,
    Feed,
    IdentityChange,
    Outage,
    Response,
    Stop,
    draw_digest,
    message_of,
    never,
    tokenize_prompt,
)
from hierrouter.engines.health import TICK_S, Deployment, Patience
from hierrouter.engines.identity import endpoint_of, named_folder, served_identity, tokenizer_commit
from hierrouter.hub.repository import quiet_loading
from hierrouter.pools.pool import Endpoint, Generation, Identity, ModelSpec
from hierrouter_cache.errors import WorldError, reason_of
from hierrouter_cache.keys import sound_json, sound_text

LOGGER = logging.getLogger(__name__)


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
        with _connection(endpoint, key, spec.model) as (portal, deployment):
            portal.call(_require_model, deployment, spec.model)
        return EndpointGenerator(spec, endpoint, key)


LISTING_ATTEMPTS = 2
MAX_TIMEOUTS = 2.0  # after this many timeouts no further attempt at a call begins
MAX_LISTED_MODELS = 5  # of a server, in a message


async def _require_model(deployment: Deployment, model: str) -> None:
    """Check that a server lists a model; without a list, the first call will tell."""
    patience = Patience(deployment, LISTING_ATTEMPTS, 1, _list_models)
    try:
        await patience.call_with_retries(partial(_require_listed, model), is_proof=False)
    except server.Refusal as error:
        raise Outage(str(error)) from None


async def _require_listed(model: str, client: server.Client) -> None:
    """Check that one server lists a model, if it has a list."""
    names = await _list_models(client)
    if not names:
        return
    # `transformers serve` lists its models of the hub, but serves folders as well.
    if Path(model).is_absolute():
        return
    if is_listed(model, names):
        return
    close = get_close_matches(model, names, MAX_LISTED_MODELS, 0.0)
    rest = f" and {len(names) - len(close)} more" if len(names) > len(close) else ""
    raise Outage(
        f"model {model} is not served at {client.address}, which serves "
        f"{', '.join(f'{name:.30}' for name in close)}{rest}"
    )


async def _list_models(client: server.Client) -> list[str]:
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
        self._model = spec.model
        self.caller = Caller(spec, endpoint)
        self._generation = spec.generation
        self._identified = MEMORY.identified_dialect(endpoint, spec.model)

    def generate(
        self, prompts: Sequence[str] | Feed, stop: Stop = never, draws: Sequence[int] = ()
    ) -> Iterator[tuple[int, Answer]]:
        """Answer prompts, many at a time. Closing the iterator cancels the calls under way.

        Args:
            prompts: the prompts, or a feed that another thread fills; the iterator ends once the
                feed is closed.
            stop: once it returns true, no further prompt is begun, and calls that wait for their
                next attempt are given up. Calls that the server is answering are finished.
            draws: as `Generator.generate`; a feed has them itself.

        Yields:
            (position, answer) as the answers arrive.

        Raises:
            Outage: the server returns nothing but failures, or nothing but answers of another
                model or without token counts; answers under way are yielded before.
            IdentityChange: as `Caller.complete`.
        """
        max_pending = self._endpoint.concurrency * len(self._endpoint.servers)
        if isinstance(prompts, Feed):
            feed = prompts
        else:
            feed = Feed(prompts, draws)
            feed.close()
            max_pending = min(max_pending, len(prompts))
        stopping = Event()
        pending: dict[Future[Answer | None], int] = {}  # positions by call
        outage: Outage | None = None
        connection = _connection(self._endpoint, self._key, self._model, stopping.is_set)
        with connection as (portal, deployment):
            patience = Patience(
                deployment,
                self._endpoint.attempts,
                max_pending,
                self.caller.probe,
                stopping.is_set,
                budget_s=MAX_TIMEOUTS * self._endpoint.timeout_s,
            )
            try:
                while True:
                    # Cleared before the feed is read, so that no change is missed.
                    feed.changed.clear()
                    is_over = outage is not None or stop()
                    is_last = feed.closed
                    while not is_over and len(pending) < max_pending and (item := feed.take()):
                        position, prompt, draw, generation = item
                        options = CallOptions(draw=draw, generation=generation)
                        settings = generation or self._generation
                        call = partial(
                            self.caller.complete,
                            prompt=prompt,
                            options=options,
                            left_out=self._identified.left_out(settings),
                        )
                        future = portal.start_task_soon(_final_answer, patience, call)
                        pending[future] = position
                        future.add_done_callback(lambda _: feed.changed.set())
                        is_over = stop()
                    if is_over:
                        stopping.set()
                    if feed.cancelled or (not pending and (is_over or is_last)):
                        break
                    feed.changed.wait(TICK_S)
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
    patience: Patience, call: Callable[[server.Client], Awaitable[Answer]]
) -> Answer | None:
    """Return the answer to one prompt after all attempts; None if the collection was stopped."""
    try:
        return await patience.call_with_retries(call)
    except server.Refusal as error:
        return Failure("error", str(error), is_refused=not error.may_pass)
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


class UnusableReply(Exception):
    """A reply cannot be used, and those to all other prompts may be like it.

    Another model answers, or nobody knows what the call costs.
    """


class Caller:
    """Makes one attempt at a call of one model, and reads the reply.

    `complete` runs through these methods, in this order. To support a server with another dialect,
    override the method whose step differs:

        request_body   the prompt and options as the body of a request
        adapt          what the server refuses is left out of later requests
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
        self._name = spec.name
        self._model = spec.model
        self._generation = spec.generation
        self._endpoint = endpoint
        self._is_proven = False  # whether an answer of this model could be used
        name = endpoint.answers_as or spec.model
        # `transformers serve` appends the revision to the name.
        self._model_names = (name, f"{name}@{spec.revision or 'main'}")
        self._tokenizer = _load_tokenizer(spec, endpoint.tokenizer) if endpoint.tokenizer else None

    @property
    def dialect(self) -> Dialect:
        """What is known about the server's dialect."""
        return MEMORY.dialect(self._endpoint, self._model)

    async def complete(
        self,
        client: server.Client,
        prompt: str,
        on_text: Callable[[str], None] | None = None,
        options: CallOptions = NO_OPTIONS,
        left_out: tuple[str, ...] | None = None,
    ) -> Answer:
        """Make one attempt at one call.

        Args:
            client: the connection.
            prompt: the prompt's text.
            on_text: called with each further piece of the text while it arrives; None to request
                the response at once.
            options: of the user's client.
            left_out: the settings without which the identity of the model, or of its action, says
                that it answers; None if the answer is not stored under an identity.

        Returns:
            The answer.

        Raises:
            TransientError: see `hierrouter.engines.endpoint_client`; with `on_text`, perhaps after
                a part of the text, as all of these.
            ServerBusy: likewise.
            Refusal: likewise.
            Outage: likewise.
            IdentityChange: the server refuses a setting that is not among those left out.
        """
        dialect = self.dialect  # other calls may change it before this one is refused
        refused = dialect.left_out(options.generation or self._generation)
        if left_out is not None and left_out != refused:
            raise IdentityChange(self._name, client.address, refused)
        request = self.request_body(prompt, options, dialect)
        has_begun = False

        def follow(text: str) -> None:
            nonlocal has_begun
            has_begun = True
            if on_text:
                on_text(text)

        try:
            if on_text and self.can_stream(dialect):
                if STREAM_OPTIONS_FIELD not in dialect.refused:
                    request[STREAM_OPTIONS_FIELD] = {"include_usage": True}
                reply = await client.stream(request, self.gather_stream, follow)
            else:
                reply = await client.complete(request)
            answer = self.read_reply(prompt, reply, request)
        except server.Refusal as refusal:
            if refusal.status != "error":
                return Failure(refusal.status, str(refusal))
            # Text that was passed on cannot be taken back.
            if has_begun or not self.adapt(dialect, refusal.complaint, request, client.address):
                raise
        except ReportedError as error:
            status = error.status
            detail = error.message[: server.MAX_DETAIL_LENGTH]
            message = f"{client.address} answered an error: {detail}"
            fault = server.prompt_fault(error.message)
            if fault:
                return Failure(fault, detail)
            if has_begun or status is None:
                raise server.TransientError(message) from None
            failure = server.error_of(status, message, error.body)
            is_refusal = isinstance(failure, server.Refusal)
            if not is_refusal or not self.adapt(
                dialect, Complaint.of(error.body), request, client.address
            ):
                raise failure from None
        except UnusableReply as error:
            if has_begun and not self._is_proven:
                self._learn(replace(dialect, streams_usage=False), client.address)
            raise server.TransientError(str(error), needs_probe=not self._is_proven) from None
        except ValueError as error:
            message = f"unexpected answer from {client.address}: {error}"
            raise server.TransientError(message) from None
        else:
            self._is_proven = self._is_proven or isinstance(answer, Response)
            if not isinstance(answer, Response):
                return answer
            if on_text and not has_begun and answer.text:
                on_text(answer.text)  # it came in one piece
            return replace(answer, time=reply.time)
        return await self.complete(client, prompt, on_text, options, left_out)

    def can_stream(self, dialect: Dialect) -> bool:
        """Tell whether a stream of the server tells what it costs, or a tokenizer counts.

        Args:
            dialect: of the server.
        """
        is_counted = dialect.streams_usage and STREAM_OPTIONS_FIELD not in dialect.refused
        return is_counted or self._tokenizer is not None

    async def probe(self, client: server.Client) -> None:
        """Make one attempt at a prompt that no server can mind.

        Args:
            client: the connection.

        Raises:
            TransientError: the server has no response, or as `complete`.
            ServerBusy: as `complete`.
            Refusal: as `complete`.
            Outage: as `complete`.
        """
        answer = await self.complete(client, PROBE_PROMPT)
        if isinstance(answer, Failure):
            raise server.TransientError(answer.detail)

    def request_body(self, prompt: str, options: CallOptions, dialect: Dialect) -> dict[str, Any]:
        """Write the body of a request.

        Args:
            prompt: the prompt's text.
            options: of the user's client; its settings override those of the pool.
            dialect: of the server; the body has no field that it refuses.

        Returns:
            The body.
        """
        generation = options.generation or self._generation
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
        if "tools" not in settings:
            request[LOGPROBS_FIELD] = True
        # A client may use either name; the server may accept one only.
        for name in (MAX_TOKENS_FIELD, MAX_COMPLETION_TOKENS_FIELD):
            if name in settings:
                request[dialect.max_tokens_field] = settings.pop(name)
        if generation.temperature and not settings.keys() & {"temperature", "top_p", "seed"}:
            # A different seed for each model, draw and prompt: see docs/decisions.md on draws.
            seed = draw_digest(self._model, generation.seed, prompt, options.draw)
            request["top_p"] = generation.top_p
            request["seed"] = int(seed[:7], 16)
        further = generation.further_fields
        request = {**request, **self._fixed_settings(generation), **further, **settings}
        return {name: value for name, value in request.items() if name not in dialect.refused}

    def _fixed_settings(self, generation: Generation) -> dict[str, float]:
        """Return the settings that must not be left to the server's defaults."""
        penalty = generation.repetition_penalty
        settings = {**NEUTRAL_PENALTIES, "repetition_penalty": penalty, "repeat_penalty": penalty}
        return {**settings, **NEUTRAL_DRAWS} if generation.temperature else settings

    def adapt(
        self, dialect: Dialect, complaint: Complaint, request: Mapping[str, Any], address: str
    ) -> bool:
        """Learn from a refusal which fields the server does not accept.

        Args:
            dialect: of the refused request.
            complaint: of the server.
            request: that was refused.
            address: of the server, for messages.

        Returns:
            Whether the call should be made again.
        """
        learned = dialect.after(complaint, request)
        if learned == dialect:
            return False
        self._learn(learned, address)
        return True

    def _learn(self, learned: Dialect, address: str) -> None:
        """Remember a dialect, and say in one line what is new."""
        before = self.dialect
        if not MEMORY.learn(self._endpoint, self._model, learned):
            return
        now = self.dialect
        news = [f"no {name}" for name in sorted(now.refused - before.refused)]
        if now.max_tokens_field != before.max_tokens_field:
            news.append(f"{now.max_tokens_field} in place of {before.max_tokens_field}")
        if now.left_out(self._generation) != before.left_out(self._generation):
            news.append("so its answers are kept apart from those with that setting")
        if self.can_stream(before) and not self.can_stream(now):
            news.append("so its answers come in one piece, as its streams have no token counts")
        LOGGER.warning("model %s at %s accepts %s", self._name, address, ", ".join(news))

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
            UnusableReply: another model answers; `on_text` has not been called.
        """
        texts: list[str] = []
        logprobs: list[Any] = []
        body: dict[str, Any] = {}
        choice: dict[str, Any] = {}
        further: dict[str, str] = {}  # texts of the fields beside the content
        async for piece in pieces:
            chunk = _chunk_of(piece)
            for name in ("model", "error", *USAGE_FIELDS):
                if chunk.get(name):
                    body[name] = chunk[name]
            for chunk_choice in chunk.get("choices") or ():
                if chunk_choice.get("index"):  # the first one of several
                    continue
                for name in ("finish_reason", "usage", "error"):
                    if chunk_choice.get(name):
                        choice[name] = chunk_choice[name]
                logprobs += _logprobs(chunk_choice)
                delta = chunk_choice.get("delta") or {}
                text, thought = content_parts(delta.get("content"))
                text = sound_text(text)
                if text:
                    self.check_model(body.get("model"))
                    texts.append(text)
                    on_text(text)
                for name in (*THOUGHT_FIELDS, "refusal"):
                    if isinstance(delta.get(name), str):
                        further[name] = further.get(name, "") + delta[name]
                if thought:
                    further[THOUGHT_FIELDS[0]] = further.get(THOUGHT_FIELDS[0], "") + thought
        if choice or texts:
            choice["message"] = {**further, "content": "".join(texts)}
            choice["logprobs"] = {"content": [{"logprob": logprob} for logprob in logprobs]}
            body["choices"] = [choice]
        return json.dumps(body)

    def read_reply(self, prompt: str, reply: server.Reply, request: Mapping[str, Any]) -> Answer:
        """Read the answer to a prompt out of a reply.

        Args:
            prompt: the prompt's text.
            reply: of the server.
            request: that is replied to.

        Returns:
            The answer. A response may have an empty text, see `read_message`.

        Raises:
            ReportedError: the body holds an error.
            ValueError: the body is no JSON, or lacks a choice, text, reason or model name.
            UnusableReply: another model answers, or there are no token counts.
        """
        completion = json_object(reply.body)
        error = error_in(completion)
        if error:
            raise error
        choices = completion.get("choices")
        if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
            raise ValueError("no choices")
        choice = choices[0]
        self.check_model(completion.get("model"))
        usage = usage_in(completion, reply.headers)
        message = self.read_message(choice, usage, request)
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
            UnusableReply: it names another model.
        """
        if name is None:
            raise ValueError("no name of a model")
        if name not in self._model_names:
            raise UnusableReply(
                f"answers come from {name!r:.50}; if that is the same model, set answers_as"
            )

    def read_message(
        self, choice: dict[str, Any], usage: Any, request: Mapping[str, Any]
    ) -> Message:
        """Read the message of a choice.

        A refusal, a response without text, and one that a filter withholds are responses of the
        model, too: it has worked for them, and would give them again.

        Args:
            choice: of a completion.
            usage: the server's counts, not validated.
            request: that is replied to.

        Returns:
            The message.

        Raises:
            ValueError: there is no message, its text is no text, or the reason of the end is
                unknown.
        """
        fields = choice.get("message")
        limit = request.get(MAX_TOKENS_FIELD) or request.get(MAX_COMPLETION_TOKENS_FIELD)
        finish = read_finish(choice.get("finish_reason"), _tokens_out(usage), limit)
        tool_calls = tool_calls_of(fields) if "tools" in request else ()
        if not isinstance(fields, dict):
            raise ValueError("no message")
        text, thought = read_content(fields.get("content"))
        for name in THOUGHT_FIELDS:
            if not thought and isinstance(fields.get(name), str):
                thought = fields[name].strip()
        if "</" in text and thought in text:
            thought = ""  # some servers send it in both fields
        refusal = fields.get("refusal")
        kind = finish.kind
        if isinstance(refusal, str) and refusal.strip() and not text:
            text = refusal.strip()
            kind = "refusal"
        return Message(text, thought, kind, finish.reason, tool_calls)

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
            UnusableReply: the server sends no counts, or impossible ones, and no tokenizer is
                named.
        """
        try:
            bill = read_usage(usage)
        except ValueError as error:
            if self._tokenizer is None:
                raise UnusableReply(f"answers have impossible usage: {error}") from None
            remark = f"the usage is impossible ({error}): the tokenizer counts"
            bill = Bill(usage=usage_text(usage), remarks=(remark,))
        # A server that reports 0 tokens for a text has not counted them.
        if bill.tokens_in and bill.tokens_out is not None and (bill.tokens_out or not text):
            return bill
        if self._tokenizer is None:
            raise UnusableReply("answers come without usage (token counts); name a tokenizer")
        generated = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        end_tokens = 1 if finish == "stop" else 0
        return replace(
            bill,
            tokens_in=len(tokenize_prompt(self._tokenizer, prompt)),
            tokens_out=len(generated) + end_tokens,
        )


def _tokens_out(usage: Any) -> int | None:
    """Return the tokens of a response as a server counts them; None if it does not."""
    try:
        return read_usage(usage).tokens_out
    except ValueError:
        return None


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


def _logprobs(choice: dict[str, Any]) -> list[Any]:
    """Return each token's log-probability as the server sends it; none if it sends none."""
    logprobs = choice.get("logprobs")
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, dict) for token in tokens):
        return []
    return [token.get("logprob") for token in tokens]


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
    return isinstance(choice.get("delta") or {}, dict)


@contextmanager
def _connection(
    endpoint: Endpoint, key: str | None, model: str, is_stopped: Stop = never
) -> Iterator[tuple[BlockingPortal, Deployment]]:
    """Open a connection, and an event loop in a thread to use it; close both with the block."""
    deployment = Deployment(endpoint, key, model, is_stopped)
    with start_blocking_portal("asyncio", name=f"endpoint {deployment.address}") as portal:
        try:
            yield portal, deployment
        finally:
            portal.call(deployment.close)
