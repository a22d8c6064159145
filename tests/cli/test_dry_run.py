"""`collect --dry-run` and `--yes`: what a collection takes, before it is made."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run, as_json, works

COLLECT = ("collect", "--datasets", "arith,mirror", "--cache", "cache")
DEEP = """
[pool]
hops = 7
[[models]]
name = "calc"
model = "testbed:calc"
base_rate = 0.03
generation = { max_new_tokens = 16 }
[[models]]
name = "text"
model = "testbed:text"
base_rate = 0.02
generation = { max_new_tokens = 16 }
[[models]]
name = "facts"
model = "testbed:facts"
base_rate = 0.03
generation = { max_new_tokens = 16 }
"""


def estimated(hierrouter: Run, cwd: Path, *more: str) -> dict[str, Any]:
    return as_json(hierrouter(*COLLECT, *more, "--dry-run", "--format", "json", cwd=cwd))


def test_nothing_is_made(tmp_path: Path, hierrouter: Run) -> None:
    done = works(hierrouter(*COLLECT, "--limit", "3", "--dry-run", cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert "6 queries: 72 nodes and 18 direct calls" in done.stdout
    assert "hop 2" in done.stdout
    assert "unknown" in done.stdout
    assert "--limit 10" in done.stderr


def test_after_a_pilot_it_says_what_the_run_then_takes(tmp_path: Path, hierrouter: Run) -> None:
    assert hierrouter(*COLLECT, "--limit", "10", cwd=tmp_path).returncode == 0
    before = estimated(hierrouter, tmp_path, "--limit", "20")
    assert before["notes"] == []
    done = hierrouter(*COLLECT, "--limit", "20", cwd=tmp_path)
    found = re.search(r"(\d+) calls made, (\d+) already there", done.stderr)
    assert found
    total = before["total"]
    assert total["there"] == int(found[2])
    assert total["calls"]["expected"] == pytest.approx(int(found[1]), rel=0.2)
    assert total["calls"]["most"] >= int(found[1])
    assert total["seconds"]["expected"] > 0
    assert total["cost"]["expected"] > 0
    after = estimated(hierrouter, tmp_path)  # no flags but the datasets: 300 a dataset
    assert after["total"]["there"] == int(found[1]) + int(found[2])


def test_without_flags_it_is_about_what_was_collected_last(tmp_path: Path, hierrouter: Run) -> None:
    assert hierrouter(*COLLECT, "--limit", "2", cwd=tmp_path).returncode == 0
    done = hierrouter("collect", "--cache", "cache", "--dry-run", "--format", "json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["queries"] == 4
    assert found["total"]["calls"] == {"expected": 0, "most": 0}


def test_a_large_collection_needs_a_yes(tmp_path: Path, hierrouter: Run) -> None:
    (tmp_path / "deep.toml").write_text(DEEP)
    deep = (*COLLECT, "--pool", "deep.toml", "--limit", "40")
    done = hierrouter(*deep, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    message = done.stderr.splitlines()[-1]
    assert message.startswith("error: at most 262,320 model calls are due for 80 queries")
    assert "--dry-run" in message
    assert "--yes" in message
    assert list((tmp_path / "cache").rglob("*.parquet")) == []
    looked = hierrouter(*deep, "--dry-run", cwd=tmp_path)
    assert looked.returncode == 0


def test_a_format_is_checked_first(tmp_path: Path, hierrouter: Run) -> None:
    done = hierrouter(*COLLECT, "--dry-run", "--format", "xml", cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown format: xml" in done.stderr
