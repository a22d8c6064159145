"""Readers stand side by side in one database, and leave nothing behind."""

import multiprocessing
import os
from pathlib import Path
from threading import Thread

import pytest

from hierrouter_cache.reader import CacheReader, _database
from tests.cache import rows


def catalogs() -> set[str]:
    """Of the readers of this process."""
    with _database(os.getpid()).cursor() as connection:
        found = connection.execute("SELECT database_name FROM duckdb_databases()").fetchall()
    return {name for (name,) in found if name.startswith("cache_")}


def said(root: Path) -> set[str]:
    return set(CacheReader(root).responses().values())


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    """Two caches with other answers."""
    return [rows.fill(tmp_path / name) for name in ("one", "another")]


def test_readers_are_apart_and_go(roots: list[Path]) -> None:
    before = catalogs()
    first, second = map(CacheReader, roots)
    assert len(catalogs() - before) == 2
    of_first = {row["filename"] for row in first.sql("SELECT filename FROM calls_rows").to_pylist()}
    assert all(name.startswith(str(first.root)) for name in of_first) and of_first
    del first
    assert len(catalogs() - before) == 1
    assert second.responses()
    del second
    assert catalogs() == before


def test_many_threads_open_and_read(roots: list[Path]) -> None:
    expected, found = said(roots[0]), []
    threads = [
        Thread(target=lambda: found.extend(said(roots[0]) for _ in range(5))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 30


def test_a_fork_reads_with_a_database_of_its_own(roots: list[Path]) -> None:
    reader = CacheReader(roots[0])
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(said, (roots[0],)) == set(reader.responses().values())
