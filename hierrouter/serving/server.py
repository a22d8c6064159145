"""The router as an OpenAI-compatible server: who is let in, what is answered, what is noted."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import anyio
import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierrouter.engines.generator import message_of
from hierrouter.pools.pool import is_loopback
from hierrouter.serving import MAX_REQUESTS
from hierrouter.serving.chat import (
    ChatRequest,
    DecideRequest,
    ModelNames,
    UnknownModel,
    chunk,
    completion,
    decision_object,
    error_object,
    last_chunks,
)
from hierrouter.serving.messages import question_of
from hierrouter.serving.models import CallFailed, OnText
from hierrouter.serving.router import Hop, RouteOptions, Router, RouteResult
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.keys import text_digest

MOST_BYTES = 8_000_000  # of a request
BODY_S = 5.0  # in which the body of a request must have come: it holds a place meanwhile
TOO_LARGE = f"a request may have {MOST_BYTES:,} bytes at most"
OPEN = "/health"  # to everybody
COUNTED = "/v1/"
BUSY_S = 1  # after which a client may come again
LEFT = 499  # as nginx calls a client that is gone
ROUTE_HEADER, COST_HEADER = "x-hierrouter-route", "x-hierrouter-cost"
IGNORED_HEADER = "x-hierrouter-ignored"
UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # by proxies, too
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)

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

    names: ModelNames
    policy: str
    key: str | None = None
    seed: int | None = None
    reroute: bool = False
    max_requests: int = MAX_REQUESTS


def make_app(router: Router, settings: Settings, log: RequestLog) -> FastAPI:
    """The application; it closes the router and the log, a line a question, when it ends."""
    names = settings.names
    rng = None if settings.seed is None else np.random.default_rng(settings.seed)
    server = Server(router, settings, log, rng)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        try:
            await router.aclose()
        finally:
            log.close()

    # No pages of documentation: they would load scripts from elsewhere.
    app = FastAPI(title="hierrouter", lifespan=lifespan, openapi_url=None)
    app.add_middleware(
        Guard, key=settings.key, metrics=server.metrics, max_requests=settings.max_requests
    )
    for kind in (RequestValidationError, InputError, CallFailed, HTTPException, Exception):
        app.add_exception_handler(kind, _refused)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "models": [model.name for model in router.pool.models]}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name) for name in names.alphas]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        names.alpha(name)
        return _model(name)

    @app.post("/v1/decide")
    async def decide(request: DecideRequest) -> dict[str, Any]:
        wanted = request.hierrouter.alpha
        alpha = names.alpha(request.model) if wanted is None else wanted
        answers = [said.answered for said in request.answers]
        options = RouteOptions(alpha, rng)
        decision = await router.decide(request.messages, answers, options)
        trained = router.policy.at(alpha)
        left = trained.actions.steps - len(answers) - 1
        prompt = router.prompt(request.messages, answers)
        return decision_object(decision, trained, message_of(prompt), left)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: ChatRequest, http: Request) -> Response:
        names.alpha(request.model)
        request.require_text()
        question = question_of(request.messages)
        name = f"chatcmpl-{secrets.token_hex(12)}"
        return await ChatAnswer(server, name, request, question, http).response()

    return app


@dataclass
class Server:
    """What lives as long as the application."""

    router: Router
    settings: Settings
    log: RequestLog
    rng: np.random.Generator | None
    metrics: Metrics = field(default_factory=lambda: Metrics())


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "hierrouter"}


def error_response(
    status: int,
    message: str,
    kind: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
) -> JSONResponse:
    """An error as OpenAI has it; see `error_object`."""
    return JSONResponse(error_object(message, kind, code, param), status)


def _refused(request: Request, error: Exception) -> Response:
    match error:
        case RequestValidationError():
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"] if part != "body")
            message = f"{place}: {first['msg']}" if place else str(first["msg"])
            return error_response(400, message[:300], param=place or None)
        case UnknownModel():
            return error_response(404, str(error), code="model_not_found", param="model")
        case InputError():
            return error_response(400, str(error))
        case CallFailed(status="too_long"):
            code = "context_length_exceeded"
            return error_response(_status_of(error), str(error), code=code, param="messages")
        case CallFailed():
            return error_response(_status_of(error), str(error), "upstream_error", error.status)
        case HTTPException():
            message = f"{request.method} {request.url.path}: {error.detail}"
            return error_response(error.status_code, message)
        case _:
            return error_response(500, f"unexpected: {type(error).__name__}", "server_error")


def _status_of(error: CallFailed) -> int:
    """Of a question whose call failed: the client's fault only where it is too long."""
    return 400 if error.status == "too_long" else 502


class Guard:
    """Middleware around an application; plain ASGI, so that streams and disconnects pass untouched.

    Args:
        app: what answers.
        key: clients must send it; None lets everybody in.
        metrics: told of each request below `/v1/`.
        max_requests: of these that are under way; more are refused, so that none waits without end.
    """

    def __init__(self, app: ASGIApp, key: str | None, metrics: Metrics, max_requests: int) -> None:
        self._app = app
        self._key = key
        self._metrics = metrics
        self._most = max_requests
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the server's start and end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started = LEFT, time.perf_counter()  # until a client has heard anything

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        is_counted = scope["path"].startswith(COUNTED)
        answers = self._refusal(scope) or (self._busy() if is_counted else None) or self._app
        self._under_way += is_counted
        try:
            await answers(scope, _limited(receive), noted)
        except Exception:
            status = 500  # which is sent further out
            raise
        finally:
            self._under_way -= is_counted
            if is_counted:
                self._metrics.ended(status, time.perf_counter() - started)

    def _refusal(self, scope: Scope) -> Response | None:
        """Why a request is not even read; None lets it in."""
        headers = Headers(scope=scope)
        if self._key is not None and scope["path"] != OPEN:
            given = headers.get("authorization", "").removeprefix("Bearer ").strip()
            if not secrets.compare_digest(given.encode(), self._key.encode()):
                message = "the API key is missing or wrong; send Authorization: Bearer KEY"
                return error_response(401, message, "authentication_error", "invalid_api_key")
        if self._key is None and not _is_here(headers.get("host", "")):
            return error_response(
                421, "without a key only this machine may ask; send Host: localhost"
            )
        if "content-length" in headers and "transfer-encoding" in headers:
            # Where one ends and the next begins is seen otherwise by what stands before us.
            response = error_response(400, "send Content-Length or Transfer-Encoding, not both")
            response.headers["Connection"] = "close"
            return response
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MOST_BYTES:
            return error_response(413, TOO_LARGE)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            # Nor could a page in a browser ask without asking the user's leave first.
            return error_response(415, "send Content-Type: application/json")
        return None

    def _busy(self) -> Response | None:
        """Why a request has to come again; None where there is room."""
        if self._under_way < self._most:
            return None
        message = f"{self._most} requests are under way; come again"
        response = error_response(503, message, "server_error", "overloaded")
        response.headers["Retry-After"] = str(BUSY_S)
        return response


def _is_here(host: str) -> bool:
    """Whether a request names this machine: that of a page whose name was bent to it does not."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _limited(receive: Receive) -> Receive:
    """The same, for bodies that do not say how long they are, or do not come."""
    read, ends = 0, time.monotonic() + BODY_S

    async def limited() -> Message:
        nonlocal read, ends
        try:
            with anyio.fail_after(ends - time.monotonic()):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {BODY_S:g} s") from None
        if not message.get("more_body"):
            ends = math.inf  # who listens now waits for the client to leave
        read += len(message.get("body", b""))
        if read > MOST_BYTES:
            raise HTTPException(413, TOO_LARGE)
        return message

    return limited


@dataclass
class ChatAnswer:
    """One completion, from the request to the last byte.

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

        Raises InputError: what cannot be asked; CallFailed: a model gave no answer, and nothing was
        sent yet; HTTPException: the client has left.
        """
        ignored = self.request.ignored
        headers = {IGNORED_HEADER: ignored} if ignored else {}
        if self.request.stream:
            return await self._stream(headers)
        result = await self._unless_gone(self._route(None))
        headers[ROUTE_HEADER] = quote(result.route, safe=">./:@+ ")  # a name may have anything
        headers[COST_HEADER] = f"{result.cost:.9g}"
        return JSONResponse(completion(self.name, self.request.model, result), headers=headers)

    async def _route(self, on_text: OnText | None) -> RouteResult:
        """Route the question, and note what became of it."""
        server, model = self.server, self.request.model
        settings, wanted = server.settings, self.request.hierrouter
        alpha = settings.names.alpha(model) if wanted.alpha is None else wanted.alpha
        options = RouteOptions(alpha, server.rng, settings.reroute, on_text, self._on_hop)
        failed = partial(server.log.failed, self.name, model, self.hops)
        try:
            result = await server.router.aroute(self.question, options)
        except InputError:  # refused before any call
            raise
        except CallFailed as error:
            for call in (*error.earlier, error):
                server.metrics.failed(call.model)
            failed(_status_of(error), str(error), error.earlier)
            raise
        except asyncio.CancelledError:
            failed(LEFT, "the client left")
            raise
        except Exception as error:
            failed(500, f"unexpected: {type(error).__name__}")
            raise
        server.log.answered(self.name, model, settings.policy, result)
        return result

    def _on_hop(self, hop: Hop) -> None:
        self.hops.append(hop)
        self.server.metrics.called(hop)

    async def _stream(self, headers: dict[str, str]) -> Response:
        """The answer as it grows; an error before its first text is an error of the request."""
        texts: asyncio.Queue[str | None] = asyncio.Queue()
        task = asyncio.create_task(self._route(texts.put_nowait))
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
        self, task: asyncio.Task[RouteResult], texts: asyncio.Queue[str | None], text: str | None
    ) -> AsyncIterator[str]:
        name, model, options = self.name, self.request.model, self.request.stream_options
        try:
            yield _event(chunk(name, model, {"role": "assistant", "content": ""}))
            while text is not None:
                yield _event(chunk(name, model, {"content": text}))
                text = await texts.get()
            result = await task
            for last in last_chunks(name, model, result, bool(options and options.include_usage)):
                yield _event(last)
            yield "data: [DONE]\n\n"
        except CallFailed as error:
            yield _event(error_object(str(error), "upstream_error", error.status))
        except Exception as error:  # the status is sent: only an event can tell it
            LOG.exception("a stream broke")
            yield _event(error_object(f"unexpected: {type(error).__name__}", "server_error"))
        finally:
            task.cancel()

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


class Metrics:
    """What a server has done so far."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, buckets=SECONDS, registry=self._registry)
        self._requests = counter("hierrouter_requests", "Requests by HTTP status.", ["status"])
        self._seconds = histogram("hierrouter_request_seconds", "Requests.")
        self._router = histogram("hierrouter_router_seconds", "Decisions.")
        self._calls = counter("hierrouter_calls", "Answers by model.", ["model"])
        self._failed = counter("hierrouter_failed_calls", "Calls without one.", ["model"])
        self._tokens = counter("hierrouter_tokens", "Tokens.", ["model", "direction"])
        self._cost = counter("hierrouter_cost", "Price times tokens.")

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

    def answered(self, name: str, model: str, policy: str, result: RouteResult) -> None:
        """A question has its answer.

        `name`: id of the completion; `model`: name that the client asked for; `policy`: name of the
        policy that chose the calls.
        """
        query = text_digest(result.question)  # one name for one question, however often it comes
        line = {"id": name, "query": query, "asked_for": model, "policy": policy, "status": 200}
        self._write({**line, **result.as_object()})

    def failed(
        self,
        name: str,
        model: str,
        hops: Sequence[Hop],
        status: int,
        reason: str,
        instead_of: Sequence[CallFailed] = (),
    ) -> None:
        """A question has no answer; the calls that were made for it are named all the same.

        `name`, `model`: as in `answered`; `hops`: those that have an answer; `instead_of`: those of
        the next hop that failed before the one that `reason` tells of.
        """
        steps = [hop.as_object() for hop in hops]
        line = {"id": name, "asked_for": model, "status": status, "error": reason, "steps": steps}
        failed = [{"model": call.model, "reason": call.reason} for call in instead_of]
        self._write({**line, "instead_of": failed} if failed else line)

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
