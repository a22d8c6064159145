"""Errors as OpenAI has them."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

from hierrouter.live.models import CallFailed
from hierrouter.query import storable


def error_object(
    said: str, kind: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    """The object that a client reads.

    Args:
        said: what is wrong.
        kind, code, param: as OpenAI's, where there is one.
    """
    return {
        "error": {
            "message": " ".join(storable(said).split()),
            "type": kind,
            "param": param,
            "code": code,
        }
    }


def error_response(
    status: int,
    said: str,
    kind: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
) -> JSONResponse:
    """The same as a response."""
    return JSONResponse(error_object(said, kind, code, param), status)


def status_of(error: CallFailed) -> int:
    """The status of a question whose call failed: the client's fault only where it is too long."""
    return 400 if error.status == "too_long" else 502
