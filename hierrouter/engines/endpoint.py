"""The openai engine: models that an OpenAI-compatible server answers for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from httpx2 import TransportError
from openai import APIError, AsyncOpenAI, DefaultAsyncHttpxClient, Timeout
from transformers import AutoTokenizer

from hierrouter.engines.endpoint_failures import (
    OTHER_LIMIT,
    TICK_S,
    Again,
    Broken,
    Count,
    GaveUp,
    NotThere,
    OtherLimit,
    Patience,
    Reader,
    Stopped,
    Unexpected,
    Unreachable,
    meaning,
    timed_out,
)
from hierrouter.engines.generator import Answer, Failure, Outage, Stop, never, prompt_tokens
from hierrouter.engines.identity import endpoint_of, named_folder, served_identity
from hierrouter.pools.pool import Endpoint, Identity, ModelSpec, is_loopback
from hierrouter_cache.errors import WorldError, reason_of
from hierrouter_cache.keys import digest

CONNECT_S = 10.0
HIDDEN = "***"
SHORTEST_SECRET = 8
T = TypeVar("T")
# The body of what comes in pieces; the text is told on the way.
Gather = Callable[[AsyncIterator[Any], Callable[[str], None]], Awaitable[str]]


class Client:
    """A server with a connection pool; made and closed by `session`.

    Args:
        endpoint: where it is.
        key: sent as bearer token where there is one; hidden in all that the server says.
    """

    def __init__(self, endpoint: Endpoint, key: str | None) -> None:
        self.address = endpoint.address
        self._timeout_s = endpoint.timeout_s
        # A word such as "none", for servers that want any key, is no secret and may be an answer.
        self._secret = key if key and len(key) >= SHORTEST_SECRET and not key.isalpha() else None
        self._openai = _client(endpoint, key or "none")

    async def complete(self, request: dict[str, Any]) -> str | Failure:
        """The body of one chat completion, or why this prompt has none.

        Raises:
            Again, Busy, OtherLimit, Outage: see `refusals`.
        """
        create = self._openai.chat.completions.with_raw_response.create
        return await self._body(lambda: create(**request), self._timeout_s)

    async def stream(
        self, request: dict[str, Any], gather: Gather, on_text: Callable[[str], None]
    ) -> str | Failure:
        """As `complete`, the text handed on as it comes.

        Args:
            gather: puts the body together from all pieces.
            on_text: told what comes next of the answer.

        Raises:
            Again, Busy, OtherLimit, Outage: as `complete`; perhaps after a part of the answer.
        """
        create = self._openai.chat.completions.create
        whole = {**request, "stream": True, "stream_options": {"include_usage": True}}

        async def send() -> str:
            async with await create(**whole) as pieces:
                return await gather(pieces, lambda text: on_text(self._hidden(text)))

        body = await self._sent(send, self._timeout_s)
        return body if isinstance(body, Failure) else self._hidden(body)

    async def list_models(self, longest_s: float) -> str | Failure:
        """The body of the list of models; the errors are those of `complete`."""
        return await self._body(
            self._openai.models.with_raw_response.list, min(self._timeout_s, longest_s)
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._openai.close()

    async def _body(self, send: Callable[[], Awaitable[Any]], timeout_s: float) -> str | Failure:
        raw = await self._sent(send, timeout_s)
        if isinstance(raw, Failure):
            return raw
        return self._hidden(raw.content.decode("utf-8-sig", "replace"))

    async def _sent(self, send: Callable[[], Awaitable[T]], timeout_s: float) -> T | Failure:
        try:
            with anyio.fail_after(timeout_s):
                return await send()
        except TimeoutError:
            raise timed_out(self.address, timeout_s) from None
        except APIError as error:
            found = meaning(error, self.address, self._hidden)
            if isinstance(found, Failure):
                return found
            raise found from None
        except TransportError as error:  # in the middle of an answer
            raise Again(f"{self.address}: {type(error).__name__}: {error}") from None
        except ValueError:  # a piece of a stream
            raise Again(f"unexpected answer from {self.address}: broken JSON") from None

    def _hidden(self, text: str) -> str:
        return text.replace(self._secret, HIDDEN) if self._secret else text


@contextmanager
def session(endpoint: Endpoint, key: str | None) -> Iterator[tuple[BlockingPortal, Client]]:
    """A client and an event loop in a thread of its own to run it in; both gone afterwards."""
    client = Client(endpoint, key)
    with start_blocking_portal("asyncio", name=f"endpoint {client.address}") as portal:
        try:
            yield portal, client
        finally:
            portal.call(client.close)


def _client(endpoint: Endpoint, key: str) -> AsyncOpenAI:
    timeout = Timeout(None, connect=min(CONNECT_S, endpoint.timeout_s))
    client = AsyncOpenAI(
        api_key=key,
        admin_api_key="",
        base_url=endpoint.base_url,
        max_retries=0,
        timeout=timeout,
        default_headers={"Authorization": f"Bearer {key}"},
        http_client=DefaultAsyncHttpxClient(
            follow_redirects=False,
            timeout=timeout,
            # No proxy leads back to this machine.
            trust_env=not is_loopback(urlsplit(endpoint.base_url).hostname or ""),
        ),
    )
    client.organization = client.project = None  # else from the environment
    return client


LISTING_S = 30.0  # whatever time a completion may take
ATTEMPTS = 2
NAMED = 5  # models of a server, in a message


async def require_served(client: Client, model: str) -> None:
    """Ask for the list of models; a server that has none is not asked further.

    Raises:
        Outage: there is no server, it refuses the key, or this model is not on its list.
    """
    ask = partial(_listed, client)
    patience = Patience(ATTEMPTS, ATTEMPTS + 1, never, ask)
    try:
        names = await patience.tried(ask)
    except GaveUp as error:
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


async def _listed(client: Client) -> list[str]:
    """Names of the served models; empty where the server does not tell."""
    try:
        body = await client.list_models(LISTING_S)
    except (NotThere, Broken):  # `transformers serve` breaks here where it has no hub cache
        return []
    except Unreachable as error:
        raise Outage(f"{error}; start the server, or correct base_url") from None
    if not isinstance(body, str):
        return []
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        raise Outage(
            f"unexpected answer from {client.address}: no JSON; is base_url right "
            "(it often ends in /v1)?"
        ) from None
    entries = parsed.get("data") if isinstance(parsed, dict) else None
    listed = entries if isinstance(entries, list) else []
    found = [entry.get("id") for entry in listed if isinstance(entry, dict)]
    return [name for name in found if isinstance(name, str)]


def counter(tokenizer: str, place: str) -> Count:
    """What counts with this tokenizer and its chat template.

    Args:
        tokenizer: folder, hub id or `testbed:NAME`.
        place: whose it is, for messages.

    Raises:
        WorldError: it cannot be loaded, or has no chat template.
        RuntimeError: what it returns, where the template fails.
    """
    source = str(named_folder(ModelSpec(place, tokenizer)) or tokenizer)
    try:
        loaded = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = reason_of(error)
        raise WorldError(
            f"cannot load tokenizer {tokenizer}: {place}: {reason}; name another"
        ) from error
    if loaded.chat_template is None:
        raise WorldError(f"tokenizer {tokenizer} has no chat template: {place}; name another")

    def count(prompt: str, text: str, ended: bool) -> tuple[int, int]:
        shown = prompt_tokens(loaded, prompt)
        said = loaded(text, add_special_tokens=False)["input_ids"]
        return len(shown), len(said) + ended  # the end token counts too

    return count


PROBE = "Say OK."  # what tells a server that is out from prompts that never work
LIMIT = "max_tokens"

# A request to the body of its completion, or why there is none.
Send = Callable[[dict[str, Any]], Awaitable[str | Failure]]


class Caller:
    """How one model of one server is asked.

    Args:
        spec: its served name and decoding settings.
        endpoint: the server.

    Raises:
        WorldError: the tokenizer that is to count cannot be loaded.
    """

    def __init__(self, spec: ModelSpec, endpoint: Endpoint) -> None:
        self._model = spec.model
        self._generation = spec.generation
        self._limit = LIMIT
        answers_as = endpoint.answers_as or spec.model
        self._reader = Reader(answers_as, spec.revision or "main", _counter(spec, endpoint))

    async def complete(self, client: Client, prompt: str) -> Answer:
        """What one attempt gives.

        Raises:
            Again, Busy, Refused, Outage: see `refusals`.
            RuntimeError: another model answers, or answers come without token counts.
        """
        return await self._asked(prompt, client, client.complete)

    async def stream(self, client: Client, prompt: str, on_text: Callable[[str], None]) -> Answer:
        """What one attempt gives, handed on as it comes.

        Args:
            on_text: told what comes next of the answer.

        Raises:
            Again, Busy, Refused, Outage: see `refusals`; perhaps after a part of the answer.
            RuntimeError: as `complete`.
        """

        async def send(request: dict[str, Any]) -> str | Failure:
            return await client.stream(request, self._reader.gather, on_text)

        return await self._asked(prompt, client, send)

    def count(self, prompt: str) -> int | None:
        """Tokens of a prompt, where a tokenizer is named."""
        return self._reader.count(prompt, "", True)[0] if self._reader.count else None

    async def probe(self, client: Client) -> None:
        """One attempt at a prompt that no server can mind."""
        answer = await self.complete(client, PROBE)
        if isinstance(answer, Failure):
            raise Again(answer.detail)

    async def _asked(self, prompt: str, client: Client, send: Send) -> Answer:
        """The answer in the body that `send` brings."""
        limit = self._limit
        try:
            body = await send(self._request(prompt, limit))
        except OtherLimit:
            if limit == OTHER_LIMIT:
                raise
            self._limit = OTHER_LIMIT
            return await self._asked(prompt, client, send)
        except Unexpected as error:
            raise _again(client, error) from None
        if isinstance(body, Failure):
            return body
        try:
            return self._reader.read(prompt, body)
        except Unexpected as error:
            raise _again(client, error) from None

    def _request(self, prompt: str, limit: str) -> dict[str, Any]:
        generation = self._generation
        request: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": generation.temperature,
            limit: generation.max_new_tokens,
        }
        if generation.temperature:
            # A seed of its own for each model and prompt: see docs/decisions.md on draws.
            seed = digest(["draw", self._model, generation.seed, prompt])
            request |= {"top_p": generation.top_p, "seed": int(seed[:7], 16)}
        return request


def _again(client: Client, error: Unexpected) -> Again:
    return Again(f"unexpected answer from {client.address}: {error}")


def _counter(spec: ModelSpec, endpoint: Endpoint) -> Count | None:
    if endpoint.tokenizer is None:
        return None

    return counter(endpoint.tokenizer, f"model {spec.name}")


ROUNDS = 2  # of nothing but failed attempts, and the server is doubted


class EndpointBackend:
    """Models that a server answers for."""

    def identify(self, spec: ModelSpec) -> Identity:
        """See `served_identity`; the key must be there, as it will be wanted.

        Raises:
            InputError: no base_url, or no key in the variable that should hold it.
        """
        endpoint_of(spec).key(f"model {spec.name}")
        return served_identity(spec)

    def weight_bytes(self, spec: ModelSpec) -> int:
        """None of this machine's memory."""
        return 0

    def load(self, spec: ModelSpec) -> EndpointGenerator:
        """Ask the server whether it serves this model.

        Raises:
            InputError: see `identify`.
            Outage: it cannot be reached, refuses the key, or serves other models.
            WorldError: the tokenizer that is to count cannot be loaded.
        """
        endpoint = endpoint_of(spec)
        key = endpoint.key(f"model {spec.name}")
        with session(endpoint, key) as (portal, client):
            portal.call(require_served, client, spec.model)
        return EndpointGenerator(spec, endpoint, key)


class EndpointGenerator:
    """One model of one server.

    Args:
        spec: its served name and decoding settings.
        endpoint: the server.
        key: for the server, where it wants one.

    Attributes:
        caller: how it is asked.
    """

    def __init__(self, spec: ModelSpec, endpoint: Endpoint, key: str | None) -> None:
        self._endpoint = endpoint
        self._key = key
        self.caller = Caller(spec, endpoint)

    def generate(self, prompts: Sequence[str], stop: Stop = never) -> Iterator[tuple[int, Answer]]:
        """The answers as they come.

        Once `stop()` is true, what the server is answering is still delivered; a call that waits
        for its next attempt is not made. Closing the iterator cancels what is under way.

        Raises:
            Outage: the server gives nothing but failures; what was under way is delivered before.
            RuntimeError: another model answers, or answers come without token counts.
        """
        stopping = Event()
        width = min(self._endpoint.concurrency, len(prompts))
        due = iter(enumerate(prompts))
        pending: dict[Future[Answer | None], int] = {}
        outage: Outage | None = None
        with session(self._endpoint, self._key) as (portal, client):
            call = partial(self._answer, client, self._patience(client, stopping, width))
            try:
                while True:
                    over = outage is not None or stop()
                    while not over and len(pending) < width and (item := next(due, None)):
                        pending[portal.start_task_soon(call, item[1])] = item[0]
                        over = stop()
                    if over:
                        stopping.set()
                    if not pending:
                        break
                    try:
                        yield from _finished(pending)
                    except Outage as error:
                        outage = outage or error
            finally:
                for future in pending:
                    future.cancel()
        if outage:
            raise outage

    def _patience(self, client: Client, stopping: Event, callers: int) -> Patience:
        probe = partial(self.caller.probe, client)
        attempts = self._endpoint.attempts
        # One call alone, failing at every attempt, is no outage.
        failures = max(ROUNDS * callers, attempts + 1)
        return Patience(attempts, failures, stopping.is_set, probe)

    async def _answer(self, client: Client, patience: Patience, prompt: str) -> Answer | None:
        """The final answer to one prompt; None where the collection stops without one."""
        try:
            return await patience.tried(partial(self.caller.complete, client, prompt))
        except GaveUp as error:
            return Failure("error", str(error))
        except Stopped:
            return None


def _finished(pending: dict[Future[Answer | None], int]) -> Iterator[tuple[int, Answer]]:
    """Take out what is finished by now, or soon; an error comes after the answers."""
    done, _ = wait(pending, TICK_S, FIRST_COMPLETED)
    for future in sorted(done, key=lambda each: each.exception() is not None):
        place = pending.pop(future)
        answer = future.result()
        if answer is not None:
            yield place, answer
