"""How many threads torch computes with.

In: a number. Out: a context in which torch uses as many here; an executor whose thread computes
alone. Sums over several threads have no fixed order of additions; and where all cores are busy,
threads that share a small piece of work wait for one another many times as long as it takes. Not
covered: BLAS and OpenMP of other libraries (`hierrouter.baselines.one_thread`).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Within it, torch computes with so many threads, when asked from this one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def lone_thread(name: str) -> ThreadPoolExecutor:
    """An executor of one thread in which torch uses no other; to be made before others compute."""
    before = torch.get_num_threads()
    executor = ThreadPoolExecutor(1, name)
    executor.submit(_alone).result()
    torch.set_num_threads(before)  # what threads begin with that are yet to come
    return executor


def _alone() -> None:
    torch.get_num_threads()  # a thread's first use of torch takes the number of others
    torch.set_num_threads(1)
