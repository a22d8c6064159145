"""The router as an OpenAI-compatible server: its routes, and who is let in."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierrouter.pools.pool import is_loopback
from hierrouter.serving.answering import (
    Answering,
    Metrics,
    RequestLog,
    Server,
    Settings,
    error_response,
    status_of,
)
from hierrouter.serving.chat import ChatRequest, UnknownModel
from hierrouter.serving.models import CallFailed
from hierrouter.serving.router import Router, question_of
from hierrouter_cache.errors import InputError

MOST_BYTES = 8_000_000  # of a request
OPEN = "/health"  # to everybody
COUNTED = "/v1/"
BUSY_S = 1  # after which a client may come again
TOO_LARGE = f"a request may have {MOST_BYTES:,} bytes at most"


class Guard:
    """Middleware around an application.

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
        status, started = 499, perf_counter()  # a client that left before it heard anything

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
                self._metrics.ended(status, perf_counter() - started)

    def _busy(self) -> Response | None:
        """Why a request has to come again; None where there is room."""
        if self._under_way < self._most:
            return None
        said = f"{self._most} requests are under way; come again"
        response = error_response(503, said, "server_error", "overloaded")
        response.headers["Retry-After"] = str(BUSY_S)
        return response

    def _refusal(self, scope: Scope) -> Response | None:
        """Why a request is not even read; None lets it in."""
        headers = Headers(scope=scope)
        if self._key is not None and scope["path"] != OPEN:
            given = headers.get("authorization", "").removeprefix("Bearer ").strip()
            if not secrets.compare_digest(given.encode(), self._key.encode()):
                said = "the API key is missing or wrong; send Authorization: Bearer KEY"
                return error_response(401, said, "authentication_error", "invalid_api_key")
        if self._key is None and not _is_here(headers.get("host", "")):
            said = "without a key only this machine may ask; send Host: localhost"
            return error_response(421, said)
        if "content-length" in headers and "transfer-encoding" in headers:
            # Where one ends and the next begins is seen otherwise by what stands before us.
            response = error_response(400, "send Content-Length or Transfer-Encoding, not both")
            response.headers["Connection"] = "close"
            return response
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MOST_BYTES:
            return error_response(413, TOO_LARGE)
        if scope["method"] == "POST" and not _is_json(headers.get("content-type", "")):
            # Nor could a page in a browser ask without asking the user's leave first.
            return error_response(415, "send Content-Type: application/json")
        return None


def _is_here(host: str) -> bool:
    """Whether a request names this machine: that of a page whose name was bent to it does not."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _is_json(kind: str) -> bool:
    return kind.partition(";")[0].strip().lower() == "application/json"


def _limited(receive: Receive) -> Receive:
    """The same, for bodies that do not say how long they are."""
    read = 0

    async def limited() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > MOST_BYTES:
            raise HTTPException(413, TOO_LARGE)
        return message

    return limited


def make_app(router: Router, settings: Settings, log: RequestLog | None = None) -> FastAPI:
    """The application; it closes the router and the log when it ends.

    Args:
        log: where a line a question goes; None is nowhere.
    """
    rng = None if settings.seed is None else np.random.default_rng(settings.seed)
    server = Server(router, settings, log or RequestLog(None), rng)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        try:
            await router.aclose()
        finally:
            server.log.close()

    # No pages of documentation: they would load scripts from elsewhere.
    app = FastAPI(title="hierrouter", lifespan=lifespan, openapi_url=None)
    app.add_middleware(
        Guard, key=settings.key, metrics=server.metrics, max_requests=settings.max_requests
    )
    _add_errors(app)
    _add_routes(app, server)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        said = f"{place}: {first['msg']}" if place else str(first["msg"])
        return error_response(400, said[:300], param=place or None)

    @app.exception_handler(InputError)
    async def refused(request: Request, error: InputError) -> Response:
        if isinstance(error, UnknownModel):
            return error_response(404, str(error), code="model_not_found", param="model")
        return error_response(400, str(error))

    @app.exception_handler(CallFailed)
    async def failed(request: Request, error: CallFailed) -> Response:
        status = status_of(error)
        if status == 400:
            code = "context_length_exceeded"
            return error_response(status, str(error), code=code, param="messages")
        return error_response(status, str(error), "upstream_error", error.status)

    @app.exception_handler(HTTPException)
    async def elsewhere(request: Request, error: HTTPException) -> Response:
        said = f"{request.method} {request.url.path}: {error.detail}"
        return error_response(error.status_code, said)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return error_response(500, f"unexpected: {type(error).__name__}", "server_error")


def _add_routes(app: FastAPI, server: Server) -> None:
    names = server.settings.names

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "models": [model.name for model in server.router.pool.models]}

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

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: ChatRequest, http: Request) -> Response:
        names.alpha(request.model)
        request.require_text()
        question = question_of(request.messages)
        name = f"chatcmpl-{secrets.token_hex(12)}"
        return await Answering(server, name, request, question, http).response()


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "hierrouter"}
