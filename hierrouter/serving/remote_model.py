"""A model on another server, called over HTTP, prompt by prompt."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import anyio

from hierrouter.engines.dialects import STREAM_OPTIONS_FIELD
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

# Pauses while a server is busy: one second and two, unless it asks for another time. A collection
# is more patient, but here a person waits.
MAX_LIVE_PAUSES = 2
MAX_LIVE_WAIT_S = 10.0
CHECK_S = 5.0  # between two checks of a server that failed, and the timeout of each

T = TypeVar("T")


class ServedModel:
    """One model of one server; for one event loop.

    Args:
        spec: the model, with its endpoint.
        caller: makes the requests and reads the replies.
        fault: why the model cannot be called now; "" if it can.
    """

    def __init__(self, spec: ModelSpec, caller: Caller, fault: str = "") -> None:
        endpoint = endpoint_of(spec)
        self._name = spec.name
        self._model = spec.model
        self._caller = caller
        self._client = Deployment(endpoint, endpoint.key(f"model {spec.name}"))
        width = endpoint.concurrency * len(endpoint.servers)
        self._limiter = anyio.CapacityLimiter(width)
        self._patience = Patience(
            endpoint.attempts,
            width,
            partial(self._caller.probe, self._client),
            never,
            max_pauses=MAX_LIVE_PAUSES,
            max_wait_s=MAX_LIVE_WAIT_S,
        )
        self.abilities = frozenset(endpoint.takes)
        self.takes_settings = True
        self.fault = fault
        self.has_changed = False
        self._next_check = 0.0

    async def answer(
        self, prompt: str, on_text: OnText | None = None, options: CallOptions = NO_OPTIONS
    ) -> Response:
        """Return the response to one prompt; see `LiveModel.answer`.

        Raises:
            CallFailed: the server has no response, or broke off after a part of it.
        """
        answer = await self._call(partial(self._attempt, prompt, on_text, options))
        if isinstance(answer, Failure):
            raise CallFailed(self._name, answer.detail, answer.status)
        return answer

    async def forward(
        self, body: Mapping[str, Any], on_chunk: Callable[[str], None] | None = None
    ) -> str:
        """Pass on a client's request unchanged, except for the name of the model.

        Args:
            body: of a chat completion.
            on_chunk: receives each chunk of a stream, as JSON; None asks for a complete reply.

        Returns:
            The body of the reply; "" for a stream.

        Raises:
            CallFailed: the server gives no reply, or refuses.
        """
        request = {**body, "model": self._model}
        if on_chunk is not None and STREAM_OPTIONS_FIELD not in self._caller.dialect.refused:
            request[STREAM_OPTIONS_FIELD] = {"include_usage": True}

        async def pass_on(chunks: AsyncIterator[Any], _: OnText) -> str:
            assert on_chunk
            async for chunk in chunks:
                on_chunk(chunk.model_dump_json(exclude_unset=True))
            return ""

        call = partial(self._client.complete, request)
        if on_chunk is not None:
            call = partial(self._client.stream, request, pass_on, lambda text: None)
        reply = await self._call(call)
        return reply.body

    async def check(self) -> None:
        """If the model has a fault, ask its server for its models, at most every `CHECK_S`."""
        now = monotonic()
        if not self.fault or now < self._next_check:
            return
        self._next_check = now + CHECK_S
        try:
            with anyio.fail_after(CHECK_S):
                await self._client.list_models()
        except (TransientError, ServerBusy, Refusal, Outage, TimeoutError) as error:
            self.fault = str(error) or "no answer"
        else:
            self.fault = ""

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call with repeated attempts, and note in `fault` how it ended."""
        try:
            async with self._limiter:
                result = await self._patience.call_with_retries(call)
        except (Refusal, Outage, RuntimeError) as error:
            # RuntimeError: another model answers, or the reply has no token counts.
            self.fault = str(error)
            raise CallFailed(self._name, str(error)) from error
        self.fault = ""
        return result

    async def _attempt(self, prompt: str, on_text: OnText | None, options: CallOptions) -> Answer:
        """Make one attempt.

        A client cannot be asked to forget text, so a stream that breaks off is not tried again.
        """
        if on_text is None or "tools" in options.settings:  # tool calls come in one piece
            answer = await self._caller.complete(self._client, prompt, options=options)
            if on_text and isinstance(answer, Response) and answer.text:
                on_text(answer.text)
            return answer
        has_begun = False

        def follow(text: str) -> None:
            nonlocal has_begun
            has_begun = True
            on_text(text)

        try:
            return await self._caller.complete(self._client, prompt, follow, options)
        except (TransientError, ServerBusy) as error:
            if has_begun:
                raise Refusal(f"the answer broke off: {error}") from error
            raise

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()
