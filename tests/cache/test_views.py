"""`cache sql` at its core: the views say what was collected, and nothing else can be reached."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from hierrouter_cache import sql
from hierrouter_cache.errors import InputError, WorldError
from hierrouter_cache.reader import CacheReader, connect
from hierrouter_cache.sql import ask
from hierrouter_cache.tree import Rate
from tests.cache import rows
from tests.cache.test_loading import KEYS, fill

PRICES = {"a": Rate(1.0, 2.0), "b": Rate.base(1.0)}


def answer(root: Path, question: str) -> pa.Table:
    return ask(CacheReader(root), rows.spec("ab", 2), KEYS, PRICES, question)


def test_every_node_and_direct_call_is_a_row(tmp_path: Path) -> None:
    fill(tmp_path)
    found = answer(
        tmp_path, "SELECT route, hop, count(*) AS n FROM nodes GROUP BY ALL ORDER BY ALL"
    )
    names = [(row["route"], row["hop"]) for row in found.to_pylist()]
    assert names == sorted(
        [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a>a", 2), ("a>b", 2), ("b>a", 2), ("b>b", 2)]
    )
    assert set(found["n"].to_pylist()) == {len(KEYS)}


def test_costs_follow_the_prices(tmp_path: Path) -> None:
    fill(tmp_path)
    found = answer(
        tmp_path, "SELECT cost, total_cost FROM nodes WHERE route = 'a>b' AND id = 'one'"
    )
    # 3 tokens in and 2 out a call: 3 * 1 + 2 * 2 for a, 5 for b.
    assert found.to_pylist() == [{"cost": 5.0, "total_cost": 12.0}]


def test_routes_have_their_mean_score(tmp_path: Path) -> None:
    fill(tmp_path)
    found = answer(
        tmp_path,
        "SELECT route, value, queries FROM routes WHERE scorer = 'token_f1' AND hop = 2 "
        "ORDER BY value DESC LIMIT 1",
    )
    assert found.to_pylist() == [{"route": "a>b", "value": 1.0, "queries": 2}]


def test_only_the_queries_of_the_plan_are_shown(tmp_path: Path) -> None:
    fill(tmp_path)
    found = ask(
        CacheReader(tmp_path), rows.spec("ab", 2), KEYS[:1], PRICES, "SELECT id FROM queries"
    )
    assert found["id"].to_pylist() == ["one"]


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
    ],
)
def test_nothing_else_can_be_asked(tmp_path: Path, question: str) -> None:
    root, secret, outside = tmp_path / "cache", tmp_path / "secret.csv", tmp_path / "outside.db"
    secret.write_text("canary,1\n")
    fill(root)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError) as refused:
        answer(root, question.format(secret=secret, outside=outside))
    assert "canary" not in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before
    # The parts themselves can be read, so they must not be writable either.
    part = next((root / "parts").iterdir())
    for prefix in ("", "EXPLAIN ANALYZE ", "EXPLAIN "):
        with pytest.raises(InputError):
            answer(root, f"{prefix}COPY (SELECT 1) TO '{part}' (FORMAT csv, USE_TMP_FILE false)")
    CacheReader(root)


def test_an_answer_beyond_the_memory_is_no_fault_of_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)

    def small(*given: Any) -> duckdb.DuckDBPyConnection:
        connection = connect(*given)
        connection.execute("SET memory_limit = '20MB'; SET max_temp_directory_size = '0KB'")
        return connection

    monkeypatch.setattr(sql, "connect", small)
    with pytest.raises(WorldError, match="not enough memory to answer") as caught:
        answer(tmp_path, "SELECT count(DISTINCT i) FROM range(9000000) t(i)")
    assert "\n" not in str(caught.value)


def test_the_reader_stays_usable(tmp_path: Path) -> None:
    fill(tmp_path)
    reader = CacheReader(tmp_path)
    for _ in range(2):
        ask(reader, rows.spec("ab", 2), KEYS, PRICES, "SELECT 1 AS one")
    assert len(reader.query_keys()) == 2
