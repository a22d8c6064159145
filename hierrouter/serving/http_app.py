"""The router as an OpenAI-compatible HTTP application: its paths, and what each of them does.

`hierrouter.serving.application` loads the routers that it answers with, and
`hierrouter.serving.answering` answers one chat completion.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from hierrouter.engines.generator import message_of
from hierrouter.serving import ServerSettings
from hierrouter.serving.answering import ChatAnswer, Server
from hierrouter.serving.chat import ChatRequest, DecideRequest, decision_object
from hierrouter.serving.decisions import EncoderDown
from hierrouter.serving.guard import Guard, error_reply, error_response
from hierrouter.serving.messages import text_and_images
from hierrouter.serving.models import CallFailed
from hierrouter.serving.monitoring import RequestLog, check_canaries
from hierrouter.serving.router import RouteOptions
from hierrouter.serving.versions import Versions
from hierrouter_cache.errors import HierRouterError, InputError, is_out_of_files

SECONDS_BETWEEN_NOTES = 60.0  # that say the same
LOG = logging.getLogger(__name__)


def make_app(versions: Versions, settings: ServerSettings, log: RequestLog) -> FastAPI:
    """Return the application.

    SIGHUP exchanges the routers, as `POST /admin/reload` does. When the application ends, it closes
    routers and log.

    Args:
        versions: the routers.
        settings: of the server.
        log: receives a line for each question.
    """
    server = Server(versions, settings, log)

    async def reload_and_log() -> None:
        try:
            LOG.warning("reloaded: %s", json.dumps(await versions.reload()))
        except HierRouterError as error:
            LOG.error("not reloaded, the router in service stays: %s", error)

    next_note_s = 0.0

    def report_of_loop(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # asyncio reports each connection that it cannot take, with a trace, thousands a second.
        nonlocal next_note_s
        error = context.get("exception")
        if error is None or not is_out_of_files(error):
            loop.default_exception_handler(context)
        elif time.monotonic() >= next_note_s:
            next_note_s = time.monotonic() + SECONDS_BETWEEN_NOTES
            LOG.error(
                "too many open files, so that new clients have to wait; allow more, for example "
                "with `ulimit -n 4096`"
            )

    async def check_canaries_forever() -> None:
        while settings.canary_minutes:
            await check_canaries(versions.lineup.current.router, log)
            await asyncio.sleep(60 * settings.canary_minutes)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_exception_handler(report_of_loop)
        # Only the main thread can handle signals; the parent of workers handles theirs.
        if threading.current_thread() is threading.main_thread() and not settings.is_worker:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, lambda: server.spawn(reload_and_log()))
        canary_task = asyncio.create_task(check_canaries_forever())
        yield
        canary_task.cancel()
        await server.end()

    # No pages of documentation: they would load scripts from elsewhere.
    app = FastAPI(title="hierrouter", lifespan=lifespan, openapi_url=None)
    app.add_middleware(
        Guard, key=settings.key, metrics=server.metrics, max_requests=settings.max_requests
    )
    kinds = (RequestValidationError, InputError, CallFailed, EncoderDown, HTTPException, Exception)
    for kind in kinds:
        app.add_exception_handler(kind, error_reply)

    @app.get("/live")
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Response:
        router = versions.lineup.current.router
        models = router.models
        checks = [model.check() for model in models.values()]
        await asyncio.gather(*checks, router.policy.check_encoder())
        # Without the reasons: they may name addresses, and this path is public.
        states = {name: "down" if model.fault else "up" for name, model in models.items()}
        encoder_fault = router.policy.encoder_fault
        is_up = "up" in states.values() and not encoder_fault
        status = "ready"
        if not is_up:
            status = "down"
        elif "down" in states.values():
            status = "degraded"
        body: dict[str, Any] = {"status": status, "models": states}
        if encoder_fault is not None:  # it has a server
            body["encoder"] = "down" if encoder_fault else "up"
        changed = [name for name, model in models.items() if model.has_changed]
        if changed:
            body["changed"] = changed
        return JSONResponse(body, 200 if is_up else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        text = server.metrics.text(versions.lineup.current.router.models)
        return Response(text, media_type="text/plain; version=0.0.4")

    @app.get("/admin/versions")
    async def admin_versions() -> dict[str, Any]:
        return versions.as_object()

    @app.post("/admin/reload")
    async def reload() -> Response:
        if settings.parent is not None:
            if not signal_parent(settings.parent, signal.SIGHUP):
                message = "the process that started this worker is gone; start the server anew"
                return error_response(503, message, "server_error")
            return JSONResponse({"reloading": True}, 202)
        try:
            return JSONResponse(await versions.reload())
        except HierRouterError as error:
            return error_response(409, f"{error}; the router in service stays")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        names = versions.lineup.current.names
        return {"object": "list", "data": [_model_object(name) for name in names.alphas]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        versions.lineup.current.names.require(name)
        return _model_object(name)

    @app.post("/v1/decide")
    async def decide(request: DecideRequest, http: Request) -> dict[str, Any]:
        # Images do not matter here: they go to the model, and the client makes that call.
        question, _ = text_and_images(request.messages)
        version = versions.lineup.pick(question)
        router = version.router
        with version.at_work():
            extension = request.hierrouter.with_header(http.headers)
            alpha = extension.alpha
            if alpha is None:
                alpha = version.names.alpha(request.model)
            calls = [answer.call for answer in request.answers]
            unavailable = request.unavailable
            options = RouteOptions(
                alpha,
                server.rng,
                unavailable=None if unavailable is None else frozenset(unavailable),
                group=extension.group,
            )
            decision = await router.decide(question, calls, options)
            trained = router.policy.at(alpha)
            remaining = router.remaining(trained, calls, decision.action)
            is_deferred = bool(decision.deferred_to)
            action = decision.action if decision.action < trained.actions.calls else 0
            prompt = router.prompt(question, calls, is_deferred=is_deferred, action=action)
        body = decision_object(decision, trained, message_of(prompt), remaining)
        if trained.lacks_group(options.group):
            body["unknown_group"] = True
        return body

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: ChatRequest, http: Request) -> Response:
        # Before anything else, because `ChatAnswer` falls back on the current version if the
        # candidate does not have the name.
        versions.lineup.current.names.require(request.model)
        request.hierrouter = request.hierrouter.with_header(http.headers)
        return await ChatAnswer(server, request, http).response()

    return app


def signal_parent(parent: int, number: int) -> bool:
    """Send a signal to the process that started this one, and to no other.

    Args:
        parent: its id, as it has told this process itself.
        number: of the signal.

    Returns:
        False if it has ended: whoever has adopted this process, or has got the id, gets no signal.
    """
    if not hasattr(os, "pidfd_open"):  # no Linux
        is_ours = os.getppid() == parent
        if is_ours:
            os.kill(parent, number)
        return is_ours
    try:
        process = os.pidfd_open(parent)
    except ProcessLookupError:
        return False
    try:
        # Asked after the descriptor is open, which then names the parent and none that comes later.
        if os.getppid() != parent:
            return False
        signal.pidfd_send_signal(process, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(process)


def _model_object(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "hierrouter"}
