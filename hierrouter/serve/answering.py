"""One chat completion, from the request to the last byte.

In: a checked request. Out: a response, whole or as server-sent events. A stream begins with the
last call's first words, so that what fails before is a plain error with its status. Who leaves
takes his calls with him. Not covered: bodies (`chat`), errors as responses (`app`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from hierrouter.live.models import CallFailed, OnText
from hierrouter.live.routed import Hop, Routed
from hierrouter.live.router import Asked, Follow, Router
from hierrouter.serve import MAX_REQUESTS
from hierrouter.serve.chat import ChatRequest, completion, last_pieces, piece
from hierrouter.serve.errors import error_object, status_of
from hierrouter.serve.metrics import Metrics
from hierrouter.serve.names import Names
from hierrouter.serve.request_log import RequestLog
from hierrouter_cache.errors import InputError

ROUTE_HEADER, COST_HEADER = "x-hierrouter-route", "x-hierrouter-cost"
IGNORED_HEADER = "x-hierrouter-ignored"
UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # by proxies, too
LEFT = 499  # as nginx calls a client that is gone

LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """How a server works.

    Attributes:
        names: what clients may ask for.
        policy: name of the policy, for logs.
        key: clients must send it; None lets everybody in.
        seed: draw calls from the stochastic policy; None takes the likeliest.
        reroute: where a model gives no answer, take the next likeliest action, and say so.
        max_requests: that are under way at once; more are refused.
    """

    names: Names
    policy: str
    key: str | None = None
    seed: int | None = None
    reroute: bool = False
    max_requests: int = MAX_REQUESTS


@dataclass
class Server:
    """What lives as long as the application."""

    router: Router
    settings: Settings
    log: RequestLog
    rng: np.random.Generator | None
    metrics: Metrics = field(default_factory=Metrics)


@dataclass
class Answering:
    """One completion in the making.

    Attributes:
        server: what answers.
        name: id of the completion.
        request: what was asked for.
        question: what its messages ask.
        http: the request as it came, which tells when the client leaves.
        hops: the calls so far.
    """

    server: Server
    name: str
    request: ChatRequest
    question: str
    http: Request
    hops: list[Hop] = field(default_factory=list)

    async def response(self) -> Response:
        """The answer to the client.

        Raises:
            InputError: what cannot be asked.
            CallFailed: a model gave no answer, and nothing was sent yet.
            HTTPException: the client has left.
        """
        ignored = self.request.ignored
        headers = {IGNORED_HEADER: ignored} if ignored else {}
        if self.request.stream:
            return await self._streamed(headers)
        routed = await self._unless_gone(self._routed(None))
        body = completion(self.name, self.request.model, routed)
        route = quote(routed.route, safe=">./:@+ ")  # a name may have what no header takes
        told = {ROUTE_HEADER: route, COST_HEADER: f"{routed.cost:.9g}"}
        return JSONResponse(body, headers={**headers, **told})

    async def _routed(self, on_text: OnText | None) -> Routed:
        """Route the question, and note what became of it."""
        server, model = self.server, self.request.model
        wishes = self.request.hierrouter
        alpha = server.settings.names.alpha(model) if wishes.alpha is None else wishes.alpha
        asked = Asked(alpha, wishes.max_cost, server.rng, server.settings.reroute)
        try:
            follow = Follow(on_text, self._on_hop)
            routed = await server.router.aroute(self.question, asked, follow)
        except CallFailed as error:
            for failed in (*error.earlier, error):
                server.metrics.failed(failed.model)
            status, instead = status_of(error), error.earlier
            server.log.failed(self.name, model, status, str(error), self.hops, instead)
            raise
        except asyncio.CancelledError:
            server.log.failed(self.name, model, LEFT, "the client left", self.hops)
            raise
        except InputError:  # refused before any call
            raise
        except Exception as error:
            said = f"unexpected: {type(error).__name__}"
            server.log.failed(self.name, model, 500, said, self.hops)
            raise
        server.log.answered(self.name, model, server.settings.policy, routed)
        return routed

    def _on_hop(self, hop: Hop) -> None:
        self.hops.append(hop)
        self.server.metrics.called(hop)

    async def _streamed(self, headers: dict[str, str]) -> Response:
        texts: asyncio.Queue[str | None] = asyncio.Queue()
        task = asyncio.create_task(self._routed(texts.put_nowait))
        task.add_done_callback(lambda _: texts.put_nowait(None))
        try:
            first = await self._unless_gone(texts.get())
        except BaseException:
            task.cancel()
            raise
        if first is None and (error := task.exception()):
            raise error
        return StreamingResponse(
            self._events(task, texts, first),
            media_type="text/event-stream",
            headers={**headers, **UNBUFFERED},
        )

    async def _events(
        self, task: asyncio.Task[Routed], texts: asyncio.Queue[str | None], text: str | None
    ) -> AsyncIterator[str]:
        """The chunks of a stream whose first text is there."""
        name, model = self.name, self.request.model
        options = self.request.stream_options
        try:
            yield _event(piece(name, model, {"role": "assistant", "content": ""}))
            while text is not None:
                yield _event(piece(name, model, {"content": text}))
                text = await texts.get()
            routed = await task
            for found in last_pieces(name, model, routed, bool(options and options.include_usage)):
                yield _event(found)
            yield "data: [DONE]\n\n"
        except CallFailed as error:
            yield _event(error_object(str(error), "upstream_error", error.status))
        except Exception as error:  # the status is sent: only an event can tell it
            LOG.exception("a stream broke")
            yield _event(error_object(f"unexpected: {type(error).__name__}", "server_error"))
        finally:
            task.cancel()

    async def _unless_gone(self, work: Awaitable[T]) -> T:
        """What the work gives, as long as the client waits for it.

        Raises:
            HTTPException: it does not any more; the work is cancelled.
        """
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
        """Until the client has left."""
        while (await self.http.receive())["type"] != "http.disconnect":
            pass


def _event(found: dict[str, Any]) -> str:
    return f"data: {json.dumps(found, allow_nan=False)}\n\n"
