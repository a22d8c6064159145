"""One chat completion, from the request to the last byte."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from hierrouter.engines.generator import NO_OPTIONS, CallOptions
from hierrouter.serving import Settings, chat
from hierrouter.serving.guard import LEFT, status_of
from hierrouter.serving.messages import Unroutable
from hierrouter.serving.models import CallFailed, OnText
from hierrouter.serving.router import TOO_LONG, Hop, RouteOptions, RouteResult
from hierrouter.serving.served import ServedModel
from hierrouter.serving.versions import Version, Versions
from hierrouter.serving.watching import Metrics, RequestLog
from hierrouter_cache.errors import InputError

ROUTE_HEADER, COST_HEADER = "x-hierrouter-route", "x-hierrouter-cost"
DEFERRED_HEADER = "x-hierrouter-deferred"
IGNORED_HEADER, OTHERWISE_HEADER = "x-hierrouter-ignored", "x-hierrouter-otherwise"
DEFERS = "defer>"  # before the model that a question is handed over to
UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # by proxies, too
EVENTS = "text/event-stream"
DONE = "data: [DONE]\n\n"

LOG = logging.getLogger(__name__)

T = TypeVar("T")


class Server:
    """What lives as long as the application.

    Args:
        versions: who answers.
        settings: how.
        log: told of each question.
    """

    def __init__(self, versions: Versions, settings: Settings, log: RequestLog) -> None:
        self.versions = versions
        self.settings = settings
        self.log = log
        self.rng = None if settings.seed is None else np.random.default_rng(settings.seed)
        self.metrics = Metrics()
        self._background = set[asyncio.Task[None]]()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def end(self) -> None:
        """Finish what nobody waits for; let go of the models and the log."""
        await asyncio.gather(*self._background, return_exceptions=True)
        try:
            await self.versions.close()
        finally:
            self.log.close()


@dataclass
class ChatAnswer:
    """One completion.

    Attributes:
        server: what answers.
        request: what was asked for.
        http: the request as it came, which tells when the client leaves.
        name: id of the completion.
        question: what its messages ask, as models see it.
        wanted: what the answer is to heed.
        hops: the calls so far.
    """

    server: Server
    request: chat.ChatRequest
    http: Request
    name: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    question: str = ""
    wanted: CallOptions = NO_OPTIONS
    hops: list[Hop] = field(default_factory=list)

    async def response(self) -> Response:
        """The answer to the client.

        Raises InputError: what cannot be asked; CallFailed: a model gave no answer, and nothing was
        sent yet; HTTPException: the client has left.
        """
        try:
            self.question, self.wanted = self.request.asked()
            version = self._version()
            self._require_able(version)
            return await (self._stream if self.request.stream else self._whole)(version)
        except (Unroutable, CallFailed) as error:
            is_for_others = isinstance(error, Unroutable) or error.status == TOO_LONG
            if self.server.settings.otherwise is None or not is_for_others:
                raise
            reason = str(error)
        return await self._otherwise(self.server.settings.otherwise, reason)

    def _version(self) -> Version:
        """Who answers; a candidate only what it can be asked for."""
        lineup = self.server.versions.lineup
        version = lineup.pick(self.question)
        try:
            version.names.alpha(self.request.model)
        except chat.UnknownModel:
            version = lineup.current
        return version

    def _require_able(self, version: Version) -> None:
        """Raises Unroutable: no model of the pool takes what is wanted."""
        needs, router = self.wanted.needs, version.router
        if not any(needs <= router.models[model.name].takes for model in router.pool.models):
            wanted = ", ".join(sorted(needs))
            raise Unroutable(
                f"no model takes {wanted}; name it in `takes` of a model's endpoint, or serve "
                "with --otherwise MODEL"
            )

    async def _whole(self, version: Version) -> Response:
        result = await self._unless_gone(self._route(version, None))
        headers = {
            **self._ignored(version),
            ROUTE_HEADER: quote(result.route, safe=">./:@+ "),  # a name may have anything
            COST_HEADER: f"{result.cost:.9g}",
        }
        if result.deferred_to:
            headers[DEFERRED_HEADER] = quote(result.deferred_to)
        return JSONResponse(chat.completion(self.name, self.request.model, result), headers=headers)

    def _ignored(self, version: Version) -> dict[str, str]:
        """The settings that the model whose answer is given does not heed, as a header.

        Of a stream that of the last call so far: the answer is its, or was chosen.
        """
        models = version.router.models
        heeds = bool(self.hops) and models[self.hops[-1].model].takes_settings
        names = () if heeds else self.wanted.settings
        return {IGNORED_HEADER: chat.listed(names)} if names else {}

    async def _route(self, version: Version, on_text: OnText | None) -> RouteResult:
        """Route the question, and note what became of it."""
        server, model, wanted = self.server, self.request.model, self.request.hierrouter
        alpha = version.names.alpha(model) if wanted.alpha is None else wanted.alpha
        options = RouteOptions(
            alpha, server.rng, server.settings.reroute, self.wanted, on_text, self._on_hop
        )
        failed = partial(server.log.failed, self.name, model, self.question, self.hops)
        try:
            with version.at_work():
                result = await version.router.aroute(self.question, options)
        except InputError:  # refused before any call
            raise
        except CallFailed as error:
            for call in (*error.earlier, error):
                server.metrics.failed.labels(call.model).inc()
            failed(status_of(error), str(error), error.earlier)
            raise
        except asyncio.CancelledError:
            failed(LEFT, "the client left")
            raise
        except Exception as error:
            failed(500, f"unexpected: {type(error).__name__}")
            raise
        server.metrics.answered.labels(version.name).inc()
        shadow = server.versions.lineup.shadow
        if shadow is None:
            server.log.answered(self.name, model, version.name, result)
        else:
            server.spawn(self._shadowed(version, shadow, result))
        return result

    async def _shadowed(self, version: Version, shadow: Version, result: RouteResult) -> None:
        """Log the answer with what the shadow would have done at each of its decisions."""
        told: dict[str, Any] = {"policy": shadow.name}
        try:
            options = RouteOptions(shadow.names.alpha(self.request.model))
            names = shadow.router.policy.at(options.alpha).actions.names(
                shadow.router.policy.origin.models
            )
            with shadow.at_work():
                told["would"] = []
                for calls, hop in enumerate(result.hops):
                    decision = await shadow.router.decide(
                        result.question, result.hops[:calls], options
                    )
                    would, did = names[decision.action], f"{hop.model}{'>stop' * hop.stops}"
                    would = f"{DEFERS}{decision.hands_to}" if decision.hands_to else would
                    did = f"{DEFERS}{hop.model}" if hop.deferred else did
                    told["would"].append(would)
                    self.server.metrics.shadow.labels(str(would == did).lower()).inc()
        except Exception as error:  # whatever it is, the answer is given and has its line
            told["error"] = str(error) or type(error).__name__
        self.server.log.answered(self.name, self.request.model, version.name, result, told)

    def _on_hop(self, hop: Hop) -> None:
        self.hops.append(hop)
        self.server.metrics.called(hop)

    async def _stream(self, version: Version) -> Response:
        """The answer as it grows; an error before its first text is an error of the request."""
        texts: asyncio.Queue[str | None] = asyncio.Queue()
        task = asyncio.create_task(self._route(version, texts.put_nowait))
        first = await self._first(task, texts)
        headers = {**self._ignored(version), **UNBUFFERED}
        events = self._events(task, texts, first)
        return StreamingResponse(events, media_type=EVENTS, headers=headers)

    async def _events(
        self, task: asyncio.Task[RouteResult], texts: asyncio.Queue[str | None], text: str | None
    ) -> AsyncIterator[str]:
        name, model, options = self.name, self.request.model, self.request.stream_options
        try:
            yield _event(chat.chunk(name, model, {"role": "assistant", "content": ""}))
            while text is not None:
                yield _event(chat.chunk(name, model, {"content": text}))
                text = await texts.get()
            result = await task
            usage = bool(options and options.include_usage)
            for last in chat.last_chunks(name, model, result, usage):
                yield _event(last)
            yield DONE
        except CallFailed as error:
            yield _event(chat.error_object(str(error), "upstream_error", error.status))
        except Exception as error:  # the status is sent: only an event can tell it
            LOG.exception("a stream broke")
            yield _event(chat.error_object(f"unexpected: {type(error).__name__}", "server_error"))
        finally:
            task.cancel()

    async def _otherwise(self, name: str, reason: str) -> Response:
        """What another model says to the request as it came.

        Raises CallFailed: it gives no answer.
        """
        router, body = self.server.versions.lineup.current.router, self.request.forwarded()
        model = router.models[name]
        assert isinstance(model, ServedModel)
        said = quote(f"{name}; {reason}", safe=">./:@+ ,;'()")[:500]
        headers = {OTHERWISE_HEADER: said}
        self.server.metrics.otherwise.inc()
        noted = partial(self.server.log.passed_on, self.name, self.request.model, name, reason)
        if not self.request.stream:
            text = await self._unless_gone(model.forward(body))
            noted(_usage(text))
            return Response(text, media_type="application/json", headers=headers)
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        task = asyncio.create_task(model.forward(body, pieces.put_nowait))
        first = await self._first(task, pieces)
        noted({})

        async def events() -> AsyncIterator[str]:
            piece = first
            try:
                while piece is not None:
                    yield f"data: {piece}\n\n"
                    piece = await pieces.get()
                await task
                yield DONE
            except CallFailed as error:
                yield _event(chat.error_object(str(error), "upstream_error", error.status))
            finally:
                task.cancel()

        return StreamingResponse(events(), media_type=EVENTS, headers={**headers, **UNBUFFERED})

    async def _first(self, task: asyncio.Task[Any], queue: asyncio.Queue[str | None]) -> str | None:
        """What a task puts into its queue first, which ends in None; raises what the task raises
        before."""
        task.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            first = await self._unless_gone(queue.get())
        except BaseException:
            task.cancel()
            raise
        if first is None and (error := task.exception()):
            raise error
        return first

    async def _unless_gone(self, work: Awaitable[T]) -> T:
        """What the work gives; once the client has left, it is cancelled."""
        working = asyncio.ensure_future(work)
        gone = asyncio.create_task(self._left())
        try:
            await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise HTTPException(LEFT, "the client left")
            return working.result()
        finally:
            working.cancel()
            gone.cancel()

    async def _left(self) -> None:
        while (await self.http.receive())["type"] != "http.disconnect":
            pass


def _event(found: dict[str, Any]) -> str:
    return f"data: {json.dumps(found, allow_nan=False)}\n\n"


def _usage(body: str) -> dict[str, float]:
    """The tokens of an answer that nobody has checked."""
    try:
        told = json.loads(body)["usage"]
        tokens_in, tokens_out = float(told["prompt_tokens"]), float(told["completion_tokens"])
        return {"tokens_in": tokens_in, "tokens_out": tokens_out}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
