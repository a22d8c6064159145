"""One JSON line a routed question.

In: what became of it. Out: a line in a file, under the names that `off-policy --log` reads; add
`quality` to a line once it is known, and it is an episode. A disk that fails takes no answer away:
it is said, and lines are lost. Not covered: requests that are refused before they are routed.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hierrouter.live.models import CallFailed
from hierrouter.live.routed import Hop, Routed, step_of
from hierrouter_cache.errors import WorldError
from hierrouter_cache.fingerprint import text_digest

LOG = logging.getLogger(__name__)


class RequestLog:
    """A file that lines are appended to.

    Args:
        path: of the file; None logs nothing.

    Raises:
        WorldError: it cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._file: int | None = None
        self._torn = False
        self._path = path
        if path is None:
            return
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise WorldError(
                f"cannot write the log: {path}: {error.strerror}; give another --log"
            ) from error

    def answered(self, name: str, model: str, policy: str, routed: Routed) -> None:
        """A question has its answer.

        Args:
            name: id of the completion.
            model: name that the client asked for.
            policy: name of the policy that chose the calls.
        """
        asked = text_digest(routed.question)  # one name for one question, however often it comes
        told = {"id": name, "query": asked, "asked_for": model, "policy": policy, "status": 200}
        self._write({**told, **routed.as_object()})

    def failed(
        self,
        name: str,
        model: str,
        status: int,
        reason: str,
        hops: Sequence[Hop],
        instead_of: Sequence[CallFailed] = (),
    ) -> None:
        """A question has no answer; the calls that were made for it are named all the same.

        Args:
            name, model: as in `answered`.
            hops: those that have an answer.
            instead_of: those of the next hop that failed before the one that `reason` tells of.
        """
        steps = [step_of(hop) for hop in hops]
        told = {"id": name, "asked_for": model, "status": status, "error": reason, "steps": steps}
        failed = [{"model": call.model, "reason": call.reason} for call in instead_of]
        self._write({**told, "instead_of": failed} if failed else told)

    def close(self) -> None:
        """No more lines."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        """One line in one write; after one that was cut, on a line of its own."""
        if self._file is None:
            return
        text = json.dumps({"time": round(time.time(), 3), **line}, allow_nan=False)
        data = b"\n" * self._torn + f"{text}\n".encode()
        try:
            self._torn = os.write(self._file, data) < len(data)
            problem = "the disk is full" if self._torn else ""
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            LOG.error("a line of the log is lost: %s: %s", self._path, problem)
