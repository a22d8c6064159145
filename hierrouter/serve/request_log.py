"""One JSON line a request.

In: what became of a request. Out: a line in a file, under the names that `off-policy --log` reads;
add `quality` to a line once it is known, and it is an episode. A line is written whole or not at
all. Not covered: what the estimators do with it (`hierrouter.offpolicy`).
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from hierrouter.live.routed import Routed
from hierrouter_cache.errors import WorldError


class RequestLog:
    """A file that lines are appended to.

    Args:
        path: of the file; None logs nothing.

    Raises:
        WorldError: it cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: int | None = None
        if path is None:
            return
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise WorldError(f"cannot write the log: {path}: {error.strerror}") from error

    def answered(self, name: str, model: str, policy: str, routed: Routed) -> None:
        """A question has its answer.

        Args:
            name: id of the completion.
            model: name that the client asked for.
            policy: name of the policy that chose the calls.
        """
        found = routed.as_object()
        self._write({"query": name, "asked_for": model, "policy": policy, "status": 200, **found})

    def failed(self, name: str, model: str, status: int, reason: str) -> None:
        """A request ended in an error."""
        self._write({"query": name, "asked_for": model, "status": status, "error": reason})

    def close(self) -> None:
        """No more lines."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            text = json.dumps({"time": round(time.time(), 3), **line}, allow_nan=False)
            os.write(self._file, f"{text}\n".encode())
