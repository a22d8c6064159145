"""Choices go from a question through the cache to the scorer, and out and in again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hierrouter.collection.files import export_jsonl, import_jsonl
from hierrouter.collection.plan import last_plan
from hierrouter.collection.progress import Progress
from hierrouter.collection.scheduler import fill_cache
from hierrouter.engines.generator import Answer, Response
from hierrouter.pools.pool import ModelSpec, Pool
from hierrouter.questions.query import Query
from hierrouter.questions.sources import query_of
from hierrouter.replay.inspection import verify_cache
from hierrouter.replay.opening import Selection, open_tree
from hierrouter_cache.errors import InputError
from hierrouter_cache.reader import CacheReader
from tests.engines import Scripted

SAYS = {"text": "Liquid.", "label": "The answer is (B).", "wrong": "gas"}
POOL = Pool(tuple(ModelSpec(name, f"org/{name}", 1.0) for name in SAYS), 1, ("Solve.",))
ROW = {"choices": ["gas", "liquid"], "answer": "B"}
QUERIES = [
    query_of({**ROW, "question": f"Is it {fold}?", "split": fold}, "here", "mine", number)
    for number, fold in enumerate(("train", "validation", "test"))
]
# What versions stored that knew no choices: the same text, and nothing more.
AS_BEFORE = [replace(query, choices=()) for query in QUERIES]


def script(model: str, prompt: str) -> Answer:
    return Response(SAYS[model], 5, 2, "stop")


def collected(root: Path, queries: Sequence[Query] = QUERIES) -> list[str]:
    """Collect; returns the queries that were said to have changed."""
    changed: list[str] = []
    progress = Progress(on_changed=changed.extend)
    fill_cache(POOL, queries, root, progress, engines=Scripted(script))
    return changed


def scores(root: Path, name: str) -> list[list[float]]:
    return open_tree(root, Selection(scorer=name)).direct.score.tolist()


def test_a_choice_in_words_is_right(tmp_path: Path) -> None:
    collected(tmp_path)
    assert scores(tmp_path, "choice") == [[1, 1, 0]] * 3
    assert open_tree(tmp_path).direct.accuracy.tolist() == [[1, 1, 0]] * 3
    assert "scores: as computed again" in verify_cache(tmp_path, rescore=True)[-1]
    plan = last_plan(tmp_path)
    assert plan
    assert plan[1] == tuple(QUERIES)


def test_a_cache_of_before_gets_choices_without_a_call(tmp_path: Path) -> None:
    collected(tmp_path, AS_BEFORE)
    assert scores(tmp_path, "choice") == [[0, 1, 0]] * 3
    calls = CacheReader(tmp_path).responses()
    assert collected(tmp_path) == []
    assert CacheReader(tmp_path).responses() == calls
    assert scores(tmp_path, "choice") == [[1, 1, 0]] * 3
    assert scores(tmp_path, "token_f1") == [[0, pytest.approx(0.4), 0]] * 3
    other = replace(QUERIES[1], answers=("A",))  # that is a change
    assert collected(tmp_path, [QUERIES[0], other, QUERIES[2]]) == ["mine/1"]


def test_choices_go_out_and_come_back(tmp_path: Path) -> None:
    """Not where one was changed on the way."""
    root, out = tmp_path / "cache", tmp_path / "out.jsonl"
    collected(root)
    scores(root, "choice")
    export_jsonl(root, out)
    import_jsonl(out, tmp_path / "back")
    export_jsonl(tmp_path / "back", tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == out.read_bytes()
    assert scores(tmp_path / "back", "choice") == [[1, 1, 0]] * 3
    forged = out.read_text().replace('"text": "gas"', '"text": "air"')
    assert forged != out.read_text()
    out.write_text(forged)
    with pytest.raises(InputError, match="query is not that of the row's content"):
        import_jsonl(out, tmp_path / "forged")


def test_a_query_without_choices_is_the_line_of_before(tmp_path: Path) -> None:
    root, out = tmp_path / "cache", tmp_path / "out.jsonl"
    collected(root, AS_BEFORE)
    export_jsonl(root, out)
    assert '"choices"' not in out.read_text()
    import_jsonl(out, tmp_path / "back")
    assert CacheReader(tmp_path / "back").sql("SELECT choices FROM queries")[0].null_count == 3
