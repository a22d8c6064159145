"""A model that a server answers for.

In: a `ModelSpec` with an `Endpoint`. Out: its identity, and the answers to the prompts of a level,
`concurrency` of them under way at once. Not covered: one call (`caller`), and what the server says
(`completion`, `refusals`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from threading import Event

from hierrouter.collect.backends.endpoint.caller import Caller
from hierrouter.collect.backends.endpoint.client import Client, session
from hierrouter.collect.backends.endpoint.patience import TICK_S, GaveUp, Patience, Stopped
from hierrouter.collect.backends.endpoint.served import require_served
from hierrouter.collect.generator import Answer, Failure, Outage, Stop, never
from hierrouter.collect.identity import endpoint_of, served_identity
from hierrouter.endpoint import Endpoint
from hierrouter.pool import Identity, ModelSpec

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
