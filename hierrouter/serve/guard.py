"""Who is let in, how many at once, and how much is read.

In: every request. Out: the same to the application, or a refusal; its status and time go to the
metrics. Not covered: what a request asks for (`app`).
"""

from __future__ import annotations

import secrets
from time import perf_counter
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierrouter.endpoint import is_loopback
from hierrouter.serve.errors import error_response
from hierrouter.serve.metrics import Metrics

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
