"""Ctrl-C in the middle of a query.

DuckDB looks for it between the tasks of the calling thread: not at all while another thread has
the only task, and while it calls Python for an Arrow table it takes Ctrl-C for an error of ours. So
a query runs on a thread of its own, and the caller's waits where Python itself notices Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

import duckdb

AGAIN = 0.05  # seconds; what is interrupted before DuckDB has begun with it goes on

Answer = TypeVar("Answer")


def interruptible(connection: duckdb.DuckDBPyConnection, query: Callable[[], Answer]) -> Answer:
    """The answer of `query`, which asks this connection; it raises what the query raises.

    Raises:
        KeyboardInterrupt: the caller was interrupted; the query has ended, or never began.
    """
    answer: Future[Answer] = Future()

    def run() -> None:
        if answer.set_running_or_notify_cancel():
            try:
                answer.set_result(query())
            except BaseException as error:
                answer.set_exception(error)

    try:
        Thread(target=run, name="query").start()
        return answer.result()
    except KeyboardInterrupt:
        while not (answer.cancel() or answer.done()):
            connection.interrupt()
            wait([answer], timeout=AGAIN)
        raise
