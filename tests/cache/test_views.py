"""`cache sql` at its core; readers stand side by side in one database, and leave nothing behind."""

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from hierrouter_cache import sql
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.reader import CacheReader, _database, create_views
from hierrouter_cache.tree import Rate
from tests.cache import rows

PRICES = {"a": Rate(1.0, 2.0), "b": Rate.base(1.0)}


def ask(reader: CacheReader, question: str) -> pa.Table:
    return sql.ask(reader, rows.spec("ab", 2), rows.KEYS, PRICES, question)


@pytest.fixture
def reader(tmp_path: Path) -> CacheReader:
    return CacheReader(rows.fill(tmp_path / "cache"))


ROUTES = "SELECT route, hop, count(*) AS n FROM nodes GROUP BY ALL ORDER BY ALL"
BEST = "SELECT route, value, queries FROM routes WHERE scorer = 'token_f1' AND hop = 2"
COSTS = "SELECT cost, total_cost FROM nodes WHERE route = 'a>b' AND id = 'one'"


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (
            ROUTES,
            [
                *((">a", 1, 2), (">b", 1, 2), ("a", 0, 2), ("a>a", 2, 2), ("a>b", 2, 2)),
                *(("b", 0, 2), ("b>a", 2, 2), ("b>b", 2, 2)),
            ],
        ),
        (COSTS, [(5.0, 12.0)]),  # 3 tokens in and 2 out a call: 3 * 1 + 2 * 2 for a, 5 for b
        (f"{BEST} ORDER BY value DESC LIMIT 1", [("a>b", 1.0, 2)]),
    ],
)
def test_views_say_what_was_collected(
    reader: CacheReader, question: str, expected: list[tuple[object, ...]]
) -> None:
    assert [tuple(row.values()) for row in ask(reader, question).to_pylist()] == expected


def test_only_the_queries_of_the_plan_are_shown(reader: CacheReader) -> None:
    for _ in range(2):  # the reader stays usable
        found = sql.ask(reader, rows.spec("ab", 2), ["q-one"], PRICES, "SELECT id FROM queries")
        assert found["id"].to_pylist() == ["one"]
    assert reader.query_keys() == set(rows.KEYS)


@pytest.mark.parametrize(
    "question",
    [
        "COPY (SELECT 1) TO '{outside}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{outside}'",
        "EXPLAIN ANALYZE DELETE FROM asked",
        "EXPLAIN SELECT 1",
        "SELECT 1 AS a, 2 AS a",
        "ATTACH '{outside}'",
        "SELECT 1; SELECT 2",
        "CREATE TABLE t (a INT)",
        "DROP VIEW nodes",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "PRAGMA version",
        "",
        "SELEC 1",
        "SELECT * FROM nodez",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM rows",
        # The parts themselves can be read, so they must not be writable either.
        "COPY (SELECT 1) TO '{part}' (FORMAT csv, USE_TMP_FILE false)",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{part}' (FORMAT csv, USE_TMP_FILE false)",
        "EXPLAIN COPY (SELECT 1) TO '{part}' (FORMAT csv, USE_TMP_FILE false)",
    ],
)
def test_nothing_else_can_be_asked(reader: CacheReader, tmp_path: Path, question: str) -> None:
    secret, outside = tmp_path / "secret.csv", tmp_path / "outside.db"
    secret.write_text("canary,1\n")
    part = reader.parts[0].path
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError) as refused:
        ask(reader, question.format(secret=secret, outside=outside, part=part))
    assert "canary" not in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before
    CacheReader(reader.root)


def test_an_answer_beyond_the_memory_is_no_fault_of_the_question(
    reader: CacheReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(connection: duckdb.DuckDBPyConnection, *given: Any) -> None:
        create_views(connection, *given)
        connection.execute("SET memory_limit = '20MB'; SET max_temp_directory_size = '0KB'")

    monkeypatch.setattr(sql, "create_views", small)
    with pytest.raises(WorldError, match="not enough memory to answer") as caught:
        ask(reader, "SELECT count(DISTINCT i) FROM range(9000000) t(i)")
    assert "\n" not in str(caught.value)


def catalogs() -> set[str]:
    """Of the readers of this process."""
    with _database(os.getpid()).cursor() as connection:
        found = connection.execute("SELECT database_name FROM duckdb_databases()").fetchall()
    return {name for (name,) in found if name.startswith("cache_")}


def has_come(condition: Callable[[], bool]) -> bool:
    """Wait for it: the thread of the last query may hold its reader a moment after the answer."""
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def said(root: Path) -> set[str]:
    return set(CacheReader(root).responses().values())


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    """Two caches with other answers."""
    return [rows.fill(tmp_path / name) for name in ("one", "another")]


def test_readers_are_apart_and_go(roots: list[Path]) -> None:
    before = catalogs()
    first, second = map(CacheReader, roots)
    assert catalogs() == before and first.responses() and second.responses()
    assert len(catalogs() - before) == 2
    of_first = {row["filename"] for row in first.sql("SELECT filename FROM calls_rows").to_pylist()}
    assert all(name.startswith(str(first.root)) for name in of_first) and of_first
    del first
    assert has_come(lambda: len(catalogs() - before) == 1)
    assert second.responses()
    del second
    assert has_come(lambda: catalogs() == before)


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
