"""One chat completion, from the request to the last byte."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from hierrouter.engines.bills import NO_BILL, Bill, read_usage
from hierrouter.engines.endpoint_client import DONE
from hierrouter.engines.generator import NO_OPTIONS, CallOptions
from hierrouter.serving import ServerSettings, chat
from hierrouter.serving.decisions import EncoderDown
from hierrouter.serving.guard import CLIENT_CLOSED_STATUS, status_of
from hierrouter.serving.messages import Unroutable
from hierrouter.serving.models import CallFailed, OnText
from hierrouter.serving.monitoring import Metrics, RequestLog
from hierrouter.serving.remote_model import ServedModel
from hierrouter.serving.results import Hop, RouteResult
from hierrouter.serving.router import RouteOptions
from hierrouter.serving.versions import Version, Versions
from hierrouter_cache.errors import InputError
from hierrouter_cache.tree import Rate

ROUTE_HEADER = "x-hierrouter-route"
COST_HEADER = "x-hierrouter-cost"
DEFERRED_HEADER = "x-hierrouter-deferred"
IGNORED_HEADER = "x-hierrouter-ignored"
OTHERWISE_HEADER = "x-hierrouter-otherwise"
DEFERRAL_PREFIX = "defer>"  # before the model of a deferral, among the actions of a shadow
MAX_WAITING_EVENTS = 64  # of a stream that is passed on, until the client has read them
UNBUFFERED_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # the second: nginx
EVENT_STREAM = "text/event-stream"
DONE_EVENT = "data: [DONE]\n\n"

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class Server:
    """The objects that live as long as the application: routers, settings, metrics and log.

    Args:
        versions: answer the questions.
        settings: of the server.
        log: receives one line for each question.
    """

    def __init__(self, versions: Versions, settings: ServerSettings, log: RequestLog) -> None:
        self.versions = versions
        self.settings = settings
        self.log = log
        self.rng = None if settings.seed is None else np.random.default_rng(settings.seed)
        self.metrics = Metrics()
        self._background = set[asyncio.Task[None]]()

    def spawn(self, work: Awaitable[None]) -> None:
        """Run a coroutine, or a task that was started already, in the background."""
        task = asyncio.ensure_future(work)
        # Keep a reference: asyncio has only weak ones, and might drop the task before its end.
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def end(self) -> None:
        """Finish the work in the background, then close models and log."""
        await asyncio.gather(*self._background, return_exceptions=True)
        try:
            await self.versions.close()
        finally:
            self.log.close()


@dataclass
class ChatAnswer:
    """One completion.

    Attributes:
        server: answers.
        request: its body.
        http: the HTTP request, which ends when the client leaves.
        completion_id: of the completion.
        question: of its messages, as models see it.
        call_options: what the client wants beside a text.
        hops: the calls so far.
        unlogged_failure: the question was too long for every model, and the request may still be
            passed on. How that ends decides about the request's only line in the log.
    """

    server: Server
    request: chat.ChatRequest
    http: Request
    completion_id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    question: str = ""
    call_options: CallOptions = NO_OPTIONS
    hops: list[Hop] = field(default_factory=list)
    unlogged_failure: CallFailed | None = None

    async def response(self) -> Response:
        """Answer the client.

        Raises:
            InputError: the request cannot be answered.
            CallFailed: a model gave no response, and nothing was sent yet.
            HTTPException: the client has left.
        """
        try:
            return await self._route_or_forward()
        except (asyncio.CancelledError, Exception) as error:
            if self.unlogged_failure is not None:  # it was not passed on either
                failures = (*self.unlogged_failure.earlier, self.unlogged_failure)
                self._log_failure(error, failures)
            raise

    async def _route_or_forward(self) -> Response:
        """Answer with a route; pass on a request that no route can answer.

        Here `--otherwise` comes in: for a request that the router cannot take, or a question that
        is too long for every model that `_Routing` of `hierrouter.serving.router` has tried.
        """
        try:
            self.question, self.call_options = self.request.question_and_options()
            version = self._version()
            self._require_able_model(version)
            if self.request.stream:
                return await self._stream(version)
            return await self._complete(version)
        except (Unroutable, CallFailed) as error:
            otherwise = self._forward_target(error)
            if otherwise is None:
                raise
            reason = str(error)
        return await self._forward(otherwise, reason)

    def _forward_target(self, error: Unroutable | CallFailed) -> str | None:
        """Return the model that a request with this failure is passed on to; None for none."""
        if isinstance(error, CallFailed) and (error.has_begun or not error.is_too_long):
            # Once the client has read the beginning of an answer, no other model can go on.
            return None
        return self.server.settings.otherwise

    def _version(self) -> Version:
        """Return the version that answers.

        The candidate answers only for names that it has, for example not for any alpha.
        """
        lineup = self.server.versions.lineup
        version = lineup.pick(self.question)
        try:
            version.names.require(self.request.model)
        except chat.UnknownModel:
            version = lineup.current
        return version

    def _require_able_model(self, version: Version) -> None:
        """Refuse a request for more than a text if no model of the pool can give it.

        Raises:
            Unroutable: no model can.
        """
        needs = self.call_options.needs
        router = version.router
        if not any(needs <= router.models[spec.name].abilities for spec in router.pool.models):
            raise Unroutable(
                f"no model takes {', '.join(sorted(needs))}; name it in `takes` of a model's "
                "endpoint, or serve with --otherwise MODEL"
            )

    async def _complete(self, version: Version) -> Response:
        """Return the answer in one piece."""
        result = await self._unless_client_leaves(version.start(self._route(version, None)))
        headers = {
            **self._ignored_header(version),
            ROUTE_HEADER: quote(result.route, safe=">./:@+ "),  # names may have any characters
            COST_HEADER: f"{result.cost:.9g}",
        }
        if result.deferred_to:
            headers[DEFERRED_HEADER] = quote(result.deferred_to)
        body = chat.completion(self.completion_id, self.request.model, result)
        return JSONResponse(body, headers=headers)

    def _ignored_header(self, version: Version) -> dict[str, str]:
        """Return the header that lists settings which the answering model does not heed.

        In a stream the last call so far counts: it gives the answer, or the answer is an earlier
        one and comes without further calls.
        """
        if self.hops and version.router.model_of(self.hops[-1].model).takes_settings:
            return {}
        settings = self.call_options.settings
        return {IGNORED_HEADER: chat.setting_list(settings)} if settings else {}

    async def _route(self, version: Version, on_text: OnText | None) -> RouteResult:
        """Route the question, and record how it ended in log and metrics.

        `Version.start` has to start it, so that a reload waits for its end.
        """
        server = self.server
        model = self.request.model
        alpha = self.request.hierrouter.alpha
        if alpha is None:
            alpha = version.names.alpha(model)
        options = RouteOptions(
            alpha=alpha,
            rng=server.rng,
            reroute=server.settings.reroute,
            call_options=self.call_options,
            on_text=on_text,
            on_hop=self._on_hop,
            group=self.request.hierrouter.group,
        )
        try:
            result = await version.router.aroute(self.question, options)
        except InputError:  # refused before any call, so there is nothing to log
            raise
        except CallFailed as error:
            for call in (*error.earlier, error):
                server.metrics.failed.labels(call.model).inc()
            if self._forward_target(error) is None:
                self._log_failure(error, error.earlier)
            else:
                self.unlogged_failure = error  # `response` logs it if no other model answers
            raise
        except (asyncio.CancelledError, Exception) as error:
            self._log_failure(error)
            raise
        server.metrics.answered.labels(version.name).inc()
        shadow = server.versions.lineup.shadow
        if shadow is None:
            server.log.log_answer(self.completion_id, model, version.name, result)
        else:
            # The client does not wait for the shadow's decisions.
            server.spawn(shadow.start(self._log_with_shadow(version, shadow, result)))
        return result

    def _log_failure(self, error: BaseException, instead_of: Sequence[CallFailed] = ()) -> None:
        """Log that the question gets no answer.

        Args:
            error: why.
            instead_of: as in `RequestLog.log_failure`.
        """
        if isinstance(error, CallFailed):
            status = status_of(error)
            reason = str(error)
        elif isinstance(error, EncoderDown):
            status = 503
            reason = str(error)
        elif isinstance(error, asyncio.CancelledError | HTTPException):
            status = CLIENT_CLOSED_STATUS
            reason = "the client left"
        else:
            status = 500
            reason = f"unexpected: {type(error).__name__}"
        self.server.log.log_failure(
            self.completion_id,
            self.request.model,
            self.question,
            self.hops,
            status,
            reason,
            instead_of,
        )

    async def _log_with_shadow(
        self, version: Version, shadow: Version, result: RouteResult
    ) -> None:
        """Log the answer, with what the shadow would have done at each of its decisions."""
        shadow_log: dict[str, Any] = {"policy": shadow.name}
        try:
            options = RouteOptions(
                shadow.names.alpha(self.request.model), group=self.request.hierrouter.group
            )
            router = shadow.router
            names = router.policy.at(options.alpha).actions.names(router.policy.origin.models)
            shadow_log["would"] = []
            for calls, hop in enumerate(result.hops):
                decision = await router.decide(result.question, result.hops[:calls], options)
                shadow_action = names[decision.action]
                if decision.deferred_to:
                    shadow_action = f"{DEFERRAL_PREFIX}{decision.deferred_to}"
                shadow_log["would"].append(shadow_action)
                is_same = shadow_action == _action_name(hop)
                self.server.metrics.shadow.labels(str(is_same).lower()).inc()
        except Exception as error:  # whatever it is, the client has its answer: log that
            shadow_log["error"] = str(error) or type(error).__name__
        self.server.log.log_answer(
            self.completion_id, self.request.model, version.name, result, shadow_log
        )

    def _on_hop(self, hop: Hop) -> None:
        self.hops.append(hop)
        self.server.metrics.count_hop(hop)

    async def _stream(self, version: Version) -> Response:
        """Return the answer as it grows; an error before its first text fails the request."""
        texts: asyncio.Queue[str | None] = asyncio.Queue()
        task = version.start(self._route(version, texts.put_nowait))
        first = await self._first(task, texts)
        headers = {**self._ignored_header(version), **UNBUFFERED_HEADERS}
        events = self._events(task, texts, first)
        return StreamingResponse(events, media_type=EVENT_STREAM, headers=headers)

    async def _events(
        self, task: asyncio.Task[RouteResult], texts: asyncio.Queue[str | None], first: str | None
    ) -> AsyncIterator[str]:
        """Yield the events of a stream.

        Args:
            task: routes the question.
            texts: what it streams, None at the end.
            first: the first element of `texts`, which was taken already.
        """
        completion_id = self.completion_id
        model = self.request.model
        stream_options = self.request.stream_options
        include_usage = bool(stream_options and stream_options.include_usage)
        try:
            role = {"role": "assistant", "content": ""}
            yield _event(chat.chunk(completion_id, model, role))
            text = first
            while text is not None:
                yield _event(chat.chunk(completion_id, model, {"content": text}))
                text = await texts.get()
            result = await task
            for chunk in chat.last_chunks(completion_id, model, result, include_usage):
                yield _event(chunk)
            yield DONE_EVENT
        except CallFailed as error:
            yield _event(chat.error_object(str(error), "upstream_error", error.status))
        except Exception as error:  # the HTTP status is sent: only an event can report it
            LOG.exception("a stream broke")
            yield _event(chat.error_object(f"unexpected: {type(error).__name__}", "server_error"))
        finally:
            task.cancel()

    async def _forward(self, name: str, reason: str) -> Response:
        """Pass the request on unchanged to a model, and return its reply.

        Args:
            name: of the model.
            reason: why the request is not routed.

        Raises:
            CallFailed: the model gives no reply.
        """
        router = self.server.versions.lineup.current.router
        model = router.models[name]
        assert isinstance(model, ServedModel)
        passage = _Passage(self, name, reason, router.rate_of(name))
        headers = {OTHERWISE_HEADER: quote(f"{name}; {reason}", safe=">./:@+ ,;'()")[:500]}
        self.server.metrics.otherwise.inc()
        body = self.request.body_to_forward()
        try:
            if self.request.stream:
                task = asyncio.create_task(passage.run(model, body))
                first = await self._unless_client_leaves(passage.first(task))
                headers.update(UNBUFFERED_HEADERS)
                events = passage.rest(task, first)
                return StreamingResponse(events, media_type=EVENT_STREAM, headers=headers)
            text = await self._unless_client_leaves(model.forward(body))
        except CallFailed as error:
            if self.unlogged_failure is None:  # else `response` logs both
                passage.note_end(str(error), status_of(error))
            self.server.metrics.failed.labels(name).inc()
            raise
        passage.read_usage(_usage_in(text))
        cost = passage.note_end()
        if cost is not None:
            headers[COST_HEADER] = f"{cost:.9g}"
        return Response(text, media_type="application/json", headers=headers)

    async def _first(self, task: asyncio.Task[Any], queue: asyncio.Queue[str | None]) -> str | None:
        """Wait for the first element that a task puts into its queue.

        Returns:
            The element; None if the task ended without one. None also ends the queue later.

        Raises:
            Exception: what the task raised before its first element.
            HTTPException: the client has left.
        """
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            first = await self._unless_client_leaves(queue.get())
        except BaseException:
            task.cancel()
            raise
        if first is None and (error := task.exception()):
            raise error
        return first

    async def _unless_client_leaves(self, work: Awaitable[T]) -> T:
        """Wait for work, and cancel it if the client leaves.

        Raises:
            HTTPException: the client has left.
        """
        working = asyncio.ensure_future(work)
        leaving = asyncio.create_task(self._client_leaves())
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise HTTPException(CLIENT_CLOSED_STATUS, "the client left")
            return working.result()
        finally:
            working.cancel()
            leaving.cancel()

    async def _client_leaves(self) -> None:
        """Wait until the client has left."""
        while (await self.http.receive())["type"] != "http.disconnect":
            pass


def _action_name(hop: Hop) -> str:
    """Return the name of the action that led to a call, as in `Actions.names`."""
    if hop.is_deferred:
        return f"{DEFERRAL_PREFIX}{hop.model}"
    return f"{hop.model}>stop" if hop.stops else hop.model


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, allow_nan=False)}\n\n"


def _usage_in(body: str) -> Any:
    """Return the usage in the reply of another server, not validated; None if it has none."""
    try:
        return json.loads(body).get("usage")
    except (ValueError, AttributeError, RecursionError):
        return None


@dataclass
class _Passage:
    """A request that is passed on, and what it is billed for.

    The events of a stream wait here for the client; while `MAX_WAITING_EVENTS` do, the server that
    sends them has to wait, too.

    Attributes:
        answer: the completion.
        name: of the model that answers.
        reason: why the request is not routed.
        rate: prices of the model; None if they are not known.
    """

    answer: ChatAnswer
    name: str
    reason: str
    rate: Rate | None
    _bill: Bill = NO_BILL
    _is_done: bool = False
    _events: asyncio.Queue[bytes | None] = field(
        default_factory=lambda: asyncio.Queue(MAX_WAITING_EVENTS)
    )

    async def run(self, model: ServedModel, body: Mapping[str, Any]) -> None:
        """Ask for the stream.

        Raises:
            CallFailed: there is none, or it broke off.
        """
        try:
            await model.forward(body, self._receive)
        except CallFailed:
            await self._events.put(None)
            raise
        await self._events.put(None)

    async def first(self, task: asyncio.Task[None]) -> bytes:
        """Return the first event.

        Args:
            task: of `run`; it is cancelled if this is.

        Raises:
            CallFailed: there is none.
        """
        try:
            event = await self._events.get()
            if event is None:
                await task
        except asyncio.CancelledError:
            task.cancel()
            raise
        return event or b""

    async def rest(self, task: asyncio.Task[None], first: bytes) -> AsyncIterator[bytes]:
        """Yield all events, and an error instead of the end if the stream breaks off."""
        fault = "the client left"
        event: bytes | None = first
        try:
            while event is not None:
                yield event
                event = await self._events.get()
            await task
            fault = ""
            if not self._is_done:  # some servers leave out the last event
                yield DONE_EVENT.encode()
        except CallFailed as error:
            fault = str(error)
            self.answer.server.metrics.failed.labels(self.name).inc()
            yield _event(chat.error_object(fault, "upstream_error", error.status)).encode()
        finally:
            task.cancel()
            self.note_end(fault)

    def read_usage(self, usage: Any) -> None:
        """Read the token counts, if they are possible ones."""
        with suppress(ValueError):
            self._bill = read_usage(usage)

    def note_end(self, fault: str = "", status: int = 200) -> float | None:
        """Count and log how the request ended.

        Args:
            fault: why there is no complete answer; "" if there is one.
            status: of the HTTP reply.

        Returns:
            What it costs; None if that is not known.
        """
        bill = self._bill
        cost = None
        usage: dict[str, float] = {}
        if bill.tokens_in is not None and bill.tokens_out is not None:
            usage = {"tokens_in": float(bill.tokens_in), "tokens_out": float(bill.tokens_out)}
            if self.rate is not None:
                cost = bill.cost_at(self.rate, bill.tokens_in, bill.tokens_out)
                usage["cost"] = cost
        server = self.answer.server
        if status == 200:  # else nothing was answered, and nothing is billed
            server.metrics.count_forward(self.name, bill, cost, is_complete=not fault)
        server.log.log_forward(
            self.answer.completion_id,
            self.answer.request.model,
            self.name,
            self.reason,
            usage,
            fault,
            status,
        )
        return cost

    async def _receive(self, event: bytes, value: Any) -> None:
        """Take an event of the stream; counts that the client did not ask for are for us alone."""
        self._is_done = self._is_done or value == DONE
        if isinstance(value, dict) and isinstance(value.get("usage"), dict):
            self.read_usage(value["usage"])
            options = self.answer.request.stream_options
            if value.get("choices") == [] and not (options and options.include_usage):
                return
        await self._events.put(event)
