"""A folder in which a small quickstart has run, for all that works on what it left."""

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import Run, once

LIMIT = "30"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, testbed_cache: Path) -> Path:
    """A folder of this module with a collected cache, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    shutil.copytree(testbed_cache, folder / "caches" / "default")
    return folder


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, hierrouter: Run) -> Path:
    """The folder; the quickstart itself is checked on the way."""

    def build(folder: Path) -> None:
        done = hierrouter("quickstart", "--limit", LIMIT, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert [f"{stage}/4" in done.stderr for stage in (1, 2, 3, 4)] == [True] * 4
        page = re.search(r"page: (\S+)", done.stdout)
        assert page
        assert (folder / page[1]).read_text().startswith("<!doctype html>")
        assert "\x1b" not in done.stdout + done.stderr

    return once(tmp_path_factory, "home", build)
