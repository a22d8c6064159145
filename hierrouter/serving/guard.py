"""Who is let in to a server, and how it says no."""

from __future__ import annotations

import math
import secrets
import time
from urllib.parse import urlsplit

import anyio
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierrouter.pools.pool import is_loopback
from hierrouter.serving.chat import UnknownModel, error_object
from hierrouter.serving.models import CallFailed
from hierrouter.serving.watching import Metrics
from hierrouter_cache.errors import InputError

MOST_BYTES = 8_000_000  # of a request
BODY_S = 5.0  # in which the body of a request must have come: it holds a place meanwhile
TOO_LARGE = f"a request may have {MOST_BYTES:,} bytes at most"
OPEN = ("/live", "/ready")  # to everybody
COUNTED = "/v1/"
BUSY_S = 1  # after which a client may come again
LEFT = 499  # as nginx calls a client that is gone


def error_response(
    status: int,
    message: str,
    kind: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
) -> JSONResponse:
    """An error as OpenAI has it; see `error_object`."""
    return JSONResponse(error_object(message, kind, code, param), status)


def refused(request: Request, error: Exception) -> Response:
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
            return error_response(status_of(error), str(error), code=code, param="messages")
        case CallFailed():
            return error_response(status_of(error), str(error), "upstream_error", error.status)
        case HTTPException():
            message = f"{request.method} {request.url.path}: {error.detail}"
            return error_response(error.status_code, message)
        case _:
            return error_response(500, f"unexpected: {type(error).__name__}", "server_error")


def status_of(error: CallFailed) -> int:
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
        if self._key is not None and scope["path"] not in OPEN:
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
