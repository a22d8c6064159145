"""Every distinct call is made once, whatever happened to the cache before."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hierrouter.collection.plan import last_plan, store_plan
from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines import identify
from hierrouter.pools.files import load_pool
from hierrouter.questions.datasets import load_queries
from hierrouter.replay.inspection import cache_info
from hierrouter.replay.opening import Selection, open_tree
from hierrouter_cache.errors import DamagedPart
from hierrouter_cache.maintenance import quarantine
from hierrouter_cache.mirror import note_arrivals
from hierrouter_cache.parts import CALLS, list_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.engines import Counting, Scripted
from tests.hierrouter.collection.examples import POOL, sums

QUERIES = sums(6)


def test_every_node_is_there_and_each_distinct_prompt_was_asked_once(tmp_path: Path) -> None:
    """On the testbed, whose models often give equal answers."""
    pool, counting = load_pool("testbed"), Counting()
    queries = load_queries(["arith", "story", "riddle"], 6, 42, Path())
    summary = fill_cache(pool, queries, tmp_path, engines=counting)
    info = cache_info(tmp_path)
    assert (info["queries"], info["nodes"], info["direct"]) == (18, 18 * 12, 18 * 3)
    assert (info["complete_queries"], info["missing_nodes"]) == (18, 0)
    assert set(counting.asked.values()) == {1}
    assert summary.calls == len(counting.asked) == info["calls"] < 18 * 15
    parts = set((tmp_path / "parts").iterdir())
    assert fill_cache(pool, queries, tmp_path, engines=counting).calls == 0
    assert set(counting.asked.values()) == {1}
    assert set((tmp_path / "parts").iterdir()) == parts
    part = open_tree(tmp_path, Selection(datasets=["story"], limit=4))
    assert part.datasets == ("story",) * 4


def test_a_pull_that_was_killed_is_judged_before_anything_is_asked(tmp_path: Path) -> None:
    fill_cache(POOL, QUERIES, tmp_path, engines=Scripted())
    responses = CacheReader(tmp_path).responses()
    call = CacheReader(tmp_path).sql("SELECT * FROM calls LIMIT 1").to_pylist()[0]
    other = pa.Table.from_pylist([{**call, "response": "?", "outcome": "0" * 32}], schema=CALLS)
    rival = PartWriter(tmp_path).append("calls", other)
    note_arrivals(tmp_path, [rival.name])
    assert fill_cache(POOL, QUERIES, tmp_path, engines=Scripted()).calls == 0
    assert not rival.exists()
    assert CacheReader(tmp_path).responses() == responses


@pytest.mark.parametrize("kind", ["calls", "queries", "scores", "plans"])
def test_repair_then_collect_heals_any_damaged_part(tmp_path: Path, kind: str) -> None:
    fill_cache(POOL, QUERIES, tmp_path, engines=Scripted())
    before = open_tree(tmp_path)
    part = next((tmp_path / "parts").glob(f"{kind}-*"))
    lost = set(pq.read_table(part)["key"].to_pylist()) if kind == "calls" else set()
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(DamagedPart, match=part.name):
        open_tree(tmp_path)
    quarantine(tmp_path)
    again = Scripted()
    fill_cache(POOL, QUERIES, tmp_path, engines=again)
    assert again.asked.total() == len(lost)
    assert open_tree(tmp_path).fingerprint == before.fingerprint


def test_many_queries_make_many_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierrouter.collection.plan.QUERIES_A_PART", 4)
    store_plan(PartWriter(tmp_path), None, POOL, identify(POOL.everyone, Scripted()), QUERIES)
    parts = [part.rows for part in list_parts(tmp_path) if part.kind == "queries"]
    assert parts == [4, 2]
    assert last_plan(tmp_path) == (POOL, tuple(QUERIES))
