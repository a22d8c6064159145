"""HTTP for a router, in OpenAI's words.

In: a `Router` and settings. Out: a FastAPI application. An error is an object as OpenAI has it, and
the server lives on; an answer never comes from a model that the policy did not choose, unless that
was asked for, and then it says so. Not covered: one completion (`answering`), sockets (the command
`serve`).
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from hierrouter.live.conversation import question_of
from hierrouter.live.models import CallFailed
from hierrouter.live.router import Router
from hierrouter.serve.answering import Answering, Server, Settings
from hierrouter.serve.chat import ChatRequest
from hierrouter.serve.errors import error_response, status_of
from hierrouter.serve.guard import Guard
from hierrouter.serve.names import UnknownModel
from hierrouter.serve.request_log import RequestLog
from hierrouter_cache.errors import InputError

__all__ = ["Settings", "make_app"]


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
