"""One undisturbed collection, to compare others with."""

from pathlib import Path

import pytest

from hierrouter.collection.scheduler import collect
from tests.conftest import once
from tests.hierrouter.collection import noted


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of `noted.QUERIES`, collected by one process."""

    def build(folder: Path) -> None:
        summary = collect(noted.pool(), noted.QUERIES, folder / "cache")
        assert summary.calls == len(noted.rows(folder / "cache"))

    return once(tmp_path_factory, "whole", build) / "cache"
