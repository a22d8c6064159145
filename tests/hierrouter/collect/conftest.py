"""One undisturbed collection, to compare others with."""

from pathlib import Path

import pytest

from hierrouter.collect.scheduler import collect
from tests.hierrouter.collect import noted


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of `noted.QUERIES`, collected by one process."""
    root = tmp_path_factory.mktemp("whole") / "cache"
    summary = collect(noted.pool(), noted.QUERIES, root)
    assert summary.calls == len(noted.rows(root))
    return root
