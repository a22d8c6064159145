"""A model that a server answers for, prompt by prompt."""

from functools import partial

import anyio

from hierrouter.engines.endpoint import Caller
from hierrouter.engines.endpoint_client import Again, Busy, Deployment, Patience, Refused
from hierrouter.engines.generator import Answer, Failure, Outage, Response, never
from hierrouter.engines.identity import endpoint_of
from hierrouter.pools.pool import ModelSpec
from hierrouter.serving.models import CallFailed, OnText

PAUSES = 2  # of a busy server, one second and two, unless it asks for another time
LONGEST_WAIT_S = 10.0


class ServedModel:
    """One model of one server; for one event loop.

    Args:
        spec: the model, with its endpoint.
        caller: how it is asked.
    """

    def __init__(self, spec: ModelSpec, caller: Caller) -> None:
        endpoint = endpoint_of(spec)
        self._name = spec.name
        self._caller = caller
        self._client = Deployment(endpoint, endpoint.key(f"model {spec.name}"))
        width = endpoint.concurrency * len(endpoint.servers)
        self._places = anyio.CapacityLimiter(width)
        self._patience = Patience(
            endpoint.attempts,
            width,
            partial(self._caller.probe, self._client),
            never,
            pauses=PAUSES,
            longest_wait_s=LONGEST_WAIT_S,
        )

    async def answer(self, prompt: str, on_text: OnText | None = None) -> Response:
        """The answer to one prompt; see `LiveModel`.

        Raises CallFailed: the server has none, or broke off after a part of it.
        """
        call = partial(self._attempt, prompt, on_text)
        try:
            async with self._places:
                found = await self._patience.tried(call)
        except (Refused, Outage, RuntimeError) as error:
            # RuntimeError: another model answers, or no tokens are counted.
            raise CallFailed(self._name, str(error)) from error
        if isinstance(found, Failure):
            raise CallFailed(self._name, found.detail, found.status)
        return found

    async def _attempt(self, prompt: str, on_text: OnText | None) -> Answer:
        """One attempt; what was told cannot be taken back, so no second one follows on it."""
        if on_text is None:
            return await self._caller.complete(self._client, prompt)
        has_begun = False

        def told(text: str) -> None:
            nonlocal has_begun
            has_begun = True
            on_text(text)

        try:
            return await self._caller.complete(self._client, prompt, told)
        except (Again, Busy) as error:
            if has_begun:
                raise Refused(f"the answer broke off: {error}") from error
            raise

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()
