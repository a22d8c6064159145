"""A model that a server answers for, prompt by prompt."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import anyio

from hierrouter.engines.endpoint import Caller
from hierrouter.engines.endpoint_client import (
    Deployment,
    Patience,
    Refusal,
    ServerBusy,
    TransientError,
)
from hierrouter.engines.generator import (
    NO_OPTIONS,
    Answer,
    CallOptions,
    Failure,
    Outage,
    Response,
    never,
)
from hierrouter.engines.identity import endpoint_of
from hierrouter.pools.pool import ModelSpec
from hierrouter.serving.models import CallFailed, OnText

PAUSES = 2  # of a busy server, one second and two, unless it asks for another time
LONGEST_WAIT_S = 10.0
LOOK_S = 5.0  # from one look at a server that failed to the next, and for each

T = TypeVar("T")


class ServedModel:
    """One model of one server; for one event loop.

    Args:
        spec: the model, with its endpoint.
        caller: how it is asked.
        fault: why it cannot be asked now; "" where it can.
    """

    def __init__(self, spec: ModelSpec, caller: Caller, fault: str = "") -> None:
        endpoint = endpoint_of(spec)
        self._name, self._model = spec.name, spec.model
        self._caller = caller
        self._client = Deployment(endpoint, endpoint.key(f"model {spec.name}"))
        width = endpoint.concurrency * len(endpoint.servers)
        self._places = anyio.CapacityLimiter(width)
        self._patience = Patience(
            endpoint.attempts,
            width,
            partial(self._caller.probe, self._client),
            never,
            max_pauses=PAUSES,
            max_wait_s=LONGEST_WAIT_S,
        )
        self.takes = frozenset(endpoint.takes)
        self.takes_settings = True
        self.fault = fault
        self.changed = False
        self._next_look = 0.0

    async def answer(
        self, prompt: str, on_text: OnText | None = None, wanted: CallOptions = NO_OPTIONS
    ) -> Response:
        """The answer to one prompt; see `LiveModel`.

        Raises CallFailed: the server has none, or broke off after a part of it.
        """
        found = await self._tried(partial(self._attempt, prompt, on_text, wanted))
        if isinstance(found, Failure):
            raise CallFailed(self._name, found.detail, found.status)
        return found

    async def forward(
        self, body: Mapping[str, Any], on_piece: Callable[[str], None] | None = None
    ) -> str:
        """What the server says to a request that is passed on as it came, its model named.

        Raises CallFailed: it says nothing, or refuses.

        `body`: of a chat completion; `on_piece`: told each chunk of a stream, as JSON.
        """
        request = {**body, "model": self._model}

        async def gathered(pieces: AsyncIterator[Any], _: OnText) -> str:
            assert on_piece
            async for piece in pieces:
                on_piece(piece.model_dump_json(exclude_unset=True))
            return ""

        if on_piece is None:
            return await self._tried(partial(self._client.complete, request))
        return await self._tried(partial(self._client.stream, request, gathered, lambda text: None))

    async def look(self) -> None:
        """Ask a server that failed for its models, now and then."""
        if self.fault and (now := monotonic()) >= self._next_look:
            self._next_look = now + LOOK_S
            try:
                with anyio.fail_after(LOOK_S):
                    await self._client.list_models()
            except (TransientError, ServerBusy, Refusal, Outage, TimeoutError) as error:
                self.fault = str(error) or "no answer"
            else:
                self.fault = ""

    async def _tried(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            async with self._places:
                found = await self._patience.call_with_retries(call)
        except (Refusal, Outage, RuntimeError) as error:
            # RuntimeError: another model answers, or no tokens are counted.
            self.fault = str(error)
            raise CallFailed(self._name, str(error)) from error
        self.fault = ""
        return found

    async def _attempt(self, prompt: str, on_text: OnText | None, wanted: CallOptions) -> Answer:
        """One attempt; what was told cannot be taken back, so no second one follows on it."""
        if on_text is None or "tools" in wanted.settings:  # calls of tools come in one piece
            found = await self._caller.complete(self._client, prompt, options=wanted)
            if on_text and isinstance(found, Response) and found.text:
                on_text(found.text)
            return found
        has_begun = False

        def told(text: str) -> None:
            nonlocal has_begun
            has_begun = True
            on_text(text)

        try:
            return await self._caller.complete(self._client, prompt, told, wanted)
        except (TransientError, ServerBusy) as error:
            if has_begun:
                raise Refusal(f"the answer broke off: {error}") from error
            raise

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()
