from pathlib import Path

from hierrouter_cache.locks import collector_lock
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.cache import rows
from tests.conftest import Run


def fill(root: Path) -> Path:
    writer = PartWriter(root)
    return [writer.append("calls", rows.calls(("m", f"c{n}", "r"))) for n in range(3)][1]


def test_cache_compact_says_what_it_did_in_one_line(tmp_path: Path, hierrouter: Run) -> None:
    fill(tmp_path / "cache")
    done = hierrouter("cache", "compact", "--cache", "cache", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 parts -> 1, ")
    assert done.stdout.count("\n") == 1
    assert len(CacheReader(tmp_path / "cache").responses()) == 3


def test_cache_compact_refuses_what_it_cannot_do(tmp_path: Path, hierrouter: Run) -> None:
    absent = hierrouter("cache", "compact", "--cache", "nowhere", cwd=tmp_path)
    part = fill(tmp_path / "cache")
    with collector_lock(tmp_path / "cache"):
        locked = hierrouter("cache", "compact", "--cache", "cache", cwd=tmp_path)
    part.write_bytes(b"")
    damaged = hierrouter("cache", "compact", "--cache", "cache", cwd=tmp_path)
    for done, words in ((absent, "no cache"), (locked, "another collector"), (damaged, part.name)):
        assert done.returncode == 3
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
