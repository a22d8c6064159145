"""Who is let in, and how much is read.

In: every request. Out: the same to the application, or a refusal; its status and time go to the
metrics. Not covered: what a request asks for (`app`).
"""

from __future__ import annotations

import secrets
from time import perf_counter

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hierrouter.serve.errors import error_response
from hierrouter.serve.metrics import Metrics

MOST_BYTES = 8_000_000  # of a request
OPEN = "/health"  # to everybody
COUNTED = "/v1/"
TOO_LARGE = f"a request may have {MOST_BYTES:,} bytes at most"


class Guard:
    """Middleware around an application.

    Args:
        app: what answers.
        key: clients must send it; None lets everybody in.
        metrics: told of each request below `/v1/`.
    """

    def __init__(self, app: ASGIApp, key: str | None, metrics: Metrics) -> None:
        self._app = app
        self._key = key
        self._metrics = metrics

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

        try:
            answers = self._refusal(scope) or self._app
            await answers(scope, _limited(receive), noted)
        except Exception:
            status = 500  # which is sent further out
            raise
        finally:
            if scope["path"].startswith(COUNTED):
                self._metrics.ended(status, perf_counter() - started)

    def _refusal(self, scope: Scope) -> Response | None:
        """Why a request is not even read; None lets it in."""
        headers = Headers(scope=scope)
        if self._key is not None and scope["path"] != OPEN:
            given = headers.get("authorization", "").removeprefix("Bearer ").strip()
            if not secrets.compare_digest(given.encode(), self._key.encode()):
                said = "the API key is missing or wrong; send Authorization: Bearer KEY"
                return error_response(401, said, "authentication_error", "invalid_api_key")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MOST_BYTES:
            return error_response(413, TOO_LARGE)
        if scope["method"] == "POST" and not _is_json(headers.get("content-type", "")):
            # Nor could a page in a browser ask without asking the user's leave first.
            return error_response(415, "send Content-Type: application/json")
        return None


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
