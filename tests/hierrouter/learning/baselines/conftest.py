"""Baselines are fitted and played as `contest` does it."""

from collections.abc import Iterator

import pytest

from hierrouter.learning.baselines.registry import one_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
