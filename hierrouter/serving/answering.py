"""One chat completion, from the request to the last byte: errors, counters and log, too."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.exceptions import HTTPException

from hierrouter.questions.query import storable
from hierrouter.serving import MAX_REQUESTS
from hierrouter.serving.chat import ChatRequest, Names, completion, last_pieces, piece
from hierrouter.serving.models import CallFailed, OnText
from hierrouter.serving.route import Asked, Follow, Hop, Routed, step_of
from hierrouter.serving.router import Router
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.keys import text_digest


def error_object(
    said: str, kind: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """The object that a client reads.

    Args:
        said: what is wrong.
        kind, code, param: as OpenAI's, where there is one.
    """
    return {
        "error": {
            "message": " ".join(storable(said).split()),
            "type": kind,
            "param": param,
            "code": code,
        }
    }


def error_response(
    status: int,
    said: str,
    kind: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
) -> JSONResponse:
    """The same as a response."""
    return JSONResponse(error_object(said, kind, code, param), status)


def status_of(error: CallFailed) -> int:
    """The status of a question whose call failed: the client's fault only where it is too long."""
    return 400 if error.status == "too_long" else 502


SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class Metrics:
    """What a server has done so far."""

    def __init__(self) -> None:
        self._registry = all_of_it = CollectorRegistry()
        self._requests = Counter(
            "hierrouter_requests", "Requests by HTTP status.", ["status"], registry=all_of_it
        )
        self._seconds = Histogram(
            "hierrouter_request_seconds", "Requests.", buckets=SECONDS, registry=all_of_it
        )
        self._router = Histogram(
            "hierrouter_router_seconds", "Decisions.", buckets=SECONDS, registry=all_of_it
        )
        self._calls = Counter(
            "hierrouter_calls", "Answers by model.", ["model"], registry=all_of_it
        )
        self._failed = Counter(
            "hierrouter_failed_calls", "Calls without one.", ["model"], registry=all_of_it
        )
        self._tokens = Counter(
            "hierrouter_tokens", "Tokens.", ["model", "direction"], registry=all_of_it
        )
        self._cost = Counter("hierrouter_cost", "Price times tokens.", registry=all_of_it)

    def ended(self, status: int, seconds: float) -> None:
        """One request is over."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def called(self, hop: Hop) -> None:
        """One call has its answer."""
        self._router.observe(hop.router_s)
        self._calls.labels(hop.model).inc()
        self._tokens.labels(hop.model, "in").inc(hop.tokens_in)
        self._tokens.labels(hop.model, "out").inc(hop.tokens_out)
        self._cost.inc(hop.cost)
        for model, _ in hop.instead_of:
            self.failed(model)

    def failed(self, model: str) -> None:
        """A model gave no answer."""
        self._failed.labels(model).inc()

    def text(self) -> bytes:
        """All of it, in the text format of Prometheus."""
        return generate_latest(self._registry)


LOG = logging.getLogger(__name__)


class RequestLog:
    """A file that lines are appended to.

    Args:
        path: of the file; None logs nothing.

    Raises:
        WorldError: it cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: int | None = None
        self._torn = False
        self._path = path
        if path is None:
            return
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise WorldError(
                f"cannot write the log: {path}: {error.strerror}; give another --log"
            ) from error

    def answered(self, name: str, model: str, policy: str, routed: Routed) -> None:
        """A question has its answer.

        Args:
            name: id of the completion.
            model: name that the client asked for.
            policy: name of the policy that chose the calls.
        """
        asked = text_digest(routed.question)  # one name for one question, however often it comes
        told = {"id": name, "query": asked, "asked_for": model, "policy": policy, "status": 200}
        self._write({**told, **routed.as_object()})

    def failed(
        self,
        name: str,
        model: str,
        status: int,
        reason: str,
        hops: Sequence[Hop],
        instead_of: Sequence[CallFailed] = (),
    ) -> None:
        """A question has no answer; the calls that were made for it are named all the same.

        Args:
            name, model: as in `answered`.
            hops: those that have an answer.
            instead_of: those of the next hop that failed before the one that `reason` tells of.
        """
        steps = [step_of(hop) for hop in hops]
        told = {"id": name, "asked_for": model, "status": status, "error": reason, "steps": steps}
        failed = [{"model": call.model, "reason": call.reason} for call in instead_of]
        self._write({**told, "instead_of": failed} if failed else told)

    def close(self) -> None:
        """No more lines."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        """One line in one write; after one that was cut, on a line of its own."""
        if self._file is None:
            return
        text = json.dumps({"time": round(time.time(), 3), **line}, allow_nan=False)
        data = b"\n" * self._torn + f"{text}\n".encode()
        try:
            self._torn = os.write(self._file, data) < len(data)
            problem = "the disk is full" if self._torn else ""
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            LOG.error("a line of the log is lost: %s: %s", self._path, problem)


ROUTE_HEADER, COST_HEADER = "x-hierrouter-route", "x-hierrouter-cost"
IGNORED_HEADER = "x-hierrouter-ignored"
UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # by proxies, too
LEFT = 499  # as nginx calls a client that is gone

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
