"""The connection to a server, and what its errors mean.

`Client` calls one server and translates every failure into one of the errors below. What follows
from them is decided in `hierrouter.engines.health`:

    error           what happened                              what `Patience` does there
    TransientError  this attempt failed, another may succeed   makes a further attempt
    ServerBusy      the server takes no calls at the moment    lets all callers wait, and repeats it
    Refusal         this prompt has no answer                  gives up the prompt
    Outage          the server answers no prompt at all        gives up the server
    Cancellation    the collection was stopped during a wait   (raised by `Patience` itself)
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from math import isfinite
from time import perf_counter
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
from aiolimiter import AsyncLimiter
from httpx2 import TransportError
from httpx2._decoders import SUPPORTED_DECODERS
from openai import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    Timeout,
)

from hierrouter.engines.addresses import ForbiddenAddress, restrict_connections
from hierrouter.engines.dialects import (
    MAX_COMPLETION_TOKENS_FIELD,
    MAX_TOKENS_FIELD,
    MEMORY,
    THOUGHT_FIELDS,
    Complaint,
    error_text,
    other_url,
    status_in,
)
from hierrouter.engines.generator import CallTime, Outage
from hierrouter.pools.pool import Endpoint, is_loopback

LOGGER = logging.getLogger(__name__)
T = TypeVar("T")
# Joins the pieces of a stream to the body of a completion, and passes on their text meanwhile.
Gather = Callable[[AsyncIterator[Any], Callable[[str], None]], Awaitable[str]]
# Receives an event of a stream, byte for byte, and the value in it.
OnEvent = Callable[[bytes, Any], Awaitable[None]]


@dataclass(frozen=True)
class Reply:
    """The reply to a request.

    Attributes:
        body: of a completion, also if it came as a stream.
        time: that it took, without waiting for limits per minute.
        headers: of the reply; empty for a stream.
    """

    body: str
    time: CallTime
    headers: Mapping[str, str] = field(default_factory=dict)


class TransientError(Exception):
    """This attempt failed; another one may succeed.

    Args:
        detail: an explanation for people.
        needs_probe: whether every other prompt may fail in the same way, so that a harmless prompt
            must be tried before more calls are paid for.
    """

    def __init__(self, detail: str, needs_probe: bool = False) -> None:
        super().__init__(detail)
        self.needs_probe = needs_probe


NO_COMPLAINT = Complaint()


class ServerBusy(Exception):
    """The server takes no calls at the moment, or cannot be reached; it may come back.

    Args:
        detail: an explanation for people.
        wait_s: seconds that the server asks to wait; None if it does not say.
        is_reachable: whether a server answered at all.
    """

    def __init__(self, detail: str, wait_s: float | None = None, is_reachable: bool = True) -> None:
        super().__init__(detail)
        self.wait_s = wait_s
        self.is_reachable = is_reachable


class Refusal(Exception):
    """This prompt has no answer.

    Args:
        detail: an explanation for people.
        status: one of `generator.STATUSES`; "error" if the reason is unknown.
        needs_probe: whether the server may refuse every other prompt as well, so that a harmless
            prompt must be tried.
        complaint: which fields of the request the server refuses.
        may_pass: whether the same request may be answered later.
    """

    def __init__(
        self,
        detail: str,
        status: str = "error",
        needs_probe: bool = False,
        complaint: Complaint = NO_COMPLAINT,
        may_pass: bool = False,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.needs_probe = needs_probe
        self.complaint = complaint
        self.may_pass = may_pass


class Cancellation(Exception):
    """The collection was stopped while a call waited for its next attempt."""


TOKEN_FIELDS = ("content", *THOUGHT_FIELDS, "tool_calls", "refusal")
CONNECT_TIMEOUT_S = 10.0
LISTING_TIMEOUT_S = 30.0  # for the list of models, even if a completion may take longer
KEY_MASK = "***"
MIN_KEY_LENGTH = 8
# How servers say that a prompt is too long: OpenAI, vLLM, llama.cpp, TGI, Ollama and others.
TOO_LONG_PATTERN = re.compile(
    r"context.{0,12}(length|window|size)|maximum.{0,20}context|too many tokens"
    r"|(prompt|input|message|request|sequence|content|text)s?( is| are)? too long"
    r"|max_new_tokens`? must be|exceeds? the (maximum|available|limit)|token count exceeds"
    r"|too large to process|must have less than \d+ tokens|max_tokens must be at least 1",
    re.IGNORECASE,
)
# How servers say that a filter rejected a prompt.
FILTERED_PATTERN = re.compile(
    r"content.?(filter|policy|management)|safety (filter|system|settings)"
    r"|(input|prompt|content|message|request|text)s?.{0,12}flagged",
    re.IGNORECASE,
)
MAX_DETAIL_LENGTH = 150  # characters of a server's message
MAX_SEARCHED_LENGTH = 20_000  # characters of a message that are searched for its reason
# Bounds of a reply, on the wire and unpacked. Long ones are those of streams, whose pieces have
# several hundred bytes a token.
MAX_REPLY_BYTES = 8_000_000
MAX_BYTES_PER_TOKEN = 1_000
DEFAULT_MAX_TOKENS = 32_768  # of a request that states no longest response
MAX_BYTES_PER_TEXT = 200_000  # of an embedding: 8,192 numbers of 24 characters
# Streams of tiny lines would take minutes to read: those of real ones are longer on average.
MIN_BYTES_PER_LINE = 400
REPLY_LIMIT: ContextVar[int] = ContextVar("REPLY_LIMIT", default=MAX_REPLY_BYTES)
BUSY_STATUSES = (429, 503, 529)
RETRYABLE_STATUSES = (408, 409, 425)
AUTHORIZATION_STATUSES = (401, 402)
NOT_FOUND_STATUSES = (404, 405)
KEY_HINT = "is the API key right? api_key_env names its variable"


class Client:
    """One server with a connection pool; for one event loop.

    Args:
        endpoint: the endpoint; its `base_url` is this server's.
        key: the API key; None for a server that needs none.
        limits: of all servers of the endpoint; None for its own.

    Attributes:
        address: the server's address for messages.
    """

    def __init__(self, endpoint: Endpoint, key: str | None, limits: Limits | None = None) -> None:
        self.address = endpoint.address
        self._limits = limits or Limits(endpoint)
        self._timeout_s = endpoint.timeout_s
        # A word such as "none", for servers that want any key, is no secret, and hiding it could
        # change a response.
        is_secret = key is not None and len(key) >= MIN_KEY_LENGTH and not key.isalpha()
        self._secret = key if is_secret else None
        timeout = Timeout(None, connect=min(CONNECT_TIMEOUT_S, endpoint.timeout_s))
        http_client = DefaultAsyncHttpxClient(
            follow_redirects=False,
            timeout=timeout,
            # No proxy leads back to this machine.
            trust_env=not is_loopback(urlsplit(endpoint.base_url).hostname or ""),
        )
        restrict_connections(http_client, endpoint.public_only)
        http_client.event_hooks["response"].append(bound_reply)
        self._stated_url = endpoint.base_url
        self._openai = AsyncOpenAI(
            api_key=key or "none",
            admin_api_key="",
            base_url=MEMORY.url(endpoint.base_url),
            max_retries=0,
            timeout=timeout,
            default_headers={"Authorization": f"Bearer {key or 'none'}"},
            http_client=http_client,
        )
        # OpenAI's client takes both from the environment; another server must not see them.
        self._openai.organization = None
        self._openai.project = None

    async def complete(self, request: dict[str, Any]) -> Reply:
        """Request one chat completion.

        Args:
            request: the body of the request.

        Returns:
            The reply.

        Raises:
            TransientError: see the module.
            ServerBusy: see the module.
            Refusal: see the module.
            Outage: see the module.
        """
        await self._limits.wait(request)
        with self._translated_errors(self._timeout_s, reply_limit(request)):
            create = self._openai.chat.completions.with_raw_response.create
            reply = await self._at_known_url(lambda: create(**_as_arguments(request)))
            # From the request on the wire to the last byte, without the work of OpenAI's client.
            seconds = reply.elapsed.total_seconds()
            return Reply(self._body_of(reply), CallTime(seconds), reply.headers)

    async def stream(
        self, request: dict[str, Any], gather: Gather, on_text: Callable[[str], None]
    ) -> Reply:
        """Request one chat completion as a stream.

        Args:
            request: the body of the request; `stream` is added.
            gather: joins the pieces of the stream to a body, and calls `on_text`.
            on_text: called with each further piece of the text.

        Returns:
            The reply, with the body that `gather` returns.

        Raises:
            TransientError: see the module; perhaps after a part of the text, as all of these.
            ServerBusy: see the module.
            Refusal: see the module.
            Outage: see the module.
            ValueError: as `gather`.
            RuntimeError: as `gather`.
        """
        await self._limits.wait(request)
        arguments = _as_arguments({**request, "stream": True})
        started = perf_counter()
        first_token_s: float | None = None

        async def timed(pieces: AsyncIterator[Any]) -> AsyncIterator[Any]:
            nonlocal first_token_s
            async for piece in pieces:
                if first_token_s is None and _has_token(piece):
                    first_token_s = perf_counter() - started
                yield piece

        create = self._openai.chat.completions.create
        with self._translated_errors(self._timeout_s, reply_limit(request)):
            async with await self._at_known_url(lambda: create(**arguments)) as pieces:
                body = await gather(timed(pieces), lambda text: on_text(self._mask_secret(text)))
        seconds = perf_counter() - started
        return Reply(self._mask_secret(body), CallTime(seconds, first_token_s))

    async def pass_on(self, request: dict[str, Any], on_event: OnEvent) -> None:
        """Request one chat completion as a stream, and pass its events on as they come.

        Args:
            request: the body of the request; `stream` is added.
            on_event: receives each event, byte for byte, and the JSON value in it: None if it has
                none, such as a comment; `DONE` at the end. The stream waits for it.

        Raises:
            TransientError: see the module; perhaps after some events, as all of these. Also if the
                stream ends without `DONE` and without a reason why the answer ends.
            ServerBusy: see the module.
            Refusal: see the module.
            Outage: see the module.
        """
        await self._limits.wait(request)
        arguments = _as_arguments({**request, "stream": True})
        create = self._openai.chat.completions.create
        has_end = False
        with self._translated_errors(self._timeout_s, reply_limit(request)):
            async with await self._at_known_url(lambda: create(**arguments)) as pieces:
                kind = pieces.response.headers.get("content-type", "")
                if "json" in kind or "html" in kind:
                    raise Refusal(f"{self.address} sends no stream, but {kind:.40}")
                async for event in _events(pieces.response.aiter_bytes()):
                    value = _value_of(event)
                    if isinstance(value, dict) and value.get("error") and not value.get("choices"):
                        raise self._translate_event(value["error"])
                    has_end = has_end or value == DONE or _has_finished(value)
                    await on_event(self._mask_secret_bytes(event), value)
        if not has_end:
            raise TransientError(f"connection to {self.address} was cut: the stream has no end")

    async def embed(self, request: dict[str, Any]) -> str:
        """Request embeddings.

        Args:
            request: the body of the request.

        Returns:
            The body of the reply.

        Raises:
            TransientError: see the module.
            ServerBusy: see the module.
            Refusal: see the module.
            Outage: see the module.
        """
        await self._limits.wait(request)
        limit = MAX_REPLY_BYTES + MAX_BYTES_PER_TEXT * len(request["input"])
        with self._translated_errors(self._timeout_s, limit):
            create = self._openai.embeddings.with_raw_response.create
            return self._body_of(await self._at_known_url(lambda: create(**request)))

    async def list_models(self) -> str | None:
        """Request the list of models.

        Returns:
            The body of the reply; None if the server has no list, or fails to make one.

        Raises:
            TransientError: see the module.
            ServerBusy: see the module.
            Refusal: see the module.
            Outage: see the module.
        """
        list_models = self._openai.models.with_raw_response.list
        with self._translated_errors(min(self._timeout_s, LISTING_TIMEOUT_S)):
            try:
                return self._body_of(await self._at_known_url(list_models))
            except APIStatusError as error:
                # `transformers serve` fails here on a machine without a hub cache.
                status = error.status_code
                if status in NOT_FOUND_STATUSES or is_server_fault(status):
                    return None
                raise

    async def close(self) -> None:
        """Close all connections."""
        await self._openai.close()

    async def _at_known_url(self, request: Callable[[], Awaitable[T]]) -> T:
        """Make a request; if the route is not there, make it where a base_url should have led.

        Args:
            request: makes one request.

        Returns:
            The reply. If it is from the other address, later requests go there at once.
        """
        url = other_url(self._stated_url)
        current_url = str(self._openai.base_url)
        missing: APIStatusError | None = None
        reply: T | None = None
        try:
            reply = await request()
        except APIStatusError as error:
            missing = error
        if missing is None and reply is not None and not _is_page(reply):
            return reply
        is_absent = missing is None or missing.status_code in NOT_FOUND_STATUSES
        if is_absent and url is not None and current_url.rstrip("/") != url:
            other_reply = await self._try_url(url, request)
            if other_reply is not None:
                return other_reply
        if missing is not None:
            raise missing
        assert reply is not None  # a page
        return reply

    async def _try_url(self, url: str, request: Callable[[], Awaitable[T]]) -> T | None:
        """Make a request at another address of the server; None if the route is not there either.

        Raises:
            APIStatusError: the route is there, and refuses the request.
        """
        self._openai.base_url = url
        try:
            reply = await request()
            if not _is_page(reply):
                self._learn_url(url)
                return reply
        except APIStatusError as error:
            if error.status_code not in NOT_FOUND_STATUSES:
                self._learn_url(url)
                raise
        except APIError:
            pass  # the first reply tells more than a cut connection
        self._openai.base_url = MEMORY.url(self._stated_url)
        return None

    def _learn_url(self, url: str) -> None:
        if MEMORY.urls.get(self._stated_url) != url:
            MEMORY.urls[self._stated_url] = url
            path = urlsplit(url).path
            LOGGER.warning(
                "the routes of %s are below %s, as base_url should say", self.address, path
            )

    @contextmanager
    def _translated_errors(
        self, timeout_s: float, max_bytes: int = MAX_REPLY_BYTES
    ) -> Iterator[None]:
        """Limit the block to a time and a reply's size, and translate its errors, see the module.

        Args:
            timeout_s: seconds.
            max_bytes: of the reply, on the wire and unpacked.
        """
        token = REPLY_LIMIT.set(max_bytes)
        try:
            with anyio.fail_after(timeout_s):
                yield
        except TimeoutError:
            message = f"no answer from {self.address}: timed out after {timeout_s:g} s"
            raise TransientError(message) from None
        except ForbiddenAddress as error:
            raise Outage(str(error)) from None
        except APIError as error:
            raise self._translate(error) from None
        except UnreadableReply as error:
            raise Refusal(f"unexpected answer from {self.address}: {error}") from None
        except TransportError as error:  # the connection failed in the middle of a reply
            message = f"{self.address}: {type(error).__name__}: {error}"
            raise TransientError(message) from None
        # A malformed piece of a stream; some JSON is so deep that it cannot be read.
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            message = f"unexpected answer from {self.address}: broken JSON"
            raise TransientError(message) from None
        finally:
            REPLY_LIMIT.reset(token)

    def _body_of(self, reply: Any) -> str:
        return self._mask_secret(reply.content.decode("utf-8-sig", "replace"))

    def _mask_secret(self, text: str) -> str:
        """Mask the API key: some servers quote it in their errors."""
        return text.replace(self._secret, KEY_MASK) if self._secret else text

    def _mask_secret_bytes(self, data: bytes) -> bytes:
        if not self._secret:
            return data
        return data.replace(self._secret.encode(), KEY_MASK.encode())

    def _translate(self, error: APIError) -> Exception:
        """Translate an error of OpenAI's client, see the module."""
        if isinstance(error, APITimeoutError):
            return ServerBusy(f"cannot connect to {self.address}: timed out", is_reachable=False)
        if isinstance(error, APIConnectionError):
            return self._translate_connection_error(error)
        if isinstance(error, APIStatusError):
            return self._translate_status_error(error)
        return self._translate_event(error.body if error.body else error.message)

    def _translate_event(self, body: Any) -> Exception:
        """Translate an error in the middle of a stream, see the module."""
        message = self._message_of(body)
        status = status_in(body)
        if status is None:
            return TransientError(f"{self.address}: {message}")
        return error_of(status, f"{self.address} answered {status}: {message}", body)

    def _translate_connection_error(self, error: APIConnectionError) -> Exception:
        """Tell an unreachable server, which may be restarting, from a cut connection."""
        root_cause: BaseException = error
        while inner := root_cause.__cause__ or root_cause.__context__:
            root_cause = inner
            if isinstance(root_cause, UnreadableReply):
                return Refusal(f"unexpected answer from {self.address}: {root_cause}")
        reason = str(root_cause) or type(root_cause).__name__
        if isinstance(root_cause, OSError) and root_cause.errno and root_cause.errno > 0:
            reason = os.strerror(root_cause.errno)
        reason = self._mask_secret(reason)
        if type(error.__cause__).__name__ == "ConnectError":
            message = f"cannot connect to {self.address}: {reason.lower()}"
            return ServerBusy(message, is_reachable=False)
        return TransientError(f"connection to {self.address} was cut: {reason}")

    def _translate_status_error(self, error: APIStatusError) -> Exception:
        """Translate by HTTP status, and by the server's message if the status leaves it open."""
        status = error.status_code
        headers = error.response.headers
        detail = f"{self.address} answered {status}: {self._message_of(error.body)}"
        if status < 400:
            # The query of the target may hold a secret.
            target = self._mask_secret(headers.get("location", "nowhere").partition("?")[0])
            return Outage(f"{self.address} answered with a redirect, not followed: {target:.80}")
        if status == 429 and error.code == "insufficient_quota":
            return Outage(detail)
        return error_of(status, detail, error.body, wait_of(headers))

    def _message_of(self, body: Any) -> str:
        """Return the server's message, followed by its error code, which may name a filter."""
        text = self._mask_secret(error_text(body))
        return "HTML" if text.startswith("<") else text[:MAX_DETAIL_LENGTH]


def error_of(status: int, detail: str, body: Any, wait_s: float | None = None) -> Exception:
    """Return the error of an HTTP status, and of the message if the status leaves it open.

    Args:
        status: of the reply, from 400 on, or named by an error that came with status 200.
        detail: an explanation for people.
        body: of the error, not validated.
        wait_s: seconds that the server asks to wait; None if it does not say.

    Returns:
        The error, see the module.
    """
    if status in AUTHORIZATION_STATUSES:
        return Outage(f"{detail}; {KEY_HINT}")
    if status in BUSY_STATUSES:
        return ServerBusy(detail, wait_s)
    fault = prompt_fault(error_text(body)[:MAX_SEARCHED_LENGTH])
    complaint = Complaint.of(body)
    # Some versions of llama.cpp report a fault of the request with status 500.
    is_refusal = status == 500 and (fault or (complaint.fields and complaint.is_unknown))
    if is_server_fault(status) and not is_refusal:
        return TransientError(detail)
    if fault:
        return Refusal(detail, fault)
    if status in NOT_FOUND_STATUSES:
        return Outage(f"{detail}; is the model there, and base_url right (often .../v1)?")
    if status == 413:
        return Refusal(detail, "too_long")
    if status == 403:
        # Either a filter rejected this prompt, or the key is not allowed to use the model.
        return Refusal(f"{detail}; {KEY_HINT}", needs_probe=True)
    return Refusal(detail, complaint=complaint)


class UnreadableReply(TransportError):
    """A reply is larger than any reply of this kind, or packed in a way that nobody asked for."""


SUPPORTED_ENCODINGS = frozenset(SUPPORTED_DECODERS)


class BoundedDecoder:
    """Unpacks a reply piece by piece, and stops at a bound.

    A megabyte of gzip may hold a gigabyte of text; so the bytes are counted before they are kept.

    Args:
        decoder: unpacks the reply.
        limit: bytes, on the wire and unpacked.
        max_lines: of a stream; None for a reply in one piece.
    """

    def __init__(self, decoder: Any, limit: int, max_lines: int | None) -> None:
        self._decoder = decoder
        self._limit = limit
        self._max_lines = max_lines
        self._received = 0
        self._unpacked = 0
        self._lines = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Unpack the next bytes.

        Args:
            data: as they came over the wire.

        Yields:
            Pieces of the body.

        Raises:
            UnreadableReply: there are more bytes than allowed.
        """
        self._received += len(data)
        self._check(self._received)
        for piece in self._decoder.decode(data):
            self._unpacked += len(piece)
            self._check(self._unpacked)
            if self._max_lines is not None:
                self._lines += piece.count(b"\n") + piece.count(b"\r")
                if self._lines > self._max_lines:
                    raise UnreadableReply(f"more than {self._max_lines:,} lines, cut off there")
            yield piece

    def flush(self) -> Iterator[bytes]:
        """Yield what the decoder has kept back; see `decode`."""
        for piece in self._decoder.flush():
            self._unpacked += len(piece)
            self._check(self._unpacked)
            yield piece

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise UnreadableReply(f"more than {self._limit / 1e6:,.1f} MB, cut off there")


async def bound_reply(response: Any) -> None:
    """Bound the size of a reply that has begun; a hook of an httpx client.

    Args:
        response: an `httpx2.Response` whose body is not read yet; it is changed in place.

    Raises:
        UnreadableReply: the body is packed in a way that nobody asked for.
    """
    codings = response.headers.get("content-encoding", "").lower().replace(",", " ").split()
    unknown = [coding for coding in codings if coding not in SUPPORTED_ENCODINGS]
    if unknown:
        raise UnreadableReply(f"packed as {unknown[0]:.20}, which was not asked for")
    limit = REPLY_LIMIT.get()
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    max_lines = limit // MIN_BYTES_PER_LINE if is_stream else None
    response._decoder = BoundedDecoder(response._get_content_decoder(), limit, max_lines)


def reply_limit(request: Mapping[str, Any]) -> int:
    """Return how many bytes the reply to a request for a completion may have."""
    tokens = request.get(MAX_TOKENS_FIELD) or request.get(MAX_COMPLETION_TOKENS_FIELD)
    if not isinstance(tokens, int):
        tokens = DEFAULT_MAX_TOKENS
    choices = request.get("n")
    count = choices if isinstance(choices, int) else 1
    return MAX_REPLY_BYTES + MAX_BYTES_PER_TOKEN * max(tokens, 0) * max(count, 1)


EVENT_END_PATTERN = re.compile(rb"\r?\n\r?\n|\r\r")
DONE = "[DONE]"  # the data of the last event of a stream


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Divide the bytes of a stream of server-sent events into events, each with its blank line.

    Args:
        pieces: of the stream, however they are divided.
    """
    buffer = b""
    async for piece in pieces:
        searched = max(len(buffer) - 3, 0)  # the end of an event may be divided, too
        buffer += piece
        start = 0
        while end := EVENT_END_PATTERN.search(buffer, max(start, searched)):
            yield buffer[start : end.end()]
            start = end.end()
        buffer = buffer[start:]
    if buffer.strip():  # the blank line after the last event is missing
        yield buffer.rstrip() + b"\n\n"


def _value_of(event: bytes) -> Any:
    """Return the JSON value in an event, or `DONE`; None without one."""
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    data = b"\n".join(lines).decode("utf-8", "replace")
    if data == DONE:
        return DONE
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _has_finished(value: Any) -> bool:
    """Return whether a piece of a stream, which is not validated, says why the answer ends."""
    choices = value.get("choices") if isinstance(value, dict) else None
    if not isinstance(choices, list):
        return False
    return any(isinstance(choice, dict) and choice.get("finish_reason") for choice in choices)


BURST_S = 1.0  # how many seconds of a limit per minute may be used at once


class Limits:
    """The rate limits of an endpoint, which all its servers share.

    Args:
        endpoint: has the limits.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._request_limiter = _make_limiter(endpoint.requests_per_minute)
        self._token_limiter = _make_limiter(endpoint.tokens_per_minute)

    async def wait(self, request: dict[str, Any]) -> None:
        """Wait until the limits per minute allow a request."""
        if self._request_limiter:
            await self._request_limiter.acquire()
        if self._token_limiter:
            tokens = _estimate_tokens(request)
            # A limiter never grants more than its burst.
            await self._token_limiter.acquire(min(tokens, self._token_limiter.max_rate))


def _is_page(reply: Any) -> bool:
    """Tell whether a reply, which may be a stream, is HTML."""
    content = getattr(reply, "content", b"")
    return isinstance(content, bytes) and content.lstrip()[:1] == b"<"


def _has_token(piece: Any) -> bool:
    """Tell whether a piece of a stream, which is not validated, brings text or a thought."""
    choices = getattr(piece, "choices", None)
    if not isinstance(choices, list):
        return False
    deltas = (getattr(choice, "delta", None) for choice in choices)
    return any(getattr(delta, name, None) for delta in deltas for name in TOKEN_FIELDS)


def _as_arguments(request: dict[str, Any]) -> dict[str, Any]:
    """Turn a body into arguments of OpenAI's client, which lacks some servers' parameters."""
    declared = ("model", "messages", "stream")
    arguments = {name: request[name] for name in declared if name in request}
    extra_body = {name: value for name, value in request.items() if name not in declared}
    return {**arguments, "extra_body": extra_body}


def _make_limiter(per_minute: float | None) -> AsyncLimiter | None:
    if per_minute is None:
        return None
    burst = max(per_minute * BURST_S / 60, 1.0)
    return AsyncLimiter(burst, 60 * burst / per_minute)


def _estimate_tokens(request: dict[str, Any]) -> float:
    """Estimate the tokens of a request: four characters a token, and the longest response."""
    texts = request.get("input") or [message.get("content") for message in request["messages"]]
    characters = len(json.dumps(texts))
    max_tokens = request.get("max_tokens") or request.get("max_completion_tokens") or 0
    return characters / 4 + float(max_tokens)


def is_server_fault(status: int) -> bool:
    """Tell whether an HTTP status says that the server itself failed, and may work again."""
    return status in RETRYABLE_STATUSES or (status >= 500 and status not in BUSY_STATUSES)


def prompt_fault(message: str) -> str | None:
    """Return the fault of a prompt that a server's message describes.

    Args:
        message: of the server.

    Returns:
        "too_long" or "filtered", as in `generator.STATUSES`; None if it describes neither.
    """
    if TOO_LONG_PATTERN.search(message):
        return "too_long"
    return "filtered" if FILTERED_PATTERN.search(message) else None


def wait_of(headers: Mapping[str, str]) -> float | None:
    """Return how long a busy server asks to wait.

    Args:
        headers: of its reply.

    Returns:
        Seconds; None if it does not say.
    """
    milliseconds = parse_retry_after(headers.get("retry-after-ms", ""))
    if milliseconds is not None:  # OpenAI and Azure
        return milliseconds / 1000
    return parse_retry_after(headers.get("retry-after", ""), headers.get("date", ""))


def parse_retry_after(retry_after: str, date: str = "") -> float | None:
    """Parse the header Retry-After.

    Args:
        retry_after: a number of seconds, or a date by the server's clock.
        date: the header Date, by the same clock, which may differ from that of this machine.

    Returns:
        The seconds to wait; None if it is neither.
    """
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            moment = parsedate_to_datetime(retry_after).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
        try:
            now = parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError, OSError):
            now = time.time()
        seconds = moment - now
    return max(seconds, 0.0) if isfinite(seconds) else None
