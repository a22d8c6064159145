"""Ctrl-C in the middle of a query.

DuckDB looks for it between the tasks of the calling thread: not at all while another thread has
the only task, and while it calls Python for an Arrow table it takes Ctrl-C for an error of ours. So
a query runs on a thread of its own, and the caller's waits where Python itself notices Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import duckdb

AGAIN = 0.05  # seconds between interrupts: one that comes before DuckDB has begun is lost

Answer = TypeVar("Answer")


def interruptible(connection: duckdb.DuckDBPyConnection, query: Callable[[], Answer]) -> Answer:
    """The answer of `query`, which asks this connection; it raises what the query raises.

    Raises:
        KeyboardInterrupt: the caller was interrupted; the query has ended, or never began. A second
            Ctrl-C does not wait for that.
    """
    # Its locks are not Python's: Ctrl-C cannot come between taking one and the block that frees it.
    answers: SimpleQueue[Answer | BaseException] = SimpleQueue()
    called_off = False

    def run() -> None:
        if not called_off:
            try:
                answers.put(query())
            except BaseException as error:
                answers.put(error)

    thread = Thread(target=run, name="query", daemon=True)
    try:
        thread.start()
        answer = answers.get()
    except KeyboardInterrupt:
        called_off = True  # from here on a thread that is not alive will not begin either
        while thread.is_alive():
            connection.interrupt()
            thread.join(AGAIN)
        raise
    if isinstance(answer, BaseException):
        try:
            raise answer
        finally:
            del answer  # else it would hold its traceback, and that this frame
    return answer
