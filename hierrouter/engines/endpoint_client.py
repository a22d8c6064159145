"""A server: the connection, what its errors mean, and how all callers wait for it together."""

import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from math import isfinite
from random import Random
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio
from aiolimiter import AsyncLimiter
from httpx2 import TransportError
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
from hierrouter.engines.generator import Outage
from hierrouter.pools.pool import Endpoint, is_loopback

LOG = logging.getLogger(__name__)
T = TypeVar("T")
# Puts a body together from all pieces of a stream; the text is told on the way.
Gather = Callable[[AsyncIterator[Any], Callable[[str], None]], Awaitable[str]]


class TransientError(Exception):
    """This attempt gave nothing; another one may."""


class ServerBusy(Exception):
    """The server takes no calls at the moment, or is not there; it may come back.

    Args:
        wait_s: for how long, where it said that too.
        is_there: whether anybody answered.
    """

    def __init__(self, detail: str, wait_s: float | None = None, is_there: bool = True) -> None:
        super().__init__(detail)
        self.wait_s = wait_s
        self.is_there = is_there


class Refusal(Exception):
    """This prompt has no answer.

    Args:
        status: of `generator.STATUSES`: "error" where we do not know the reason.
        is_doubtful: every other prompt may be refused, too: a harmless one tells.
    """

    def __init__(self, detail: str, status: str = "error", is_doubtful: bool = False) -> None:
        super().__init__(detail)
        self.status = status
        self.is_doubtful = is_doubtful


class Cancellation(Exception):
    """A call that was waiting for its next attempt is made no more."""


CONNECT_S = 10.0
LISTING_S = 30.0  # whatever time a completion may take
HIDDEN = "***"
SHORTEST_SECRET = 8
TOO_LONG_PATTERN = re.compile(
    r"context.{0,12}(length|window|size)|maximum.{0,20}context|too many tokens"
    r"|(prompt|input|message|request|sequence|content|text)s?( is| are)? too long"
    r"|max_new_tokens`? must be|exceeds? the (maximum|available|limit)|token count exceeds"
    r"|too large to process|must have less than \d+ tokens|max_tokens must be at least 1",
    re.IGNORECASE,
)
FILTERED_PATTERN = re.compile(
    r"content.?(filter|policy|management)|safety (filter|system|settings)"
    r"|(input|prompt|content|message|request|text)s?.{0,12}flagged",
    re.IGNORECASE,
)
LONGEST_DETAIL = 150  # characters of what the server says
BUSY = (429, 503, 529)
UNLUCKY = (408, 409, 425)
LOCKED = (401, 402)
MISSING = (404, 405)
KEY_RIGHT = "is the API key right? api_key_env names its variable"


class Client:
    """A server with a connection pool; for one event loop."""

    def __init__(self, endpoint: Endpoint, key: str | None) -> None:
        self.address = endpoint.address
        self._timeout_s = endpoint.timeout_s
        # A word such as "none", for servers that want any key, is no secret and may be an answer.
        self._secret = key if key and len(key) >= SHORTEST_SECRET and not key.isalpha() else None
        timeout = Timeout(None, connect=min(CONNECT_S, endpoint.timeout_s))
        http_client = DefaultAsyncHttpxClient(
            follow_redirects=False,
            timeout=timeout,
            # No proxy leads back to this machine.
            trust_env=not is_loopback(urlsplit(endpoint.base_url).hostname or ""),
        )
        restrict_connections(http_client, endpoint.public_only)
        self._openai = AsyncOpenAI(
            api_key=key or "none",
            admin_api_key="",
            base_url=endpoint.base_url,
            max_retries=0,
            timeout=timeout,
            default_headers={"Authorization": f"Bearer {key or 'none'}"},
            http_client=http_client,
        )
        self._openai.organization = self._openai.project = None  # else from the environment

    async def complete(self, request: dict[str, Any]) -> str:
        """The body of one chat completion.

        Raises TransientError, ServerBusy, Refusal, Outage: what a caller shall do.
        """
        with self._guarded(self._timeout_s):
            create = self._openai.chat.completions.with_raw_response.create
            return self._body(await create(**_named(request)))

    async def stream(
        self, request: dict[str, Any], gather: Gather, on_text: Callable[[str], None]
    ) -> str:
        """As `complete`, the text handed on as it comes.

        Raises TransientError, ServerBusy, Refusal, Outage: as `complete`; perhaps after a part;
        ValueError, RuntimeError: what `gather` raises.

        `gather`: puts the body together from all pieces; the text is told on the way; `on_text`:
        told what comes next of the answer.
        """
        whole = {**request, "stream": True, "stream_options": {"include_usage": True}}
        with self._guarded(self._timeout_s):
            async with await self._openai.chat.completions.create(**_named(whole)) as pieces:
                body = await gather(pieces, lambda text: on_text(self._hidden(text)))
        return self._hidden(body)

    async def embed(self, request: dict[str, Any]) -> str:
        """The body of one request for embeddings; raises Again, Busy, Refused, Outage."""
        with self._guarded(self._timeout_s):
            create = self._openai.embeddings.with_raw_response.create
            return self._body(await create(**request))

    async def list_models(self) -> str | None:
        """The body of the list of models; None where the server has none, or breaks over it.

        Raises TransientError, ServerBusy, Refusal, Outage: as `complete`.
        """
        with self._guarded(min(self._timeout_s, LISTING_S)):
            try:
                return self._body(await self._openai.models.with_raw_response.list())
            except APIStatusError as error:
                # `transformers serve` breaks here where it has no hub cache.
                if error.status_code in MISSING or is_broken(error.status_code):
                    return None
                raise

    async def close(self) -> None:
        """Close every connection."""
        await self._openai.close()

    @contextmanager
    def _guarded(self, timeout_s: float) -> Iterator[None]:
        """Within it, at most for so long, errors of the client become those that we act on."""
        try:
            with anyio.fail_after(timeout_s):
                yield
        except TimeoutError:
            raise TransientError(
                f"no answer from {self.address}: timed out after {timeout_s:g} s"
            ) from None
        except ForbiddenAddress as error:
            raise Outage(str(error)) from None
        except APIError as error:
            raise self._meaning(error) from None
        except TransportError as error:  # in the middle of an answer
            raise TransientError(f"{self.address}: {type(error).__name__}: {error}") from None
        except (json.JSONDecodeError, UnicodeDecodeError):  # a piece of a stream
            raise TransientError(f"unexpected answer from {self.address}: broken JSON") from None

    def _body(self, reply: Any) -> str:
        return self._hidden(reply.content.decode("utf-8-sig", "replace"))

    def _hidden(self, text: str) -> str:
        return text.replace(self._secret, HIDDEN) if self._secret else text

    def _meaning(self, error: APIError) -> Exception:
        """What a caller shall do after this error: an `Again`, `Busy`, `Refused` or `Outage`."""
        if isinstance(error, APITimeoutError):
            return ServerBusy(f"cannot connect to {self.address}: timed out", is_there=False)
        if isinstance(error, APIConnectionError):
            return self._no_connection(error)
        if isinstance(error, APIStatusError):
            return self._refusal(error)
        return TransientError(self._hidden(f"{self.address}: {error}"))

    def _no_connection(self, error: APIConnectionError) -> Exception:
        """Nobody there, which a restart may change, or a line that was cut."""
        problem: BaseException = error
        while inner := problem.__cause__ or problem.__context__:
            problem = inner
        words = str(problem) or type(problem).__name__
        if isinstance(problem, OSError) and problem.errno and problem.errno > 0:
            words = os.strerror(problem.errno)
        words = self._hidden(words)
        if type(error.__cause__).__name__ == "ConnectError":
            return ServerBusy(f"cannot connect to {self.address}: {words.lower()}", is_there=False)
        return TransientError(f"connection to {self.address} was cut: {words}")

    def _refusal(self, error: APIStatusError) -> Exception:
        """By its status; by its words only where the status leaves open what is wrong."""
        status, words, headers = error.status_code, self._words(error), error.response.headers
        detail = f"{self.address} answered {status}: {words}"
        if status < 400:
            target = self._hidden(headers.get("location", "nowhere").partition("?")[0])
            return Outage(f"{self.address} answered with a redirect, not followed: {target:.80}")
        if status in LOCKED:
            return Outage(f"{detail}; {KEY_RIGHT}")
        if status == 429 and error.code == "insufficient_quota":
            return Outage(detail)
        if status in BUSY:
            return ServerBusy(detail, wait_of(headers.get("retry-after", "")))
        fault = prompt_fault(words)
        if is_broken(status) and (status != 500 or not fault):  # llama.cpp has sent these with 500
            return TransientError(detail)
        if fault:
            return Refusal(detail, fault)
        if status in MISSING:
            return Outage(f"{detail}; is the model there, and base_url right (often .../v1)?")
        if status == 413:
            return Refusal(detail, "too_long")
        if status == 403:
            return Refusal(f"{detail}; {KEY_RIGHT}", is_doubtful=True)
        return Refusal(detail)

    def _words(self, error: APIStatusError) -> str:
        """The server's own words, and its code, which tells filters apart."""
        body = error.body
        if isinstance(body, dict):
            words = body.get("message") or body.get("detail") or body.get("error") or ""
            body = f"{words} {body.get('code') or body.get('type') or ''}".strip()
        text = self._hidden(str(body or ""))
        return "HTML" if text.lstrip().startswith("<") else " ".join(text.split())[:LONGEST_DETAIL]


RETIRED_S = 10.0  # a replica that cannot be reached is left out for so long, where others can
BURST_S = 1.0  # of a limit a minute, what may be asked for at once


class Deployment:
    """All servers of one endpoint: calls go to who has the fewest, within the limits a minute."""

    def __init__(self, endpoint: Endpoint, key: str | None) -> None:
        urls = endpoint.servers
        self._clients = [Client(replace(endpoint, base_url=url), key) for url in urls]
        self._under_way = [0] * len(urls)
        self._retired = [0.0] * len(urls)
        self._requests = _limiter(endpoint.requests_per_minute)
        self._tokens = _limiter(endpoint.tokens_per_minute)
        self.address = ", ".join(client.address for client in self._clients)

    async def complete(self, request: dict[str, Any]) -> str:
        """As that of `Client`."""
        return await self._by_one(lambda client: client.complete(request), request)

    async def stream(
        self, request: dict[str, Any], gather: Gather, on_text: Callable[[str], None]
    ) -> str:
        """As that of `Client`."""
        return await self._by_one(lambda client: client.stream(request, gather, on_text), request)

    async def embed(self, request: dict[str, Any]) -> str:
        """As that of `Client`."""
        return await self._by_one(lambda client: client.embed(request), request)

    async def list_models(self) -> str | None:
        """As that of `Client`."""
        return await self._by_one(lambda client: client.list_models())

    async def close(self) -> None:
        """Close every connection."""
        for client in self._clients:
            await client.close()

    async def _by_one(
        self, ask: Callable[[Client], Awaitable[T]], request: dict[str, Any] | None = None
    ) -> T:
        """What one of the servers gives; another one is tried where it cannot be reached."""
        if request and self._requests:
            await self._requests.acquire()
        if request and self._tokens:
            await self._tokens.acquire(min(_tokens_of(request), self._tokens.max_rate))
        for left in reversed(range(len(self._clients))):
            now, places = monotonic(), range(len(self._clients))
            at = min(places, key=lambda place: (self._retired[place] > now, self._under_way[place]))
            self._under_way[at] += 1
            try:
                return await ask(self._clients[at])
            except ServerBusy as busy:
                if busy.is_there or not left:
                    raise
                self._retired[at] = monotonic() + RETIRED_S
            finally:
                self._under_way[at] -= 1
        raise AssertionError("an endpoint has at least one server")


def _named(request: dict[str, Any]) -> dict[str, Any]:
    """A body as arguments of OpenAI's client, which does not know what each server takes."""
    known = ("model", "messages", "stream")
    more = {name: value for name, value in request.items() if name not in known}
    return {**{name: request[name] for name in known if name in request}, "extra_body": more}


def _limiter(per_minute: float | None) -> AsyncLimiter | None:
    if per_minute is None:
        return None
    most = max(per_minute * BURST_S / 60, 1.0)
    return AsyncLimiter(most, 60 * most / per_minute)


def _tokens_of(request: dict[str, Any]) -> float:
    """About what a request may take: four characters a token, and the longest answer."""
    asked = request.get("input") or [one.get("content") for one in request["messages"]]
    prompt = len(json.dumps(asked))
    longest = request.get("max_tokens") or request.get("max_completion_tokens") or 0
    return prompt / 4 + float(longest)


def is_broken(status: int) -> bool:
    """Whether this HTTP status says that the server itself failed."""
    return status in UNLUCKY or (status >= 500 and status not in BUSY)


def prompt_fault(words: str) -> str | None:
    """What the words of a server say about the prompt: a status of `Failure`, or nothing."""
    if TOO_LONG_PATTERN.search(words):
        return "too_long"
    return "filtered" if FILTERED_PATTERN.search(words) else None


def wait_of(retry_after: str) -> float | None:
    """The seconds that a Retry-After asks for, by a number or a date; None where it is neither."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if isfinite(seconds) else None


ROUNDS = 2  # of nothing but failed attempts, and the server is doubted
PAUSES = 7  # in a row, without one answer in between; they double, so the last one is a minute
FIRST_PAUSE_S = 1.0
FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
LONGEST_WAIT_S = 600.0  # what asks for more is not waited for
SPREAD = 0.1  # of a pause, over which the callers come back
WORTH_SAYING_S = 4.0  # a wait that a person wonders about
TICK_S = 0.1  # how soon a waiting call hears that the collection is to stop


@dataclass
class Patience:
    """The waits that the callers of one server share.

    Attributes:
        callers: how many calls may be under way; `ROUNDS` times as many failed attempts in a row,
            of any calls, and the server is doubted.
        probe: a call that a server in order answers; made before it is given up.
        stopped: whether waiting is over because the collection stops.
        pauses: how often a busy server is waited for in a row.
        longest_wait_s: what asks for more is not waited for.
    """

    attempts: int
    callers: int
    probe: Callable[[], Awaitable[object]]
    stopped: Callable[[], bool]
    pauses: int = PAUSES
    longest_wait_s: float = LONGEST_WAIT_S
    _random: Random = field(default_factory=Random, init=False)
    _failed: int = field(default=0, init=False)  # attempts in a row
    _paused: int = field(default=0, init=False)  # times in a row
    _pause_began: float = field(default=0.0, init=False)
    _pause_ends: float = field(default=0.0, init=False)

    async def call_with_retries(self, call: Callable[[], Awaitable[T]]) -> T:
        """What the call gives, after as many attempts as it takes.

        Raises Refused: it was refused, or each attempt failed; with what was said last; Outage: the
        server answers nobody, or asks for too long a wait; Stopped: the collection stops.
        """
        detail = ""
        for attempt in range(self.attempts):
            if attempt:
                longest = min(FIRST_BACKOFF_S * 2.0 ** (attempt - 1), LONGEST_BACKOFF_S)
                await self._sleep(longest * (0.75 + 0.25 * self._random.random()))
            try:
                return await self._admitted(call)
            except Refusal as refused:
                await self._count_failure(str(refused), refused.is_doubtful)
                raise
            except TransientError as again:
                detail = str(again)
                await self._count_failure(detail)
        raise Refusal(f"{detail} ({self.attempts} attempts)")

    async def _count_failure(self, detail: str, is_doubtful: bool = False) -> None:
        """One more attempt that gave nothing."""
        self._failed += 1
        # One call alone, failing at every attempt, is no outage.
        if self._failed >= max(ROUNDS * self.callers, self.attempts + 1):
            detail = f"{detail}; {self._failed} failed attempts in a row"
        elif not is_doubtful:
            return
        if self.stopped():
            return
        self._failed = 0
        try:
            await self._admitted(self.probe)
        except (TransientError, Refusal):
            raise Outage(detail) from None

    async def _admitted(self, call: Callable[[], Awaitable[T]]) -> T:
        """The call, made when the server takes calls."""
        while True:
            while (left := self._pause_ends - monotonic()) > 0:
                await self._sleep(left + self._random.random() * min(SPREAD * left, 1.0))
            sent_at = monotonic()
            try:
                result = await call()
            except ServerBusy as busy:
                self._pause(busy, sent_at)
            else:
                self._failed = self._paused = 0
                return result

    def _pause(self, busy: ServerBusy, sent_at: float) -> None:
        """Let nobody call for a while; what was sent before a pause began makes no second one."""
        is_new = sent_at >= self._pause_began
        if is_new:
            self._paused += 1
            self._pause_began = monotonic()
        if self._paused > self.pauses:
            raise Refusal(f"{busy}; still so after {self.pauses} waits", is_doubtful=True)
        wait = busy.wait_s or FIRST_PAUSE_S * 2 ** (self._paused - 1)
        if wait > self.longest_wait_s:
            longest = f"{self.longest_wait_s:.0f}"
            raise Outage(f"{busy}; it asks to wait {wait:.0f} s, more than {longest}")
        self._pause_ends = max(self._pause_ends, monotonic() + wait)
        if is_new and wait >= WORTH_SAYING_S:
            LOG.warning("%s; nobody calls it for %.0f s", busy, wait)

    async def _sleep(self, seconds: float) -> None:
        ends = monotonic() + seconds
        while (left := ends - monotonic()) > 0:
            if self.stopped():
                raise Cancellation
            await anyio.sleep(min(left, TICK_S))
