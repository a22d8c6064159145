"""Ctrl-C in the middle of a query.

DuckDB tells it as a RuntimeError. Here it is KeyboardInterrupt again, as everywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

TOLD = "Query interrupted"


@contextmanager
def interruptible() -> Iterator[None]:
    """Around every query that may take long.

    Raises:
        KeyboardInterrupt: the query was interrupted.
    """
    try:
        yield
    except RuntimeError as error:
        if TOLD not in str(error):
            raise
        raise KeyboardInterrupt from error
