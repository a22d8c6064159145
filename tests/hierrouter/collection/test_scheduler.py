from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hierrouter.collection import scheduler
from hierrouter.collection.plan import last_plan, store_plan
from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines import identify
from hierrouter.engines.generator import Answer, Generator, Stop, never
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import ModelSpec
from hierrouter.questions.datasets import load_queries
from hierrouter.questions.query import Query
from hierrouter.replay.inspection import cache_info, verify_cache
from hierrouter.replay.opening import Selection, open_tree
from hierrouter_cache.errors import (
    CacheError,
    DamagedPart,
    IncompleteTree,
    Interrupted,
    WorldError,
)
from hierrouter_cache.maintenance import quarantine
from hierrouter_cache.mirror import note_arrivals
from hierrouter_cache.parts import CALLS, list_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.engines import Counting

POOL = load_pool("testbed")


@pytest.fixture(scope="module")
def queries() -> list[Query]:
    return load_queries(["arith", "story", "riddle"], 6, 42, Path())


@pytest.fixture
def counting() -> Counting:
    return Counting()


def test_every_node_is_there_and_each_distinct_prompt_was_asked_once(
    tmp_path: Path, queries: list[Query], counting: Counting
) -> None:
    summary = fill_cache(POOL, queries, tmp_path, engines=counting)
    info = cache_info(tmp_path)
    assert (info["queries"], info["nodes"], info["direct"]) == (18, 18 * 12, 18 * 3)
    assert (info["complete_queries"], info["missing_nodes"]) == (18, 0)
    assert set(counting.asked.values()) == {1}
    assert summary.calls == len(counting.asked) == info["calls"] < 18 * 15


def test_a_second_run_asks_nothing(
    tmp_path: Path, queries: list[Query], counting: Counting
) -> None:
    fill_cache(POOL, queries, tmp_path, engines=counting)
    asked = counting.asked.copy()
    parts = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert fill_cache(POOL, queries, tmp_path, engines=counting).calls == 0
    assert counting.asked == asked
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == parts


def test_a_pull_that_was_killed_is_judged_before_anything_is_asked(
    tmp_path: Path, queries: list[Query], counting: Counting
) -> None:
    fill_cache(POOL, queries, tmp_path, engines=counting)
    responses = CacheReader(tmp_path).responses()
    call = CacheReader(tmp_path).sql("SELECT * FROM calls LIMIT 1").to_pylist()[0]
    other = pa.Table.from_pylist([{**call, "response": "?", "outcome": "0" * 32}], schema=CALLS)
    rival = PartWriter(tmp_path).append("calls", other)
    note_arrivals(tmp_path, [rival.name])
    assert fill_cache(POOL, queries, tmp_path, engines=counting).calls == 0
    assert not rival.exists()
    assert CacheReader(tmp_path).responses() == responses


def test_a_model_more_asks_only_for_new_nodes(
    tmp_path: Path, queries: list[Query], counting: Counting
) -> None:
    two = replace(POOL, models=POOL.models[:2])
    fill_cache(two, queries, tmp_path, engines=counting)
    before = open_tree(tmp_path)
    asked = counting.asked.copy()
    fill_cache(POOL, queries, tmp_path, engines=counting)
    assert set((counting.asked - asked).values()) == {1}
    assert set(counting.asked.values()) == {1}
    new = counting.asked - asked
    assert {prompt for name, prompt in new if name != "facts"}  # calc and text after facts
    assert open_tree(tmp_path).routes.calls == 12
    fill_cache(two, queries, tmp_path, engines=counting)
    assert open_tree(tmp_path).fingerprint == before.fingerprint


def test_scores_are_those_of_the_stored_responses(tmp_path: Path, queries: list[Query]) -> None:
    fill_cache(POOL, queries, tmp_path)
    lines = verify_cache(tmp_path, rescore=True)
    assert "as computed again from the responses" in lines[-1]
    scores = CacheReader(tmp_path).sql("SELECT count(*) AS n FROM scores")["n"][0].as_py()
    assert lines[-1].startswith(f"{scores} scores")


def test_stopping_keeps_what_is_committed(
    tmp_path: Path, queries: list[Query], counting: Counting
) -> None:
    with pytest.raises(Interrupted, match=r"\d+ calls committed"):
        fill_cache(POOL, queries, tmp_path, engines=counting, stop=counting.asked.total)
    committed = len(CacheReader(tmp_path).responses())
    assert committed == sum(counting.asked.values()) > 0
    with pytest.raises(IncompleteTree, match="18 queries lack"):
        open_tree(tmp_path)
    fill_cache(POOL, queries, tmp_path, engines=counting)
    assert set(counting.asked.values()) == {1}
    assert cache_info(tmp_path)["missing_nodes"] == 0


class OutOfMemory(Counting):
    """The real engine, but `text` cannot run."""

    def load(self, spec: ModelSpec) -> Generator:
        return _Fails() if spec.name == "text" else super().load(spec)


class _Fails:
    def generate(self, prompts: Sequence[str], stop: Stop = never) -> Iterator[tuple[int, Answer]]:
        raise RuntimeError("out of memory")


def test_a_failing_model_loses_nothing_committed(
    tmp_path: Path, queries: list[Query], counting: Counting
) -> None:
    with pytest.raises(WorldError, match="out of memory; what was committed is safe"):
        fill_cache(POOL, queries, tmp_path, engines=OutOfMemory(counting.asked))
    assert len(CacheReader(tmp_path).responses()) == sum(counting.asked.values()) > 0
    fill_cache(POOL, queries, tmp_path, engines=counting)
    assert set(counting.asked.values()) == {1}


def test_repricing_needs_no_call(tmp_path: Path, queries: list[Query]) -> None:
    fill_cache(POOL, queries, tmp_path)
    dear = (Path(scheduler.__file__).parents[1] / "pools" / "testbed.toml").read_text()
    file = tmp_path / "dear.toml"
    file.write_text(dear.replace("base_rate = 0.02", "base_rate = 2.0"))
    cheap, repriced = open_tree(tmp_path), open_tree(tmp_path, Selection(pool=str(file)))
    text = cheap.routes.node((1,))
    assert repriced.cost[:, text] == pytest.approx(100 * cheap.cost[:, text])
    assert (repriced.score == cheap.score).all()


def test_a_part_of_what_was_collected(tmp_path: Path, queries: list[Query]) -> None:
    fill_cache(POOL, queries, tmp_path)
    part = open_tree(tmp_path, Selection(datasets=["story"], limit=4))
    assert set(part.datasets) == {"story"}
    assert len(part) == 4


@pytest.mark.parametrize("kind", ["calls", "queries", "scores", "plans"])
def test_repair_then_collect_heals_any_damaged_part(
    tmp_path: Path, queries: list[Query], counting: Counting, kind: str
) -> None:
    fill_cache(POOL, queries, tmp_path, engines=counting)
    before = open_tree(tmp_path)
    asked = counting.asked.copy()
    part = next((tmp_path / "parts").glob(f"{kind}-*"))
    lost = set(pq.read_table(part)["key"].to_pylist()) if kind == "calls" else set()
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(DamagedPart, match=part.name):
        open_tree(tmp_path)
    quarantine(tmp_path)
    fill_cache(POOL, queries, tmp_path, engines=counting)
    assert (counting.asked - asked).total() == len(lost)
    assert open_tree(tmp_path).fingerprint == before.fingerprint


def test_impossible_values_are_refused(tmp_path: Path, queries: list[Query]) -> None:
    fill_cache(POOL, queries, tmp_path)
    open_tree(tmp_path)  # computes and stores the scores
    part = next((tmp_path / "parts").glob("scores-*"))
    table = pq.read_table(part)
    part.unlink()
    bad = table.set_column(3, "value", pc.add(table["value"], 0.7))
    PartWriter(tmp_path).append("scores", bad)
    with pytest.raises(CacheError, match="score out of range"):
        open_tree(tmp_path)
    with pytest.raises(CacheError, match="value must be from 0 to 1"):
        verify_cache(tmp_path, rescore=True)


def test_many_queries_make_many_parts(
    tmp_path: Path, queries: list[Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hierrouter.collection.plan.QUERIES_A_PART", 7)
    store_plan(PartWriter(tmp_path), None, POOL, identify(POOL.everyone), queries)
    parts = [part.rows for part in list_parts(tmp_path) if part.kind == "queries"]
    assert parts == [7, 7, 4]
    assert last_plan(tmp_path) == (POOL, tuple(queries))
