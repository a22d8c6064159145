"""Ctrl-C in the middle of a query is Ctrl-C."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from hierrouter_cache import sql
from hierrouter_cache.reader import CacheReader, run_interruptible
from tests.cache import rows
from tests.cache.test_views import ask

LONG = "SELECT count(*) AS n FROM range(100000000000) AS a WHERE hash(a.range) % 7 = 3"


@pytest.fixture
def reader(tmp_path: Path) -> CacheReader:
    return CacheReader(rows.fill(tmp_path))


def interrupt(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


@pytest.mark.parametrize("query", [CacheReader.sql, ask], ids=["ours", "the-users"])
def test_a_query_ends(reader: CacheReader, query: Callable[[CacheReader, str], pa.Table]) -> None:
    interrupt(0.3)
    with pytest.raises(KeyboardInterrupt):
        query(reader, LONG)
    assert reader.number("SELECT count(*) FROM calls") > 0


def test_at_any_moment_also_while_duckdb_reads_our_table(reader: CacheReader) -> None:
    """On the main thread one moment in six was one in which DuckDB took it for another error."""
    wanted = pa.table({"h": pa.array(range(1000), pa.uint64())})
    moments = random.Random(0)
    for _ in range(60):
        with pytest.raises(KeyboardInterrupt):
            while True:  # one in thousands comes in a callback of Python's own, which drops it
                interrupt(moments.uniform(0.0, 0.01))
                end = time.monotonic() + 2
                while time.monotonic() < end:
                    reader.sql(
                        "SELECT count(*) FROM wanted WHERE h IN (SELECT h FROM wanted)",
                        wanted=wanted,
                    )


def test_the_tables_of_a_users_query_end(
    reader: CacheReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take long where the tree is large."""
    monkeypatch.setattr(sql, "_create_tables", lambda into, *_: into.sql(LONG).fetchall())
    interrupt(0.3)
    with pytest.raises(KeyboardInterrupt):
        ask(reader, "SELECT 1")


@pytest.mark.parametrize("before", [0.0, 0.2])
def test_a_query_that_has_just_begun_ends_too(before: float) -> None:
    """Whoever has the only task of the query, and also where it is bound a moment after Ctrl-C."""

    def answer() -> None:
        time.sleep(before)
        connection.sql(LONG).fetchall()

    with duckdb.connect() as connection:
        interrupt(0.1)
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            run_interruptible(connection, answer)
        assert time.monotonic() - started < 15  # a whole answer takes 400 s of two cores


def test_other_errors_stay_what_they_are() -> None:
    with duckdb.connect() as connection:
        with pytest.raises(duckdb.CatalogException, match="does not exist"):
            run_interruptible(connection, lambda: connection.sql("FROM nothing"))
        assert run_interruptible(connection, lambda: 7) == 7
