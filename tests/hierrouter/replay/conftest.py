"""A cache of one's own."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, testbed_cache: Path) -> Path:
    """A copy of the testbed's cache."""
    return Path(shutil.copytree(testbed_cache, tmp_path / "cache"))
