"""One undisturbed collection, to compare others with."""

from pathlib import Path

import pytest

from hierrouter.collection.scheduler import fill_cache
from tests.engines import Scripted
from tests.hierrouter.collection import noted
from tests.hierrouter.collection.examples import POOL


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of `noted.QUERIES`, collected by one process."""
    root = tmp_path_factory.mktemp("whole")
    summary = fill_cache(POOL, noted.QUERIES, root, engines=Scripted())
    assert summary.calls == summary.wanted == len(noted.rows(root))
    return root
