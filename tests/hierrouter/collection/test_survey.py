"""What is known of a tree that is to be collected."""

from pathlib import Path

import pytest

from hierrouter.collection.estimate import Answered, by_dataset, survey
from hierrouter.engines import identify
from hierrouter.pools.files import load_pool
from hierrouter.questions.datasets import load_queries
from hierrouter_cache.reader import CacheReader

POOL = load_pool("testbed")
SPEC = POOL.tree_spec(identify(POOL.everyone))


def test_equal_questions_belong_to_the_first_dataset() -> None:
    found = by_dataset([("a", "same"), ("a", "same"), ("b", "same"), ("b", "other")])
    assert found == {"a": ["same"], "b": ["other"]}


def test_sums_are_those_of_the_stored_calls(testbed_cache: Path) -> None:
    reader = CacheReader(testbed_cache)
    found = survey(POOL, SPEC, load_queries(["testbed"], 20, 42, Path()), reader)
    [stored] = reader.sql(
        "SELECT count(*) AS calls, sum(tokens_in) AS tokens_in, sum(tokens_out) AS tokens_out, "
        "sum(strlen(prompt)) AS prompt_bytes, sum(latency_s) AS seconds FROM calls"
    ).to_pylist()
    whole = [seen for (_, dataset), seen in found.seen.items() if dataset == ""]
    for name, value in stored.items():
        assert sum(getattr(seen, name) for seen in whole) == pytest.approx(value)
        parts = [seen for (_, dataset), seen in found.seen.items() if dataset]
        assert sum(getattr(seen, name) for seen in parts) == pytest.approx(value)
    assert sum(known.there for known in found.known.values()) == stored["calls"]


def test_contexts_are_counted_with_their_different_answers(testbed_cache: Path) -> None:
    reader = CacheReader(testbed_cache)
    queries = load_queries(["arith"], 20, 42, Path())
    found = survey(POOL, SPEC, queries, reader)
    roots = [query.question for query in queries]
    rows = reader.sql(
        "SELECT count(DISTINCT outcome) AS n FROM calls WHERE context IN "
        "(SELECT context FROM queries WHERE dataset = 'arith')"
    )
    assert found.answered[0, "arith"] == Answered(len(set(roots)), rows["n"][0].as_py())
    assert found.answered_of(0, "unheard of") == found.answered[0, ""]
    assert found.answered[0, ""].contexts > 20
