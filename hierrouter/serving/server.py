"""The router as an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from hierrouter.engines.generator import message_of
from hierrouter.serving import Settings
from hierrouter.serving.answering import ChatAnswer, Server
from hierrouter.serving.chat import ChatRequest, DecideRequest, decision_object
from hierrouter.serving.guard import Guard, error_response, refused
from hierrouter.serving.messages import asked_of
from hierrouter.serving.models import CallFailed
from hierrouter.serving.router import RouteOptions
from hierrouter.serving.versions import Versions
from hierrouter.serving.watching import RequestLog, look_again
from hierrouter_cache.errors import HierRouterError, InputError

LOG = logging.getLogger(__name__)


def make_app(versions: Versions, settings: Settings, log: RequestLog) -> FastAPI:
    """The application; it closes the routers and the log, a line a question, when it ends.

    SIGHUP exchanges the routers, as `POST /admin/reload` does.
    """
    server = Server(versions, settings, log)

    async def reloaded() -> None:
        try:
            LOG.warning("reloaded: %s", json.dumps(await versions.reload()))
        except HierRouterError as error:
            LOG.error("not reloaded, the router in service stays: %s", error)

    async def looking() -> None:
        while settings.canary_minutes:
            await look_again(versions.lineup.current.router, log)
            await asyncio.sleep(60 * settings.canary_minutes)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if threading.current_thread() is threading.main_thread() and not settings.is_one_of_many:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, lambda: server.spawn(reloaded()))
        looks = asyncio.create_task(looking())
        yield
        looks.cancel()
        await server.end()

    # No pages of documentation: they would load scripts from elsewhere.
    app = FastAPI(title="hierrouter", lifespan=lifespan, openapi_url=None)
    app.add_middleware(
        Guard, key=settings.key, metrics=server.metrics, max_requests=settings.max_requests
    )
    for kind in (RequestValidationError, InputError, CallFailed, HTTPException, Exception):
        app.add_exception_handler(kind, refused)

    @app.get("/live")
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Response:
        models = versions.lineup.current.router.models
        await asyncio.gather(*(model.look() for model in models.values()))
        # Why a model is down may name its address, which is not for everybody.
        states = {name: "down" if model.fault else "up" for name, model in models.items()}
        is_up = "up" in states.values()
        status = "down" if not is_up else "degraded" if "down" in states.values() else "ready"
        told: dict[str, Any] = {"status": status, "models": states}
        if changed := [name for name, model in models.items() if model.changed]:
            told["changed"] = changed
        return JSONResponse(told, 200 if is_up else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        text = server.metrics.text(versions.lineup.current.router.models)
        return Response(text, media_type="text/plain; version=0.0.4")

    @app.get("/admin/versions")
    async def shown() -> dict[str, Any]:
        return versions.as_object()

    @app.post("/admin/reload")
    async def reload() -> Response:
        if settings.is_one_of_many:
            os.kill(os.getppid(), signal.SIGHUP)
            return JSONResponse({"reloading": True}, 202)
        try:
            return JSONResponse(await versions.reload())
        except HierRouterError as error:
            return error_response(409, f"{error}; the router in service stays")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        names = versions.lineup.current.names
        return {"object": "list", "data": [_model(name) for name in names.alphas]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        versions.lineup.current.names.alpha(name)
        return _model(name)

    @app.post("/v1/decide")
    async def decide(request: DecideRequest) -> dict[str, Any]:
        question, _ = asked_of(request.messages)  # images are for the model that is called
        version, wanted = versions.lineup.pick(question), request.hierrouter.alpha
        with version.at_work():
            alpha = version.names.alpha(request.model) if wanted is None else wanted
            answers = [said.answered for said in request.answers]
            router = version.router
            decision = await router.decide(question, answers, RouteOptions(alpha, server.rng))
            trained = router.policy.at(alpha)
            left = trained.actions.steps - len(answers) - 1
            prompt = router.prompt(question, answers, decision.hands_to)
        return decision_object(decision, trained, message_of(prompt), left)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: ChatRequest, http: Request) -> Response:
        versions.lineup.current.names.alpha(request.model)
        return await ChatAnswer(server, request, http).response()

    return app


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "hierrouter"}
