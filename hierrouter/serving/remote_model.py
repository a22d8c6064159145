"""A model on another server, called over HTTP, prompt by prompt."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import anyio

from hierrouter.engines.dialects import STREAM_OPTIONS_FIELD
from hierrouter.engines.endpoint import Caller
from hierrouter.engines.endpoint_client import Client, OnEvent, Refusal, ServerBusy, TransientError
from hierrouter.engines.generator import NO_OPTIONS, Answer, CallOptions, Failure, Outage, Response
from hierrouter.engines.health import Deployment, Patience, Tried
from hierrouter.engines.identity import endpoint_of
from hierrouter.pools.pool import ModelSpec
from hierrouter.serving.models import CallFailed, OnText

# Pauses while a server is busy: one second and two, unless it asks for another time. A collection
# is more patient, but here a person waits.
MAX_LIVE_PAUSES = 2
MAX_LIVE_WAIT_S = 10.0
LIVE_BUDGET_S = 10.0  # after that a call is not tried again
CHECK_S = 5.0  # timeout of a test call

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
        self._deployment = Deployment(endpoint, endpoint.key(f"model {spec.name}"), spec.model)
        width = endpoint.concurrency * len(endpoint.servers)
        self._limiter = anyio.CapacityLimiter(width)
        self._patience = Patience(
            self._deployment,
            endpoint.attempts,
            width,
            self._caller.probe,
            max_pauses=MAX_LIVE_PAUSES,
            max_wait_s=MAX_LIVE_WAIT_S,
            budget_s=LIVE_BUDGET_S,
        )
        self.abilities = frozenset(endpoint.takes)
        self.takes_settings = True
        self.has_changed = False
        self._is_checking = False
        if fault:
            self._deployment.note_fault(fault)

    @property
    def fault(self) -> str:
        """Why the model cannot be called; "" if it can, as far as is known."""
        return self._deployment.fault

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

    async def forward(self, body: Mapping[str, Any], on_event: OnEvent | None = None) -> str:
        """Pass on a client's request unchanged, except for the name of the model.

        A stream is asked for its token counts as well, because they are on our bill. If that is
        refused, the request goes out as the client has sent it.

        Args:
            body: of a chat completion.
            on_event: receives each event of a stream as it came, see `Client.pass_on`; None asks
                for a complete reply.

        Returns:
            The body of the reply; "" for a stream.

        Raises:
            CallFailed: the server gives no reply, refuses, or broke off after a part of it.
        """
        request = {**body, "model": self._model}
        if on_event is None:
            reply = await self._call(lambda client: client.complete(request))
            return reply.body
        if STREAM_OPTIONS_FIELD not in self._caller.dialect.refused:
            options = body.get(STREAM_OPTIONS_FIELD) or {}
            request[STREAM_OPTIONS_FIELD] = {**options, "include_usage": True}
        has_begun = False

        async def follow(event: bytes, value: Any) -> None:
            nonlocal has_begun
            has_begun = True
            self._deployment.keep_call()
            await on_event(event, value)

        async def attempt(client: Client) -> None:
            try:
                try:
                    await client.pass_on(request, follow)
                except Refusal as refusal:
                    is_ours = STREAM_OPTIONS_FIELD in refusal.complaint.fields
                    if has_begun or not is_ours or STREAM_OPTIONS_FIELD in body:
                        raise
                    del request[STREAM_OPTIONS_FIELD]
                    await client.pass_on(request, follow)
            except (TransientError, ServerBusy) as error:
                if has_begun:
                    raise _broken_off(error) from error
                raise

        await self._call(attempt)
        return ""

    async def check(self) -> None:
        """If the model has a fault and its rest is over, make one test call.

        Its list of models would not tell: a server that fails at every prompt may have one.
        """
        if self._is_checking or not self.fault or self._deployment.rest_s > 0:
            return
        self._is_checking = True
        try:
            with anyio.fail_after(CHECK_S):
                await self._deployment.ask(self._caller.probe, Tried())
        except TimeoutError:
            self._deployment.note_fault("no answer to a test call")
        except (TransientError, ServerBusy, Refusal, Outage, RuntimeError):
            pass  # the deployment takes note of it
        finally:
            self._is_checking = False

    async def _call(self, call: Callable[[Client], Awaitable[T]]) -> T:
        """Make a call with repeated attempts."""
        try:
            async with self._limiter:
                return await self._patience.call_with_retries(call)
        except (Refusal, Outage, RuntimeError) as error:
            if isinstance(error, Refusal) and error.may_pass:
                # After all attempts, however few: a model that hangs must not get the next call.
                self._deployment.note_fault(str(error))
            raise CallFailed(self._name, str(error)) from error

    async def _attempt(
        self, prompt: str, on_text: OnText | None, options: CallOptions, client: Client
    ) -> Answer:
        """Make one attempt.

        A client cannot be asked to forget text, so a stream that breaks off is not tried again.
        """
        if on_text is None or "tools" in options.settings:  # tool calls come in one piece
            answer = await self._caller.complete(client, prompt, options=options)
            if on_text and isinstance(answer, Response) and answer.text:
                on_text(answer.text)
            return answer
        has_begun = False

        def follow(text: str) -> None:
            nonlocal has_begun
            has_begun = True
            self._deployment.keep_call()
            on_text(text)

        try:
            return await self._caller.complete(client, prompt, follow, options)
        except (TransientError, ServerBusy) as error:
            if has_begun:
                raise _broken_off(error) from error
            raise

    async def close(self) -> None:
        """Close every connection."""
        await self._deployment.close()


def _broken_off(error: Exception) -> Refusal:
    """Return the error of an answer whose beginning the client has read."""
    return Refusal(f"the answer broke off: {error}")
