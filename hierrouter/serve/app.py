"""HTTP for a router, in OpenAI's words.

In: a `Router` and settings. Out: a FastAPI application. An error is an object as OpenAI has it, and
the server lives on; an answer never comes from a model that the policy did not choose, unless that
was asked for, and then it says so. Not covered: sockets (the command `serve`).
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from hierrouter.live.conversation import question_of
from hierrouter.live.models import CallFailed
from hierrouter.live.routed import Routed
from hierrouter.live.router import Asked, Follow, Router
from hierrouter.serve.chat import ChatRequest, completion, last_piece, piece
from hierrouter.serve.errors import error_object, error_response
from hierrouter.serve.guard import Guard
from hierrouter.serve.metrics import Metrics
from hierrouter.serve.names import Names, UnknownModel
from hierrouter.serve.request_log import RequestLog
from hierrouter_cache.errors import InputError

ROUTE_HEADER, COST_HEADER = "x-hierrouter-route", "x-hierrouter-cost"
IGNORED_HEADER = "x-hierrouter-ignored"


@dataclass(frozen=True)
class Settings:
    """How a server works.

    Attributes:
        names: what clients may ask for.
        policy: name of the policy, for logs.
        key: clients must send it; None lets everybody in.
        log: where a line a request goes; None is nowhere.
        seed: draw calls from the stochastic policy; None takes the likeliest.
        reroute: where a model gives no answer, take the next likeliest action, and say so.
    """

    names: Names
    policy: str
    key: str | None = None
    log: Path | None = None
    seed: int | None = None
    reroute: bool = False


@dataclass
class _Server:
    """What lives as long as the application."""

    router: Router
    settings: Settings
    log: RequestLog
    metrics: Metrics = field(default_factory=Metrics)
    rng: np.random.Generator | None = None


def make_app(router: Router, settings: Settings) -> FastAPI:
    """The application; it closes the router when it ends.

    Raises:
        WorldError: the log cannot be opened.
    """
    rng = None if settings.seed is None else np.random.default_rng(settings.seed)
    server = _Server(router, settings, RequestLog(settings.log), rng=rng)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await router.aclose()
        server.log.close()

    # The pages of documentation would load scripts from elsewhere.
    app = FastAPI(title="hierrouter", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, key=settings.key, metrics=server.metrics)
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
        if error.status == "too_long":
            return error_response(400, str(error), code="context_length_exceeded", param="messages")
        return error_response(502, str(error), "upstream_error", error.status)

    @app.exception_handler(HTTPException)
    async def elsewhere(request: Request, error: HTTPException) -> Response:
        return error_response(
            error.status_code, f"{request.method} {request.url.path}: {error.detail}"
        )

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return error_response(500, f"unexpected: {type(error).__name__}", "server_error")


def _add_routes(app: FastAPI, server: _Server) -> None:
    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "models": [model.name for model in server.router.pool.models]}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        listed = [_model(name) for name in server.settings.names.alphas]
        return {"object": "list", "data": listed}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        server.settings.names.alpha(name)
        return _model(name)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: ChatRequest) -> Response:
        name = f"chatcmpl-{secrets.token_hex(12)}"
        alpha = server.settings.names.alpha(request.model)
        wishes = request.hierrouter
        asked = Asked(
            alpha if wishes.alpha is None else wishes.alpha,
            wishes.max_cost,
            server.rng,
            server.settings.reroute,
        )
        headers = {IGNORED_HEADER: ", ".join(request.ignored)} if request.ignored else {}
        question_of(request.messages)  # refused before a stream begins
        if request.stream:
            return await _streamed(server, name, request, asked, headers)
        routed = await _routed(server, name, request, asked, Follow())
        body = completion(name, request.model, routed)
        return JSONResponse(body, headers={**headers, **_route_headers(routed)})


async def _routed(
    server: _Server, name: str, request: ChatRequest, asked: Asked, follow: Follow
) -> Routed:
    """Route a question, and note what became of it.

    Raises:
        InputError, CallFailed: as the router.
    """
    try:
        routed = await server.router.aroute(request.messages, asked, follow)
    except CallFailed as error:
        server.metrics.failed(error.model)
        server.log.failed(name, request.model, 502, str(error))
        raise
    server.metrics.routed(routed)
    server.log.answered(name, request.model, server.settings.policy, routed)
    return routed


async def _streamed(
    server: _Server, name: str, request: ChatRequest, asked: Asked, headers: dict[str, str]
) -> Response:
    """A stream that begins with the last call's first words: what fails before is a plain error."""
    texts: asyncio.Queue[str | None] = asyncio.Queue()
    hops: list[str] = []
    follow = Follow(texts.put_nowait, lambda hop: hops.append(hop.model))
    task = asyncio.create_task(_routed(server, name, request, asked, follow))
    task.add_done_callback(lambda _: texts.put_nowait(None))
    try:
        first = await texts.get()
    except asyncio.CancelledError:
        task.cancel()
        raise
    if first is None and task.exception():
        raise task.exception()  # type: ignore[misc]
    body = _events(name, request, task, texts, first)
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


async def _events(
    name: str,
    request: ChatRequest,
    task: asyncio.Task[Routed],
    texts: asyncio.Queue[str | None],
    text: str | None,
) -> AsyncIterator[str]:
    """The chunks, as server-sent events; who goes away takes the calls with him."""
    model = request.model
    try:
        yield _event(piece(name, model, {"role": "assistant", "content": ""}))
        while text is not None:
            yield _event(piece(name, model, {"content": text}))
            text = await texts.get()
        try:
            routed = await task
        except CallFailed as error:
            yield _event(error_object(str(error), "upstream_error", error.status))
            return
        yield _event(piece(name, model, {}, routed.finish_reason))
        wants_usage = bool(request.stream_options and request.stream_options.include_usage)
        yield _event(last_piece(name, model, routed, wants_usage))
        yield "data: [DONE]\n\n"
    finally:
        task.cancel()


def _event(found: dict[str, Any]) -> str:
    return f"data: {json.dumps(found, allow_nan=False)}\n\n"


def _route_headers(routed: Routed) -> dict[str, str]:
    """Route and cost; a name that no header takes is percent-encoded."""
    from urllib.parse import quote

    return {ROUTE_HEADER: quote(routed.route, safe=">./:@+ "), COST_HEADER: f"{routed.cost:.9g}"}


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "hierrouter"}
