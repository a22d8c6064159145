"""One thread for whatever a baseline computes.

In: nothing. Out: a context in which BLAS, OpenMP and torch use one thread: sums over several have
no fixed order of additions, so the same seed would not give the same bits; and on matrices as small
as these several mostly wait for one another. Not covered: processes and threads of a user's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

from hierrouter.threads import torch_threads


@contextmanager
def one_thread() -> Iterator[None]:
    """Fit and play every baseline in it; `contest` does."""
    with threadpool_limits(1), torch_threads(1):
        yield
