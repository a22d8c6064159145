"""What `cache info` counts, on a cache with holes."""

import shutil
from pathlib import Path

import pytest

from hierrouter.collection.scheduler import fill_cache
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter.replay.inspection import ask_cache, cache_info
from hierrouter.replay.opening import Selection, open_tree
from hierrouter_cache.errors import IncompleteTree
from tests.engines import Scripted
from tests.holes import drop_calls, drop_five_leaves_of_three_queries

DIRECT = "SELECT call FROM nodes WHERE hop = 0 AND model = 'a' AND id = '3'"


@pytest.fixture
def cache(tmp_path: Path, testbed_cache: Path) -> Path:
    return Path(shutil.copytree(testbed_cache, tmp_path / "cache"))


def test_a_missing_direct_call_is_counted_as_the_tree_refuses_it(tmp_path: Path) -> None:
    models = tuple(ModelSpec(name, name, 1.0) for name in "ab")
    questions = [Query(str(n), "mine", f"question {n}", ("yes",), "train") for n in range(6)]
    pool = Pool(models, hops=1, stage_prompts=("Solve.",))
    fill_cache(pool, questions, tmp_path, engines=Scripted())
    drop_calls(tmp_path, {ask_cache(tmp_path, DIRECT)["call"][0].as_py()})
    info = cache_info(tmp_path, incomplete=True)
    assert (info["complete_queries"], info["missing_nodes"], info["missing_direct"]) == (5, 0, 1)
    assert info["incomplete"] == [{"query": "mine/3", "missing_nodes": 0, "missing_direct": 1}]
    with pytest.raises(IncompleteTree, match="1 of 6 queries lack 1 direct calls"):
        open_tree(tmp_path)
    assert cache_info(tmp_path, models=["b"])["complete_queries"] == 6


def test_whole_trees_lack_nothing(cache: Path) -> None:
    info = cache_info(cache, incomplete=True)
    assert (info["complete_queries"], info["queries"]) == (200, 200)
    assert (info["missing_nodes"], info["missing_direct"], info["incomplete"]) == (0, 0, [])
    assert (info["nodes"], info["direct"]) == (200 * 12, 200 * 3)
    assert "incomplete" not in cache_info(cache)


def test_holes_are_counted_and_named_as_the_tree_refuses_them(cache: Path) -> None:
    drop_five_leaves_of_three_queries(cache)
    info = cache_info(cache, incomplete=True)
    assert (info["complete_queries"], info["missing_nodes"]) == (197, 5)
    assert sorted(query["missing_nodes"] for query in info["incomplete"]) == [1, 2, 2]
    with pytest.raises(IncompleteTree, match="3 of 200 queries lack 5 nodes"):
        open_tree(cache)


def test_a_part_of_the_pool_is_counted_alone(cache: Path) -> None:
    drop_five_leaves_of_three_queries(cache)
    info = cache_info(cache, hops=1)
    assert (info["complete_queries"], info["missing_nodes"], info["nodes"]) == (200, 0, 600)
    assert cache_info(cache, models=["calc"])["models"] == ["calc"]
    assert cache_info(cache, "testbed")["fingerprint"] == cache_info(cache)["fingerprint"]
    assert info["fingerprint"] != cache_info(cache)["fingerprint"]
    assert len(open_tree(cache, Selection(hops=1))) == 200
