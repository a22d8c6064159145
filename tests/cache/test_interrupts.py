"""Ctrl-C in the middle of a query is Ctrl-C."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from hierrouter_cache import sql
from hierrouter_cache.reader import CacheReader, interruptible
from hierrouter_cache.sql import ask
from tests.cache import rows
from tests.cache.test_loading import KEYS, fill
from tests.cache.test_views import PRICES

LONG = "SELECT count(*) AS n FROM range(100000000000) AS a WHERE hash(a.range) % 7 = 3"


def interrupt(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_a_query_of_ours_ends(tmp_path: Path) -> None:
    fill(tmp_path)
    reader = CacheReader(tmp_path)
    interrupt(0.3)
    with pytest.raises(KeyboardInterrupt):
        reader.sql(LONG)
    assert reader.number("SELECT count(*) FROM calls") > 0


def test_at_any_moment_also_while_duckdb_reads_our_table(tmp_path: Path) -> None:
    """On the main thread one moment in six was one in which DuckDB took it for another error."""
    fill(tmp_path)
    reader = CacheReader(tmp_path)
    wanted = pa.table({"h": pa.array(range(1000), pa.uint64())})
    moments = random.Random(0)
    for _ in range(60):
        with pytest.raises(KeyboardInterrupt):
            interrupt(moments.uniform(0.0, 0.01))
            while True:
                reader.sql(
                    "SELECT count(*) FROM wanted WHERE h IN (SELECT h FROM wanted)", wanted=wanted
                )


def test_a_query_of_the_users_ends(tmp_path: Path) -> None:
    fill(tmp_path)
    reader = CacheReader(tmp_path)
    interrupt(0.5)
    with pytest.raises(KeyboardInterrupt):
        ask(reader, rows.spec("ab", 2), KEYS, PRICES, LONG)


def test_the_tables_of_a_users_query_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take long where the tree is large."""
    fill(tmp_path)
    monkeypatch.setattr(sql, "_create_tables", lambda into, *_: into.sql(LONG).fetchall())
    interrupt(0.5)
    with pytest.raises(KeyboardInterrupt):
        ask(CacheReader(tmp_path), rows.spec("ab", 2), KEYS, PRICES, "SELECT 1")


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
            interruptible(connection, answer)
        assert time.monotonic() - started < 15  # a whole answer takes 400 s of two cores


def test_other_errors_stay_what_they_are() -> None:
    with duckdb.connect() as connection:
        with pytest.raises(duckdb.CatalogException, match="does not exist"):
            interruptible(connection, lambda: connection.sql("FROM nothing"))
        assert interruptible(connection, lambda: 7) == 7
