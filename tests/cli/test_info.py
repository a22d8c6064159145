"""`hierrouter cache info` for a part of the pool, and with the names of what is incomplete."""

import json
import shutil
from pathlib import Path

import pytest

from hierrouter.replay.inspection import cache_info
from tests.conftest import Run
from tests.holes import drop_five_leaves_of_three_queries

INFO = ["cache", "info", "--cache", "cache"]


@pytest.fixture
def home(tmp_path: Path, testbed_cache: Path) -> Path:
    shutil.copytree(testbed_cache, tmp_path / "cache")
    drop_five_leaves_of_three_queries(tmp_path / "cache")
    return tmp_path


def test_queries_with_holes_are_named(home: Path, hierrouter: Run) -> None:
    lacking = cache_info(home / "cache", incomplete=True)["incomplete"]
    done = hierrouter(*INFO, "--incomplete", "--format", "json", cwd=home)
    assert json.loads(done.stdout)["incomplete"] == lacking
    text = hierrouter(*INFO, "--incomplete", cwd=home).stdout.splitlines()
    first = lacking[0]
    assert text[-3] == f"{first['query']}: {first['missing_nodes']} nodes, 0 direct calls missing"
    assert "incomplete" not in hierrouter(*INFO, cwd=home).stdout


def test_a_part_of_the_pool_can_be_whole(home: Path, hierrouter: Run) -> None:
    flags = ["--pool", "testbed", "--models", "calc,text", "--hops", "1", "--format", "json"]
    done = hierrouter(*INFO, *flags, cwd=home)
    info = json.loads(done.stdout)
    assert (info["models"], info["complete_queries"]) == (["calc", "text"], 200)
    wrong = hierrouter(*INFO, "--models", "calcc", cwd=home)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "did you mean calc" in wrong.stderr
