"""`cache verify --rescore`: stored scores against what the stored responses give."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hierrouter.collection.scheduler import fill_cache
from hierrouter.pools.files import load_pool
from hierrouter.pools.pool import pool_from_json
from hierrouter.questions.datasets import load_queries
from hierrouter.questions.scoring import Scorer, scorer
from hierrouter.replay.inspection import verify_cache
from hierrouter.replay.opening import Selection, open_tree
from hierrouter.replay.stored_pool import FIRST_PART, score_forest
from hierrouter_cache.errors import DamagedPart
from hierrouter_cache.parts import SCORES
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.walk import walk
from hierrouter_cache.writer import PartWriter


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Two questions with their trees."""
    fill_cache(load_pool("testbed"), load_queries(["arith"], 2, 42, Path()), tmp_path)
    return tmp_path


def store(root: Path, key: str, value: float) -> None:
    """Give one call a score."""
    row = CacheReader(root).sql('SELECT c.key, q."references" FROM calls_rows c, queries_rows q')
    columns = [row["key"][:1], row["references"][:1], [key], [value]]
    PartWriter(root).append("scores", pa.table(columns, schema=SCORES))


def test_scores_are_those_of_the_stored_responses(cache: Path) -> None:
    open_tree(cache)
    stored = CacheReader(cache).sql("SELECT DISTINCT scorer FROM scores")["scorer"].to_pylist()
    assert sorted(stored) == sorted(scorer(name).key for name in ("accuracy", "token_f1"))
    assert "scores: as computed again from the responses" in verify_cache(cache, rescore=True)[-1]


def test_a_wrong_score_is_found(cache: Path) -> None:
    store(cache, scorer("exact_match").key, 0.25)
    verify_cache(cache)
    with pytest.raises(DamagedPart, match=r"score exact_match@1 of call .* is 0\.25"):
        verify_cache(cache, rescore=True)


def test_scores_of_other_versions_are_counted_apart(cache: Path) -> None:
    store(cache, "exact_match@0", 0.25)
    store(cache, "mine:score@0123", 0.5)
    assert verify_cache(cache, rescore=True)[-2:] == [
        "0 scores: as computed again from the responses",
        "2 scores of other versions, users' functions or imports: not computed again",
    ]


def test_a_score_of_another_version_is_never_read(cache: Path) -> None:
    store(cache, "token_f1@0", 0.123)
    store(cache, "accuracy@0", 0.123)
    tree = open_tree(cache)
    assert 0.123 not in tree.score
    assert set(tree.accuracy.flat) <= {0, 1}


def test_texts_held_a_few_at_a_time_give_the_same(
    tmp_path: Path, testbed_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = Selection(scorer="exact_match")
    once, pieces = (Path(shutil.copytree(testbed_cache, tmp_path / name)) for name in "ab")
    shutil.rmtree(pieces / "derived", ignore_errors=True)
    whole = open_tree(once, exact)
    monkeypatch.setattr("hierrouter.replay.stored_pool.HELD", 1_000)
    monkeypatch.setattr("hierrouter.replay.opening.TEXTS_PER_FILE", 90)
    monkeypatch.setattr("hierrouter.replay.opening.FILES_HELD", 2)
    found = open_tree(pieces, exact)
    assert np.array_equal(found.score, whole.score)
    assert np.array_equal(found.embedding, whole.embedding)


def test_what_a_slow_scorer_has_done_is_kept(tmp_path: Path, testbed_cache: Path) -> None:
    cache = Path(shutil.copytree(testbed_cache, tmp_path / "cache"))
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
    pool, identities = pool_from_json(plan.pool)
    forest = walk(reader, pool.tree_spec(identities), plan.queries)
    with pytest.raises(KeyboardInterrupt):
        score_forest(reader, forest, slow)
    kept = CacheReader(cache).sql("SELECT count(*) AS n FROM scores WHERE scorer = ?", [slow.key])
    assert kept["n"][0].as_py() == FIRST_PART
