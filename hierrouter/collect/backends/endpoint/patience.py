"""When the callers of one server call, wait, or give up.

In: calls that may fail. Out: their result, or an `Outage` once nothing but failures comes, even for
a harmless call: a few bad calls must not take the server from all others. A call that failed is
made again after a wait of its own that doubles each time. A server that is busy is left alone by
all callers, for as long as its Retry-After asks. Not covered: what an error means (`refusals`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from random import Random
from time import monotonic
from typing import TypeVar

import anyio

from hierrouter.collect.backends.endpoint.refusals import Again, Busy, Doubtful, Refused
from hierrouter.collect.generator import Outage

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
