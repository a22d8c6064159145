"""Baselines are fitted and played as `contest` does it."""

from collections.abc import Iterator

import pytest

from hierrouter.baselines.one_thread import one_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
