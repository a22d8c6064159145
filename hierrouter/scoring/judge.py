"""A process that compares two LaTeX expressions.

In: two expressions. Out: whether they are equivalent. Computer algebra can take for ever or all
memory on one odd answer, inside calls that no signal handler and no thread can end; so it runs in
a process with a limit of processor time an answer and of memory, which is started again after it
was ended. The limit is of processor time because a score must not depend on how busy a machine
is. Not covered: where the expressions come from (`boxed`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from threading import Lock

WORKER = Path(__file__).with_name("judge_worker.py")


class Judge:
    """Asks one worker process, started at the first question; safe to use from threads."""

    def __init__(self, worker: Path = WORKER) -> None:
        self._worker = worker
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()

    def equivalent(self, reference: str, found: str) -> bool:
        """Whether `found` is equivalent to `reference`; false where that cannot be told.

        Raises:
            RuntimeError: the worker does not start.
        """
        with self._lock:
            answer = self._ask(json.dumps([reference, found]))
        return answer == "1\n"

    def _ask(self, question: str) -> str:
        process = self._running()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return ""

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", str(self._worker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="ascii",
            )
        return self._process
