"""What `cache info` counts, `verify` finds, and the scores that are stored or read."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hierrouter as hr
from hierrouter.collection.scheduler import fill_cache
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter.questions.scoring import Scorer, scorer
from hierrouter.replay.inspection import ask_cache, cache_info, verify_cache
from hierrouter.replay.stored_pool import FIRST_SCORED_PART, load_planned_pool, score_forest
from hierrouter_cache.errors import DamagedPart, IncompleteTree
from hierrouter_cache.keys import plan_key
from hierrouter_cache.maintenance import damaged_files
from hierrouter_cache.parts import ROW_SCHEMAS, Part, list_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.walk import walk
from hierrouter_cache.writer import PartWriter
from tests.cache.rows import take
from tests.engines import Scripted
from tests.holes import drop_calls, drop_five_leaves_of_three_queries

Row = dict[str, Any]
DIRECT = "SELECT call FROM nodes WHERE hop = 0 AND model = 'a' AND id = '3'"


@pytest.fixture
def scored(cache: Path) -> Path:
    hr.open(cache)
    return cache


def test_a_missing_direct_call_is_counted_as_the_tree_refuses_it(tmp_path: Path) -> None:
    models = tuple(ModelSpec(name, name, 1.0) for name in "ab")
    questions = [Query(str(n), "mine", f"question {n}", ("yes",), "train") for n in range(6)]
    pool = Pool(models, hops=1, stage_prompts=("Solve.",))
    fill_cache(pool, questions, tmp_path, engines=Scripted())
    drop_calls(tmp_path, {ask_cache(tmp_path, DIRECT)["call"][0].as_py()})
    info = cache_info(tmp_path, incomplete=True)
    assert (info["complete_queries"], info["missing_nodes"], info["missing_direct"]) == (5, 0, 1)
    assert info["holes"] == {"not collected": 1}
    assert info["incomplete"] == [{"query": "mine/3", "missing_nodes": 0, "missing_direct": 1}]
    with pytest.raises(IncompleteTree, match="1 of 6 queries lack 1 direct calls"):
        hr.open(tmp_path)
    assert cache_info(tmp_path, models=["b"])["complete_queries"] == 6


def test_holes_are_counted_and_named_and_a_part_of_the_pool_is_counted_alone(cache: Path) -> None:
    drop_five_leaves_of_three_queries(cache)
    whole = cache_info(cache, incomplete=True)
    assert (whole["complete_queries"], whole["missing_nodes"]) == (197, 5)
    assert whole["holes"] == {"not collected": 5}
    assert sorted(query["missing_nodes"] for query in whole["incomplete"]) == [1, 2, 2]
    info = cache_info(cache, hops=1)
    assert (info["complete_queries"], info["missing_nodes"], info["nodes"]) == (200, 0, 600)
    assert cache_info(cache, models=["calc"])["models"] == ["calc"]
    assert cache_info(cache, "testbed")["fingerprint"] == whole["fingerprint"]
    assert info["fingerprint"] != whole["fingerprint"]


def last_part(root: Path, kind: str) -> Part:
    return [part for part in list_parts(root) if part.kind == kind][-1]


def spoil(root: Path, kind: str, change: Callable[[Row], object]) -> str:
    """Change every row of a kind's last part; returns the name of the part that is there now."""
    part = last_part(root, kind)
    rows = pq.read_table(part.path, columns=ROW_SCHEMAS[kind].names).to_pylist()
    for row in rows:
        change(row)
    take(part.path)
    return PartWriter(root).append(kind, pa.Table.from_pylist(rows, schema=ROW_SCHEMAS[kind])).name


def other_hops(row: Row) -> None:
    """A pool that no file could hold, under the key that is right for it."""
    stored = json.loads(row["pool"])
    stored["pool"]["hops"] = "2"
    row["pool"] = json.dumps(stored)
    row["plan"] = plan_key(row["pool"], row["queries"])


DAMAGES: dict[str, tuple[str, Callable[[Row], object], str]] = {
    "score": ("scores", lambda row: row.update(value=1.7), "value must be from 0 to 1"),
    "response": ("calls", lambda row: row.update(response="forged"), "outcome is not that of"),
    "question": ("queries", lambda row: row.update(question="forged"), "query is not that of"),
    "plan": ("plans", lambda row: row.update(queries=row["queries"][1:]), "plan is not that of"),
    "pool": ("plans", other_hops, "hops must be an integer, got '2'"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_rows_that_are_not_what_their_keys_say_are_found(scored: Path, name: str) -> None:
    kind, change, message = DAMAGES[name]
    part = spoil(scored, kind, change)
    assert damaged_files(scored) == []  # every byte is as its name says
    with pytest.raises(DamagedPart, match=message) as error:
        verify_cache(scored)
    assert part in str(error.value)
    assert len(str(error.value)) <= 300


def test_rows_that_are_not_served_are_looked_at_too(cache: Path) -> None:
    row = pq.read_table(last_part(cache, "calls").path).slice(0, 1).to_pylist()[0]
    rival = pa.Table.from_pylist([{**row, "response": "forged"}], schema=ROW_SCHEMAS["calls"])
    PartWriter(cache).append("calls", rival)
    with pytest.raises(DamagedPart, match="row 1: outcome is not that of"):
        verify_cache(cache)


def test_a_sound_cache_is_verified_row_by_row_and_score_by_score(scored: Path) -> None:
    total = sum(part.rows for part in list_parts(scored))
    seen: list[tuple[int, int]] = []
    lines = verify_cache(scored, rescore=True, on_rows=lambda rows, of: seen.append((rows, of)))
    assert f"{total} rows: every key is that of the row's content" in lines
    assert sum(rows for rows, _ in seen) == total
    assert {of for _, of in seen} == {total}
    assert "scores: as computed again from the responses" in lines[-1]
    stored = CacheReader(scored).sql("SELECT DISTINCT scorer FROM scores")["scorer"].to_pylist()
    assert {scorer(name).key for name in ("accuracy", "token_f1")} <= set(stored)


def store(root: Path, *scores: tuple[str, float]) -> None:
    """Give one call a score by each of these scorers."""
    sql = 'SELECT c.key, q."references" FROM calls_rows c, queries_rows q LIMIT 1'
    [row] = CacheReader(root).sql(sql).to_pylist()
    rows = [[row["key"], row["references"], *score] for score in scores]
    schema = ROW_SCHEMAS["scores"]
    named = [dict(zip(schema.names, row, strict=False)) for row in rows]
    table = pa.Table.from_pylist(named, schema=schema)
    PartWriter(root).append("scores", table)


def test_a_wrong_score_is_found(cache: Path) -> None:
    store(cache, (scorer("exact_match").key, 0.25))
    verify_cache(cache)
    with pytest.raises(DamagedPart, match=r"score exact_match@3 of call .* is 0\.25"):
        verify_cache(cache, rescore=True)


def test_scores_of_other_versions_are_counted_apart_and_never_read(cache: Path) -> None:
    store(cache, ("token_f1@0", 0.123), ("accuracy@0", 0.123), ("mine:score@0123", 0.5))
    tree = hr.open(cache)
    assert 0.123 not in tree.score
    assert set(tree.accuracy.flat) <= {0, 1}
    others = "scores of other versions, users' functions or imports: not computed again"
    assert verify_cache(cache, rescore=True)[-1] == f"3 {others}"


def test_texts_held_a_few_at_a_time_give_the_same(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = Path(shutil.copytree(cache, tmp_path / "pieces"))
    shutil.rmtree(pieces / "derived", ignore_errors=True)
    whole = hr.open(cache, scorer="exact_match")
    monkeypatch.setattr("hierrouter.replay.stored_pool.CALLS_PER_READ", 1_000)
    monkeypatch.setattr("hierrouter.replay.states.TEXTS_PER_FILE", 90)
    monkeypatch.setattr("hierrouter.replay.states.FILES_PER_READ", 2)
    found = hr.open(pieces, scorer="exact_match")
    assert np.array_equal(found.score, whole.score)
    assert np.array_equal(found.embedding, whole.embedding)


def test_what_a_slow_scorer_has_done_is_kept(cache: Path) -> None:
    asked = 0

    def breaks_off(response: str, references: Sequence[str]) -> float:
        nonlocal asked
        asked += 1
        if asked == 300:
            raise KeyboardInterrupt
        return 0.5

    slow = Scorer("slow", "1", breaks_off)
    reader = CacheReader(cache)
    plan = reader.latest_plan()
    pool, identities = load_planned_pool(plan.pool)
    forest = walk(reader, pool.tree_spec(identities), plan.queries)
    with pytest.raises(KeyboardInterrupt):
        score_forest(reader, forest, slow)
    kept = CacheReader(cache).sql("SELECT * FROM scores WHERE scorer = ?", [slow.key])
    assert kept.num_rows == FIRST_SCORED_PART
