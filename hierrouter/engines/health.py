"""Which servers are well, which of them gets a call, and how often a call is tried.

`Health` remembers how one address has answered; `Deployment` sends each attempt to an address of an
endpoint that is well; `Patience` makes further attempts, at other addresses first, and waits. They
serve replicas, models, encoders and judges alike, in a collection and behind `hierrouter serve`.

The circuit of an address, for one model:

    new     nothing was answered yet: the calls under way double every `RAMP_S` seconds
    well    calls are sent, as many at once as the endpoint allows
    resting after failures no call is sent for a while, which doubles with each further failure;
            after a reply that asks to wait, as long as it asks
    due     the rest is over: one call is sent, and its end decides

A refusal of one prompt says nothing about a server, so it changes no circuit. If every address of
an endpoint rests because it failed, calls are sent all the same, so that one server alone is asked
as `Patience` says: then its failures in a row are counted, and a test call decides whether the
model is given up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from random import Random
from time import monotonic
from typing import TypeVar

import anyio

from hierrouter.engines.endpoint_client import (
    Cancellation,
    Client,
    Limits,
    Refusal,
    ServerBusy,
    TransientError,
)
from hierrouter.engines.generator import Failure, IdentityChange, Outage, Stop, never
from hierrouter.pools.pool import Endpoint
from hierrouter_cache.errors import WorldError

LOGGER = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_REST_S = 2.0  # after a failure that opens the circuit; doubles with each further failure
MAX_REST_S = 30.0
OPEN_AFTER = 3  # failures in a row of an address that has answered before; a new one needs one
RAMP_S = 0.2
# An address that has not answered yet may hang. Once another one has answered, it has this many
# times the longest answer so far, and at least so many seconds.
PROBATION_FACTOR = 5.0
MIN_PROBATION_S = 5.0
TICK_S = 0.1  # how soon a waiting call notices that the collection is to stop


class Health:
    """What is remembered of one address, see the module.

    Attributes:
        fault: the last failure; "" once a call succeeds.
        failures: in a row.
        is_proven: whether the last call that told anything succeeded.
        asks_to_wait: whether it rests because it asked to.
        longest_s: the longest answer so far, in seconds.
    """

    def __init__(self) -> None:
        self.fault = ""
        self.failures = 0
        self.is_proven = False
        self.asks_to_wait = False
        self.longest_s = 0.0
        self._rests = 0  # in a row
        self._rest_began = -math.inf
        self._rest_ends = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether the circuit is open: the address rests, or a test is due."""
        return self._rest_ends > -math.inf

    @property
    def rest_s(self) -> float:
        """Seconds until a call may be sent; 0 if one may be sent now."""
        return max(self._rest_ends - monotonic(), 0.0)

    def succeed(self, began: float) -> bool:
        """Take note of a success.

        Args:
            began: when the call was sent, by `monotonic`. A call from before the failure that
                opened the circuit does not close it.

        Returns:
            Whether the circuit was open and is closed now.
        """
        now = monotonic()
        self.longest_s = max(self.longest_s, now - began)
        if self.is_open and began < self._rest_began:
            return False
        was_open = self.is_open
        self.fault = ""
        self.failures = 0
        self.is_proven = True
        self._rests = 0
        self._rest_ends = -math.inf
        return was_open

    def fail(
        self,
        fault: str,
        began: float,
        *,
        at_once: bool = False,
        asks_to_wait: bool = False,
        wait_s: float | None = None,
    ) -> bool:
        """Take note of a failure.

        Args:
            fault: an explanation for people.
            began: when the call was sent, by `monotonic`. Calls that were under way together fail
                together, and count as one.
            at_once: open the circuit, though the address has answered before.
            asks_to_wait: whether the server takes no calls at the moment.
            wait_s: seconds that it asks to wait; None if it does not say.

        Returns:
            Whether the circuit was closed and is open now.
        """
        self.fault = fault
        if self.is_open and began < self._rest_began:
            return False
        self.failures += 1
        if self.is_proven and not at_once and self.failures < OPEN_AFTER:
            return False
        was_closed = not self.is_open
        self.is_proven = False
        self.asks_to_wait = asks_to_wait
        rest_s = min(FIRST_REST_S * 2.0 ** min(self._rests, 16), MAX_REST_S)
        if wait_s is not None:
            # What it asks for, unless it asks again and again.
            rest_s = max(wait_s, rest_s if self._rests else 0.0)
        self._rests += 1
        self._rest_began = monotonic()
        self._rest_ends = self._rest_began + rest_s
        return was_closed


# By base_url and model. Connections come and go with each round of a collection, what is known of a
# server stays: a server may have one model and lack another.
_HEALTH: dict[tuple[str, str], Health] = {}


def health_of(url: str, model: str) -> Health:
    """Return what this process remembers of a model at an address."""
    return _HEALTH.setdefault((url, model), Health())


def forget_health() -> None:
    """Forget all addresses, as a new process."""
    _HEALTH.clear()


@dataclass(eq=False)
class _Server:
    """One server of a deployment.

    Attributes:
        client: the connection.
        health: of the model at its address.
        slots: calls that may be under way at once.
        is_alone: whether the deployment has no other; then it is always asked.
        under_way: calls.
        first_call: when the first call was sent, by `monotonic`.
        is_tested: whether the call that decides about an open circuit is under way.
        is_doubted: whether it has refused a call before it had answered any, so that other servers
            have to show first whether it refuses everything.
    """

    client: Client
    health: Health
    slots: int
    is_alone: bool
    under_way: int = 0
    first_call: float = math.inf
    is_tested: bool = False
    is_doubted: bool = False

    @property
    def rests(self) -> bool:
        """Whether no call is to be sent."""
        return self.health.rest_s > 0

    @property
    def has_room(self) -> bool:
        """Whether a call may be sent now."""
        if self.is_alone:
            return True
        if self.under_way >= self.slots or self.rests or self.is_doubted:
            return False
        if self.health.is_open:
            return not self.is_tested
        if self.health.is_proven or not self.under_way:
            return True
        doublings = int((monotonic() - self.first_call) / RAMP_S)
        return self.under_way < 2 ** min(doublings, 16)


@dataclass
class Tried:
    """Servers that one call has tried.

    Attributes:
        clients: their connections.
        refusing: those that refused it before they had answered anything.
    """

    clients: list[Client] = field(default_factory=list)
    refusing: list[_Server] = field(default_factory=list)


@dataclass
class _Probation:
    """A call of a server that has not answered yet.

    Attributes:
        server: the server.
        scope: ends the call at its deadline.
        began: start of the call, in the time of the event loop.
    """

    server: _Server
    scope: anyio.CancelScope
    began: float


class Deployment:
    """All servers of one endpoint; for one event loop.

    Args:
        endpoint: the endpoint.
        key: the API key; None for servers that need none.
        model: name of the model there.
        is_stopped: whether calls that wait for a server shall be cancelled.

    Attributes:
        address: the servers' addresses for messages.
        max_wait_s: seconds for which a server is waited for, see `Patience`.
    """

    def __init__(
        self, endpoint: Endpoint, key: str | None, model: str, is_stopped: Stop = never
    ) -> None:
        urls = endpoint.servers
        limits = Limits(endpoint)
        self._servers = [
            _Server(
                Client(replace(endpoint, base_url=url), key, limits),
                health_of(url, model),
                endpoint.concurrency,
                len(urls) == 1,
            )
            for url in urls
        ]
        self._is_stopped = is_stopped
        self._probations: dict[int, _Probation] = {}  # by id of their tasks
        self._changed = anyio.Event()
        self.max_wait_s = MAX_WAIT_S
        self.address = ", ".join(server.client.address for server in self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    @property
    def fault(self) -> str:
        """Why no server of the model can be called; "" if one can, or nobody has tried."""
        if all(server.health.is_open for server in self._servers):
            return self._servers[0].health.fault
        return ""

    @property
    def rest_s(self) -> float:
        """Seconds until a server may be called again; 0 if one may be called now."""
        return min(server.health.rest_s for server in self._servers)

    def has_other(self, tried: Tried) -> bool:
        """Whether a server is well that is not among those that were tried."""
        return any(
            not server.rests for server in self._servers if server.client not in tried.clients
        )

    def note_fault(self, fault: str) -> None:
        """Take note that no server can be called, as far as is known elsewhere."""
        for server in self._servers:
            server.health.fail(fault, monotonic(), at_once=True)

    async def ask(
        self, attempt: Callable[[Client], Awaitable[T]], tried: Tried, *, is_proof: bool = True
    ) -> T:
        """Make one attempt at a server that is well, or wait for one.

        Args:
            attempt: makes it; whatever it raises is taken as the failure of its server, except for
                a `Refusal`.
            tried: servers that are asked only if no other one is well; the one that was asked is
                added.
            is_proof: whether a success shows that the server is well.

        Returns:
            The result of the attempt.

        Raises:
            ServerBusy: the server takes no calls, and no other one does; `wait_s` says when the
                first of them may.
            Cancellation: the collection was stopped while the call waited.
            Exception: as the attempt.
        """
        server = await self._free_server(tried)
        tried.clients.append(server.client)
        began = monotonic()
        server.first_call = min(server.first_call, began)
        is_test = server.health.is_open and not server.is_tested
        server.is_tested = server.is_tested or is_test
        server.under_way += 1
        try:
            result = await self._within_probation(server, attempt)
        except ServerBusy as busy:
            self._note_failure(server, busy, began)
            if len(self) > 1 and busy.wait_s is not None:
                raise ServerBusy(str(busy), self.rest_s, busy.is_reachable) from None
            raise
        except Refusal as refusal:
            # A stream that broke off is refused, so that nobody goes on with another one.
            if isinstance(refusal.__cause__, TransientError | ServerBusy):
                self._note_failure(server, refusal, began)
                raise
            if server.health.is_proven or refusal.status != "error" or not self.has_other(tried):
                raise
            server.is_doubted = True
            tried.refusing.append(server)
            raise TransientError(str(refusal)) from None
        except IdentityChange:
            raise  # it is no failure: the model has to be identified anew
        except (TransientError, WorldError, RuntimeError) as error:
            self._note_failure(server, error, began)
            raise
        else:
            if is_proof and not isinstance(result, Failure):
                self._note_success(server, began)
                for refusing in tried.refusing:
                    fault = WorldError(f"{refusing.client.address} refuses what others answer")
                    self._note_failure(refusing, fault, began)
            return result
        finally:
            server.under_way -= 1
            if is_test:
                server.is_tested = False
            self._notify()

    def keep_call(self) -> None:
        """Let the call of the current task take its time: it has begun to answer."""
        probation = self._probations.get(anyio.get_current_task().id)
        if probation:
            probation.scope.deadline = math.inf
            probation.began = math.inf

    async def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            await server.client.close()

    async def _free_server(self, tried: Tried) -> _Server:
        """Wait for a server that may be called, and return the one with the fewest calls.

        Raises:
            Cancellation: the collection was stopped meanwhile.
        """
        while True:
            others = [server for server in self._servers if server.client not in tried.clients]
            servers = others if any(not server.rests for server in others) else self._servers
            free = [server for server in servers if server.has_room]
            if not free and all(self._has_failed(server) for server in self._servers):
                free = self._servers
            if free:
                return min(
                    free, key=lambda server: (server.client in tried.clients, server.under_way)
                )
            if self._is_stopped():
                raise Cancellation
            is_new = any(not server.health.failures for server in servers)
            with anyio.move_on_after(RAMP_S if is_new else TICK_S):
                await self._changed.wait()

    def _has_failed(self, server: _Server) -> bool:
        """Whether a server rests because it failed, or asks for a longer rest than a failed one."""
        rest_s = server.health.rest_s
        longest_s = min(MAX_REST_S, self.max_wait_s)
        return rest_s > 0 and (not server.health.asks_to_wait or rest_s > longest_s)

    async def _within_probation(
        self, server: _Server, attempt: Callable[[Client], Awaitable[T]]
    ) -> T:
        """Make an attempt; at a server that has not answered yet, within the time of a probation.

        Raises:
            TransientError: the time is over.
            Exception: as the attempt.
        """
        if server.is_alone or server.health.is_proven:
            return await attempt(server.client)
        task = anyio.get_current_task().id
        with anyio.CancelScope() as scope:
            self._probations[task] = _Probation(server, scope, anyio.current_time())
            self._limit_probations()
            try:
                return await attempt(server.client)
            finally:
                del self._probations[task]
        raise TransientError(
            f"no answer from {server.client.address}, while other servers of the model answer"
        )

    def _limit_probations(self) -> None:
        """Limit the time of servers that have not answered, if others have."""
        proven = [server.health for server in self._servers if server.health.is_proven]
        if not proven:
            return
        longest_s = max(health.longest_s for health in proven)
        limit_s = max(PROBATION_FACTOR * longest_s, MIN_PROBATION_S)
        for probation in self._probations.values():
            if not probation.server.health.is_proven:
                probation.scope.deadline = probation.began + limit_s

    def _note_success(self, server: _Server, began: float) -> None:
        was_open = server.health.succeed(began)
        if was_open and not server.is_alone:
            LOGGER.warning("%s answers again, and gets calls", server.client.address)
        for probation in self._probations.values():
            if probation.server is server:  # it has answered, so its calls may take their time
                probation.scope.deadline = math.inf
        self._limit_probations()

    def _note_failure(self, server: _Server, error: Exception, began: float) -> None:
        busy = error if isinstance(error, ServerBusy) else None
        became_open = server.health.fail(
            str(error),
            began,
            # Others answer nothing at all, or not as this model.
            at_once=not isinstance(error, TransientError | Refusal),
            asks_to_wait=busy is not None and busy.wait_s is not None,
            wait_s=busy.wait_s if busy else None,
        )
        if became_open and not server.is_alone:
            address = server.client.address
            message = str(error) if address in str(error) else f"{address}: {error}"
            LOGGER.warning("%s; its calls go to the other servers of the model for now", message)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


FAILED_ROUNDS = 2  # failed attempts in a row, per caller, before the server is probed
# Pauses in a row without an answer in between. They double, so the last one lasts a minute.
MAX_PAUSES = 7
FIRST_PAUSE_S = 1.0
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
MAX_WAIT_S = 600.0
PAUSE_SPREAD = 0.1  # share of a pause over which the callers come back
MIN_LOGGED_WAIT_S = 4.0  # a person would wonder about a longer silence


@dataclass
class Patience:
    """Retries and waits that all callers of one deployment share.

    Attributes:
        deployment: the servers.
        attempts: attempts at one call; each server that is well gets one in any case.
        callers: how many calls may be under way. After `FAILED_ROUNDS` times as many failed
            attempts in a row, of any calls, the servers are probed.
        probe: a call that a working server answers; made before the servers are given up.
        is_stopped: whether waiting calls shall be cancelled.
        max_pauses: how many times in a row a busy server is waited for.
        max_wait_s: seconds; a server that asks for a longer wait is given up.
        budget_s: seconds of one call after which no further attempt begins.
    """

    deployment: Deployment
    attempts: int
    callers: int
    probe: Callable[[Client], Awaitable[object]]
    is_stopped: Callable[[], bool] = never
    max_pauses: int = MAX_PAUSES
    max_wait_s: float = MAX_WAIT_S
    budget_s: float = math.inf
    _random: Random = field(default_factory=Random, init=False)
    _failures: int = field(default=0, init=False)  # attempts in a row
    _pauses: int = field(default=0, init=False)  # in a row
    _pause_began: float = field(default=0.0, init=False)
    _pause_ends: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.deployment.max_wait_s = self.max_wait_s

    def limit(self, pauses: int, seconds: float) -> None:
        """Wait no longer than a person does: this many pauses, and so many seconds in all."""
        self.max_pauses = pauses
        self.max_wait_s = seconds
        self.budget_s = seconds
        self.deployment.max_wait_s = seconds

    async def call_with_retries(
        self, call: Callable[[Client], Awaitable[T]], *, is_proof: bool = True
    ) -> T:
        """Make a call, with as many attempts as it takes and is allowed.

        Args:
            call: makes one attempt at a server.
            is_proof: whether a success shows that the server is well.

        Returns:
            The result of the call.

        Raises:
            Refusal: the call was refused, or all attempts failed; with the last error's message.
            Outage: no server answers any prompt, or all ask for too long a wait.
            Cancellation: waiting calls are cancelled.
        """
        tried = Tried()
        try:
            return await self._attempts(call, tried, is_proof)
        finally:
            for server in tried.refusing:
                server.is_doubted = False

    async def _attempts(
        self, call: Callable[[Client], Awaitable[T]], tried: Tried, is_proof: bool
    ) -> T:
        """Make the attempts of `call_with_retries`."""
        detail = ""
        backoffs = 0
        attempts = 0
        ends = monotonic() + self.budget_s
        while attempts < max(self.attempts, len(self.deployment)):
            if attempts and monotonic() > ends:
                break
            if attempts and not self.deployment.has_other(tried):
                tried.clients.clear()
                backoff = min(FIRST_BACKOFF_S * 2.0**backoffs, MAX_BACKOFF_S)
                backoffs += 1
                # Random, so that the callers do not come back all at once.
                await self._sleep(backoff * (0.75 + 0.25 * self._random.random()))
            attempts += 1
            try:
                return await self._call_after_pause(call, tried, is_proof)
            except Refusal as refusal:
                await self._count_failure(str(refusal), refusal.needs_probe)
                raise
            except TransientError as error:
                detail = str(error)
                # Another server tells as well as a test call whether it is the server's fault.
                needs_probe = error.needs_probe and not self.deployment.has_other(tried)
                await self._count_failure(detail, needs_probe)
            except (WorldError, RuntimeError) as error:
                if isinstance(error, IdentityChange) or not self.deployment.has_other(tried):
                    raise
                detail = str(error)
        raise Refusal(f"{detail} ({attempts} attempts)", may_pass=True)

    async def _count_failure(self, detail: str, needs_probe: bool = False) -> None:
        """Count a failed attempt, and raise an Outage if the servers fail a probe, too."""
        if len(self.deployment) > 1:
            if self.deployment.has_other(Tried()) and not needs_probe:
                return  # others do the work
            detail = f"{detail}; so do all {len(self.deployment)} servers"
        self._failures += 1
        # A single call that fails at every attempt is no outage.
        if self._failures >= max(FAILED_ROUNDS * self.callers, self.attempts + 1):
            detail = f"{detail}; {self._failures} failed attempts in a row"
        elif not needs_probe:
            return
        if self.is_stopped():
            return
        self._failures = 0
        tried = Tried()
        for attempts_left in reversed(range(len(self.deployment))):
            try:
                await self._call_after_pause(self.probe, tried)
                return
            except (TransientError, Refusal):
                if not attempts_left:
                    raise Outage(detail) from None

    async def _call_after_pause(
        self, call: Callable[[Client], Awaitable[T]], tried: Tried, is_proof: bool = True
    ) -> T:
        """Make a call once the pause is over, and again after each pause that it causes."""
        while True:
            while (left := self._pause_ends - monotonic()) > 0:
                await self._sleep(left + self._random.random() * min(PAUSE_SPREAD * left, 1.0))
            sent_at = monotonic()
            try:
                result = await self.deployment.ask(call, tried, is_proof=is_proof)
            except ServerBusy as busy:
                if not self.deployment.has_other(tried):
                    self._pause(busy, sent_at)
                    tried.clients.clear()
            else:
                self._failures = 0
                self._pauses = 0
                return result

    def _pause(self, busy: ServerBusy, sent_at: float) -> None:
        """Let all callers wait for a while.

        Args:
            busy: the server's reply.
            sent_at: when the call was sent. If a pause began since then, it does not count as a
                further pause.

        Raises:
            Refusal: the server was waited for too many times.
            Outage: the server asks for too long a wait.
        """
        is_new = sent_at >= self._pause_began
        if is_new:
            self._pauses += 1
            self._pause_began = monotonic()
        if self._pauses > self.max_pauses:
            message = f"{busy}; still so after {self.max_pauses} waits"
            raise Refusal(message, needs_probe=True, may_pass=True)
        wait_s = busy.wait_s or FIRST_PAUSE_S * 2 ** (self._pauses - 1)
        if wait_s > self.max_wait_s:
            raise Outage(f"{busy}; it asks to wait {wait_s:.0f} s, more than {self.max_wait_s:.0f}")
        self._pause_ends = max(self._pause_ends, monotonic() + wait_s)
        if is_new and wait_s >= MIN_LOGGED_WAIT_S:
            LOGGER.warning("%s; no calls are sent to it for %.0f s", busy, wait_s)

    async def _sleep(self, seconds: float) -> None:
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            if self.is_stopped():
                raise Cancellation
            await anyio.sleep(min(left, TICK_S))
