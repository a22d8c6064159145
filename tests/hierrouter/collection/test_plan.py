"""The plan as parts of a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierrouter.collection.plan import last_plan, store_plan
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter_cache.parts import list_parts
from hierrouter_cache.writer import PartWriter


def test_many_queries_make_many_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierrouter.collection.plan.QUERIES_A_PART", 2)
    pool = Pool((ModelSpec("a", "a", base_rate=1.0),), hops=1, stage_prompts=("",))
    asked = tuple(Query(str(n), "d", f"What is {n}?", (str(n),), "train") for n in range(5))
    store_plan(PartWriter(tmp_path), None, pool, {"a": {"name": "a"}}, asked)
    parts = [part.rows for part in list_parts(tmp_path) if part.kind == "queries"]
    plan = last_plan(tmp_path)
    assert parts == [2, 2, 1]
    assert plan and plan[1] == asked
