"""What a server's answer or silence means, and when to call again or give up."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from math import isfinite
from random import Random
from time import monotonic
from typing import Any, TypeVar

import anyio
from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError
from pydantic import BaseModel

from hierrouter.engines.generator import Answer, Failure, Outage, Response

TOO_LONG = re.compile(
    r"context.{0,12}(length|window|size)|maximum.{0,20}context|too many tokens"
    r"|(prompt|input|message|request|sequence|content|text)s?( is| are)? too long"
    r"|max_new_tokens`? must be|exceeds? the (maximum|available|limit)|token count exceeds"
    r"|must have less than \d+ tokens|max_tokens must be at least 1",
    re.IGNORECASE,
)
FILTERED = re.compile(
    r"content.?(filter|policy|management)|safety (filter|system|settings)"
    r"|(input|prompt|content|message|request|text)s?.{0,12}flagged",
    re.IGNORECASE,
)
SAID = 150  # characters of the server's own words
OTHER_LIMIT = "max_completion_tokens"  # what newer hosted models want in place of max_tokens
BUSY = (429, 503, 529)
UNLUCKY = (408, 409, 425)
LOCKED = (401, 402)
MISSING = (404, 405)
KEY_RIGHT = "is the API key right? api_key_env names its variable"


class Again(Exception):
    """This attempt gave nothing; another one may."""


class Refused(Exception):
    """The server will not answer this prompt, for a reason that we do not know."""


class Doubtful(Refused):
    """So may every other prompt be: a harmless one tells."""


class Broken(Again):
    """The server itself says that it failed."""


class Busy(Exception):
    """The server takes no calls at the moment.

    Args:
        detail: what it said.
        wait_s: for how long, where it said that too.
    """

    def __init__(self, detail: str, wait_s: float | None = None) -> None:
        super().__init__(detail)
        self.wait_s = wait_s


class Unreachable(Busy):
    """Nobody is there; a server that was may come back."""


class NotThere(Outage):
    """The server does not have what was asked for."""


class OtherLimit(Refused):
    """The model wants the length limit under its other name."""


def meaning(error: APIError, address: str, hidden: Callable[[str], str]) -> Failure | Exception:
    """What to do after this error: hand on the failure, or raise the exception.

    Args:
        error: as the client raised it.
        address: of the server, for messages.
        hidden: takes the key out of what the server said.
    """
    if isinstance(error, APITimeoutError):
        return Unreachable(f"cannot connect to {address}: timed out")
    if isinstance(error, APIConnectionError):
        return _no_connection(error, address, hidden)
    if isinstance(error, APIStatusError):
        return _refusal(error, address, hidden)
    return Again(hidden(f"{address}: {error}"))


def timed_out(address: str, seconds: float) -> Again:
    """A call was begun and not finished."""
    return Again(f"no answer from {address}: timed out after {seconds:g} s")


def _no_connection(
    error: APIConnectionError, address: str, hidden: Callable[[str], str]
) -> Exception:
    """Nobody there, which a restart may change, or a line that was cut."""
    detail = hidden(_reason(_deepest(error)))
    if type(error.__cause__).__name__ == "ConnectError":
        return Unreachable(f"cannot connect to {address}: {detail.lower()}")
    return Again(f"connection to {address} was cut: {detail}")


def _refusal(
    error: APIStatusError, address: str, hidden: Callable[[str], str]
) -> Failure | Exception:
    """By its status; by its words only where the status leaves open what is wrong."""
    status, said = error.status_code, _said(error, hidden)
    detail = f"{address} answered {status}: {said}"
    if status < 400:
        target = hidden(error.response.headers.get("location", "nowhere").partition("?")[0])
        return Outage(f"{address} answered with a redirect, not followed: {target:.80}")
    if status in LOCKED:
        return Outage(f"{detail}; {KEY_RIGHT}")
    if status == 429 and error.code == "insufficient_quota":
        return Outage(detail)
    if status in BUSY:
        return Busy(detail, wait_of(error.response.headers.get("retry-after")))
    if status in UNLUCKY or status > 500:
        return Broken(detail)
    if failure := refused_prompt(said, detail):  # llama.cpp has sent these with 400 and 500
        return failure
    if status == 500:
        return Broken(detail)
    if status in MISSING:
        return NotThere(f"{detail}; is the model there, and base_url right (often .../v1)?")
    if status == 413:
        return Failure("too_long", detail)
    if status == 403:
        return Doubtful(f"{detail}; {KEY_RIGHT}")
    return OtherLimit(detail) if OTHER_LIMIT in said else Refused(detail)


def refused_prompt(said: str, detail: str) -> Failure | None:
    """What the words of a server say about the prompt, if anything."""
    if TOO_LONG.search(said):
        return Failure("too_long", detail)
    return Failure("filtered", detail) if FILTERED.search(said) else None


def wait_of(header: str | None) -> float | None:
    """The seconds that a Retry-After asks for, by a number or a date; None where there is none."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        seconds = _until(header)
    return max(seconds, 0.0) if isfinite(seconds) else None


def _until(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, OverflowError):
        return float("nan")


def _said(error: APIStatusError, hidden: Callable[[str], str]) -> str:
    """The server's own words, and its code, which tells filters apart."""
    body = error.body
    if isinstance(body, dict):
        words = body.get("message") or body.get("detail") or body.get("error") or ""
        body = f"{words} {body.get('code') or body.get('type') or ''}".strip()
    text = hidden(str(body or ""))
    return "HTML" if text.lstrip().startswith("<") else " ".join(text.split())[:SAID]


def _reason(problem: BaseException) -> str:
    """The system's own words for an error of the system."""
    if isinstance(problem, OSError) and problem.errno and problem.errno > 0:
        return os.strerror(problem.errno)
    return str(problem) or type(problem).__name__


def _deepest(error: BaseException) -> BaseException:
    """What lies at the bottom of a chain of causes."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return error


# What servers call the end of an answer: vLLM, llama.cpp, Ollama and hosted ones; then TGI.
STOPS = ("stop", "eos", "eos_token", "stop_sequence")
MOST_TOKENS = 2**31 - 1  # what the cache has room for
# (prompt, text, whether it ended by itself) -> tokens in and out
Count = Callable[[str, str, bool], tuple[int, int]]


class Unexpected(Exception):
    """The body is no chat completion; another attempt may bring one."""


class WrongModel(RuntimeError):
    """Another model answered."""


class NoUsage(RuntimeError):
    """The server does not say how many tokens a call took."""


@dataclass(frozen=True)
class Reader:
    """How the answers of one model are read.

    Attributes:
        model: what every answer must name.
        revision: may stand behind it after an @, as `transformers serve` has it.
        count: counts tokens where the server does not; None where no tokenizer is named.
    """

    model: str
    revision: str = "main"
    count: Count | None = None

    def read(self, prompt: str, body: str) -> Answer:
        """The answer to `prompt` that this body holds.

        An empty text is an answer where the model ended by itself, and where all the tokens that
        it may generate went elsewhere, as into thinking that the server does not show.

        Raises:
            Unexpected: it is no JSON, is an error, lacks choice, text, reason or model, or
                counts what cannot be.
            WrongModel, NoUsage: see there.
        """
        completion = _object(body)
        if said := _error(completion):
            return _refused(said)
        choice = _first_choice(completion)
        self._check_model(completion.get("model"))
        reason = choice.get("finish_reason")
        if reason == "content_filter":
            return Failure("filtered", "the server withheld the response")
        if reason not in (*STOPS, "length"):
            raise Unexpected(f"finish_reason {reason!r:.40}")
        text = _text(choice, cut=reason == "length")
        tokens_in, tokens_out = self._tokens(completion.get("usage"), prompt, text, reason)
        if tokens_out == 0 and reason == "length":
            return Failure("too_long", f"{tokens_in} tokens of prompt left no room for a response")
        finish = "length" if reason == "length" else "stop"
        return Response(text.strip(), tokens_in, tokens_out, finish)

    async def gather(self, pieces: AsyncIterator[Any], on_text: Callable[[str], None]) -> str:
        """The body of a completion that comes in pieces, as if it had come whole.

        Args:
            pieces: `openai.types.chat.ChatCompletionChunk`s, which nobody has checked.
            on_text: told what each piece adds to the text.

        Raises:
            Unexpected: a piece that is none.
            WrongModel: another model answers; nothing of that is told.
        """
        texts: list[str] = []
        body: dict[str, Any] = {}
        choice: dict[str, Any] = {}
        async for piece in pieces:
            found = _piece(piece)
            body |= {name: found[name] for name in ("model", "usage", "error") if found.get(name)}
            for first in found.get("choices") or ():
                if first.get("finish_reason"):
                    choice["finish_reason"] = first["finish_reason"]
                if text := (first.get("delta") or {}).get("content"):
                    self._check_model(body.get("model"))
                    texts.append(text)
                    on_text(text)
        if choice or texts:
            body["choices"] = [{**choice, "message": {"content": "".join(texts)}}]
        return json.dumps(body)

    def _check_model(self, named: Any) -> None:
        if named is None:
            raise Unexpected("no name of a model")
        if named not in (self.model, f"{self.model}@{self.revision}"):
            raise WrongModel(
                f"answers come from {named!r:.50}; if that is the same model, set answers_as"
            )

    def _tokens(self, usage: Any, prompt: str, text: str, reason: str) -> tuple[int, int]:
        """Of prompt and response; those of the server where it sends them."""
        counts = usage if isinstance(usage, dict) else {}
        tokens_in = _count(counts.get("prompt_tokens"))
        tokens_out = _count(counts.get("completion_tokens"))
        # 0 for a text that is there is a count that the server did not make.
        if tokens_in and tokens_out is not None and (tokens_out or not text):
            return tokens_in, tokens_out
        if self.count is None:
            raise NoUsage("answers come without usage (token counts); name a tokenizer")
        return self.count(prompt, text, reason != "length")


def _object(body: str) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        kind = "HTML" if body.lstrip()[:1] == "<" else "cut or broken JSON"
        raise Unexpected(kind if body.strip() else "an empty body") from None
    if not isinstance(parsed, dict):
        raise Unexpected("JSON that is no object")
    return parsed


def _piece(piece: Any) -> dict[str, Any]:
    """A chunk as plain values, as far as they are what they should be.

    Raises:
        Unexpected: they are not.
    """
    found = piece.model_dump(warnings=False) if isinstance(piece, BaseModel) else None
    choices = found.get("choices") or [] if isinstance(found, dict) else None
    if not isinstance(choices, list) or not all(map(_is_choice, choices)):
        raise Unexpected("a piece of a stream that is none")
    return found or {}


def _is_choice(choice: Any) -> bool:
    delta = choice.get("delta") or {} if isinstance(choice, dict) else None
    return isinstance(delta, dict) and isinstance(delta.get("content") or "", str)


def _error(completion: dict[str, Any]) -> str:
    """The words of an error that came with status 200, as some servers send it; else nothing."""
    error = completion if completion.get("object") == "error" else completion.get("error")
    said = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(said).split())[:SAID] if said else ""


def _refused(said: str) -> Failure:
    if failure := refused_prompt(said, said):
        return failure
    raise Unexpected(f"an error: {said}")


def _first_choice(completion: dict[str, Any]) -> dict[str, Any]:
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Unexpected("no choices")
    return choices[0]


def _text(choice: dict[str, Any], cut: bool) -> str:
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if content is None and cut and isinstance(message, dict):
        return ""
    if not isinstance(content, str):
        raise Unexpected("no content")
    return content


def _count(value: Any) -> int | None:
    """A number of tokens; None where none is sent."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise Unexpected(f"{value!r:.20} tokens")
    return value


PAUSES = 7  # in a row, without one answer in between; they double, so the last one is a minute
FIRST_PAUSE_S = 1.0
FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
LONGEST_WAIT_S = 600.0  # what asks for more is not waited for
SPREAD = 0.1  # of a pause, over which the callers come back
WORTH_SAYING_S = 4.0  # a wait that a person wonders about
TICK_S = 0.1  # how soon a waiting call hears that the collection is to stop

LOG = logging.getLogger(__name__)
T = TypeVar("T")


class GaveUp(Exception):
    """A call was refused, or failed at every attempt."""


class Stopped(Exception):
    """A call that was waiting for its next attempt is made no more."""


class Patience:
    """The waits that the callers of one server share.

    Args:
        attempts: how often a call is made.
        failures: after so many failed attempts in a row, of any calls, the server is doubted.
        stopped: whether waiting is over because the collection stops.
        probe: a call that a server in order answers; made before it is given up.
        pauses: how often a busy server is waited for in a row.
        longest_wait_s: what asks for more is not waited for.
    """

    def __init__(
        self,
        attempts: int,
        failures: int,
        stopped: Callable[[], bool],
        probe: Callable[[], Awaitable[object]],
        pauses: int = PAUSES,
        longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        self._attempts = attempts
        self._most_failures = failures
        self._stopped = stopped
        self._probe = probe
        self._most_pauses = pauses
        self._longest_wait_s = longest_wait_s
        self._random = Random()  # noqa: S311 - spreads callers, protects nothing
        self._failures = 0
        self._pauses = 0
        self._pause_began = 0.0
        self._pause_ends = 0.0

    async def tried(self, call: Callable[[], Awaitable[T]]) -> T:
        """What the call gives, after as many attempts as it takes.

        Raises:
            GaveUp: it was refused, or each attempt failed; with what was said last.
            Outage: the server answers nobody, or asks for too long a wait.
            Stopped: the collection stops.
        """
        detail = ""
        for attempt in range(self._attempts):
            if attempt:
                await self._sleep(self._backoff(attempt))
            try:
                return await self._admitted(call)
            except Refused as refused:
                await self._failed(str(refused), isinstance(refused, Doubtful))
                raise GaveUp(str(refused)) from None
            except Again as again:
                detail = str(again)
                await self._failed(detail)
        raise GaveUp(f"{detail} ({self._attempts} attempts)")

    async def _failed(self, detail: str, doubtful: bool = False) -> None:
        """One more attempt that gave nothing.

        Raises:
            Outage: there have been too many in a row, or it is doubtful, and the probe fails too.
        """
        self._failures += 1
        if self._failures >= self._most_failures:
            detail = f"{detail}; {self._failures} failed attempts in a row"
        elif not doubtful:
            return
        if self._stopped():
            return
        self._failures = 0
        try:
            await self._admitted(self._probe)
        except (Again, Refused):
            raise Outage(detail) from None

    async def _admitted(self, call: Callable[[], Awaitable[T]]) -> T:
        """The call, made when the server takes calls."""
        while True:
            while (left := self._pause_ends - monotonic()) > 0:
                await self._sleep(left + self._random.random() * min(SPREAD * left, 1.0))
            sent_at = monotonic()
            try:
                result = await call()
            except Busy as busy:
                self._pause(busy, sent_at)
            else:
                self._failures = self._pauses = 0
                return result

    def _pause(self, busy: Busy, sent_at: float) -> None:
        """Let nobody call for a while; what was sent before a pause began makes no second one."""
        is_new = sent_at >= self._pause_began
        if is_new:
            self._pauses += 1
            self._pause_began = monotonic()
        if self._pauses > self._most_pauses:
            raise Doubtful(f"{busy}; still so after {self._most_pauses} waits")
        wait = busy.wait_s or FIRST_PAUSE_S * 2 ** (self._pauses - 1)
        if wait > self._longest_wait_s:
            longest = f"{self._longest_wait_s:.0f}"
            raise Outage(f"{busy}; it asks to wait {wait:.0f} s, more than {longest}")
        self._pause_ends = max(self._pause_ends, monotonic() + wait)
        if is_new and wait >= WORTH_SAYING_S:
            LOG.warning("%s; nobody calls it for %.0f s", busy, wait)

    def _backoff(self, attempt: int) -> float:
        longest = min(FIRST_BACKOFF_S * 2.0 ** (attempt - 1), LONGEST_BACKOFF_S)
        return longest * (0.75 + 0.25 * self._random.random())

    async def _sleep(self, seconds: float) -> None:
        ends = monotonic() + seconds
        while (left := ends - monotonic()) > 0:
            if self._stopped():
                raise Stopped
            await anyio.sleep(min(left, TICK_S))
