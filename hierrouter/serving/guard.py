"""The middleware that admits requests to a server, and errors as HTTP replies."""

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
from hierrouter.serving.decisions import EncoderDown
from hierrouter.serving.models import CallFailed
from hierrouter.serving.monitoring import Metrics
from hierrouter_cache.errors import InputError

MAX_BODY_BYTES = 8_000_000
MAX_LENGTH_DIGITS = 20  # of Content-Length
# Time for a request's body to arrive. Until then the request counts as one under way, so a client
# that sends nothing must not block others for long.
BODY_TIMEOUT_S = 5.0
TOO_LARGE_MESSAGE = f"a request may have {MAX_BODY_BYTES:,} bytes at most"
PUBLIC_PATHS = ("/live", "/ready")
LIMITED_PATHS = "/v1/"
RETRY_AFTER_S = 1
CLIENT_CLOSED_STATUS = 499  # nginx's status for a client that has left


def error_response(
    status: int,
    message: str,
    kind: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
) -> JSONResponse:
    """Return an error as OpenAI has it; see `error_object`."""
    return JSONResponse(error_object(message, kind, code, param), status)


def error_reply(request: Request, error: Exception) -> Response:
    """Return the reply to a request that raised an error."""
    match error:
        case RequestValidationError():
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"] if part != "body")
            message = f"{field}: {first['msg']}" if field else str(first["msg"])
            return error_response(400, message[:300], param=field or None)
        case UnknownModel():
            return error_response(404, str(error), code="model_not_found", param="model")
        case InputError():
            return error_response(400, str(error))
        case CallFailed(is_too_long=True):
            code = "context_length_exceeded"
            return error_response(status_of(error), str(error), code=code, param="messages")
        case EncoderDown():
            return error_response(503, str(error), "server_error", "overloaded")
        case CallFailed():
            return error_response(status_of(error), str(error), "upstream_error", error.status)
        case HTTPException():
            message = f"{request.method} {request.url.path}: {error.detail}"
            return error_response(error.status_code, message)
        case _:
            return error_response(500, f"unexpected: {type(error).__name__}", "server_error")


def status_of(error: CallFailed) -> int:
    """Return the HTTP status for a failed call: a too long question is the client's fault."""
    return 400 if error.is_too_long else 502


class Guard:
    """Middleware that admits or refuses requests, and counts them.

    It is plain ASGI, so that streams and disconnects pass through untouched.

    Args:
        app: answers the admitted requests.
        key: clients must send it; None admits every client on this machine.
        metrics: count each request below `/v1/`.
        max_requests: how many of these may be under way; more are refused, so that none waits
            without end.
    """

    def __init__(self, app: ASGIApp, key: str | None, metrics: Metrics, max_requests: int) -> None:
        self._app = app
        self._key = key
        self._metrics = metrics
        self._max_requests = max_requests
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the server's start and end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = CLIENT_CLOSED_STATUS  # until a reply has begun
        started = time.perf_counter()

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        is_limited = scope["path"].startswith(LIMITED_PATHS)
        refusal = self._refusal(scope)
        if refusal is None and is_limited:
            refusal = self._busy()
        app = refusal or self._app
        self._under_way += is_limited
        try:
            await app(scope, _limited(receive), send_and_note)
        except Exception:
            status = 500  # the outer middleware replies with it
            raise
        finally:
            self._under_way -= is_limited
            if is_limited:
                self._metrics.count_request(status, time.perf_counter() - started)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the reply that refuses a request by its headers alone; None admits it."""
        headers = Headers(scope=scope)
        if self._key is not None and scope["path"] not in PUBLIC_PATHS:
            key = headers.get("authorization", "").removeprefix("Bearer ").strip()
            if not secrets.compare_digest(key.encode(), self._key.encode()):
                message = "the API key is missing or wrong; send Authorization: Bearer KEY"
                return error_response(401, message, "authentication_error", "invalid_api_key")
        if self._key is None and not _is_this_machine(headers.get("host", "")):
            return error_response(
                421, "without a key only this machine may ask; send Host: localhost"
            )
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy in front of this server may see the request end elsewhere than we do, which
            # lets a client smuggle a second request past it.
            response = error_response(400, "send Content-Length or Transfer-Encoding, not both")
            response.headers["Connection"] = "close"
            return response
        length = headers.get("content-length", "0")
        # `int` fails on thousands of digits, and on the ² that `isdigit` takes for one.
        is_number = length.isdecimal() and len(length) <= MAX_LENGTH_DIGITS
        if not is_number or int(length) > MAX_BODY_BYTES:
            return error_response(413, TOO_LARGE_MESSAGE)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            # A web page cannot send JSON to another origin without a preflight request, which this
            # server does not answer; other types a browser would send at once.
            return error_response(415, "send Content-Type: application/json")
        return None

    def _busy(self) -> Response | None:
        """Return the reply that asks a client to come again; None if there is room."""
        if self._under_way < self._max_requests:
            return None
        message = f"{self._max_requests} requests are under way; come again"
        response = error_response(503, message, "server_error", "overloaded")
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response


def _is_this_machine(host: str) -> bool:
    """Whether a Host header names this machine.

    A web page whose domain was pointed at 127.0.0.1 (DNS rebinding) sends its own name instead.
    """
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _limited(receive: Receive) -> Receive:
    """Limit size and time of a body, for requests that do not state its length or never send it."""
    bytes_read = 0
    deadline = time.monotonic() + BODY_TIMEOUT_S

    async def limited() -> Message:
        nonlocal bytes_read, deadline
        try:
            with anyio.fail_after(deadline - time.monotonic()):
                message = await receive()
        except TimeoutError:
            seconds = f"{BODY_TIMEOUT_S:g}"
            raise HTTPException(408, f"the body did not come within {seconds} s") from None
        if not message.get("more_body"):
            deadline = math.inf  # the body is complete; later messages are disconnects
        bytes_read += len(message.get("body", b""))
        if bytes_read > MAX_BODY_BYTES:
            raise HTTPException(413, TOO_LARGE_MESSAGE)
        return message

    return limited
