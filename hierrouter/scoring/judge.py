"""A process that compares two LaTeX expressions.

In: two expressions. Out: whether they are equivalent. Computer algebra can take for ever or all
memory on one odd answer, inside calls that no signal handler and no thread can end; so it runs in
a process with a limit of processor time an answer and of memory, which is started again after it
was ended. The limit is of processor time because a score must not depend on how busy a machine
is. Not covered: where the expressions come from (`boxed`).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from threading import Lock

from hierrouter_cache.errors import WorldError

# How a worker ends by an answer: its processor time is up, or its stack.
TOO_MUCH = (-signal.SIGPROF, -signal.SIGSEGV)
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
            WorldError: the worker does not start, or was ended from outside.
        """
        with self._lock:
            # Held again only after an answer: one that was interrupted would answer late.
            process, self._process = self._process or self._started(), None
            if answer := _ask(process, json.dumps([reference, found])):
                self._process = process
                return answer == "1"
            if (ended := process.wait()) not in TOO_MUCH:
                raise WorldError(f"scorer boxed was ended from outside: {ended}; run it again")
            return False

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(  # noqa: S603 - our own file, no shell
            [sys.executable, "-P", str(self._worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
            start_new_session=True,  # a Ctrl-C is not meant for it
        )
        # Without this a worker that never runs would pass for wrong answers.
        if not _ask(process, json.dumps(["x", "x"])):
            raise WorldError(
                f"scorer boxed does not start: {self._worker}; is math-verify installed for "
                f"{sys.executable}?"
            )
        return process


def _ask(process: subprocess.Popen[str], question: str) -> str:
    """The worker's line; empty where it has ended."""
    assert process.stdin and process.stdout
    try:
        process.stdin.write(question + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    return process.stdout.readline().strip()
