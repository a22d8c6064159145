"""What it means that a server did not answer.

In: an error of the `openai` client. Out: `Failure`, this prompt cannot be answered, or one of:

    Exception
    ├── Again           this attempt gave nothing; another one may
    │   └── Broken          the server itself says that it failed
    ├── Busy            it takes no calls at the moment
    │   └── Unreachable     nobody is there; a server that was may come back
    ├── Refused         it will not answer this prompt, and we do not know why
    │   ├── Doubtful        nor perhaps any other; a harmless one tells
    │   └── OtherLimit      it wants the length limit under its other name
    └── Outage          the model as a whole cannot be had (a `WorldError`)
        └── NotThere        the server does not have it

Not covered: waiting and counting attempts (`patience`).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from math import isfinite

from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

from hierrouter.collect.generator import Failure, Outage

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
