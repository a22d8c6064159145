import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hierrouter_cache.embeddings import EmbeddingStore
from hierrouter_cache.errors import IncompleteTree
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import Rate, RouteTree, StatePart
from hierrouter_cache.walk import TreeSpec, holes, load_tree, states, stored_scores, walk
from hierrouter_cache.writer import PartWriter
from tests.cache import rows

QUESTIONS = ("one", "two")
KEYS = [f"q-{question}" for question in QUESTIONS]


def fill(root: Path, models: str = "ab", hops: int = 2, drop: int = 0, scored: bool = True) -> None:
    made = [row for question in QUESTIONS for row in rows.tree_calls(models, hops, question)]
    table = rows.calls(*made[: len(made) - drop])
    writer = PartWriter(root)
    writer.append("calls", table)
    writer.append("queries", rows.queries(*QUESTIONS, answer="ab"))
    if scored:
        writer.append("scores", rows.scores(table, answer="ab"))


def load(root: Path, spec: TreeSpec, rate: float = 1.0) -> RouteTree:
    """The tree, priced at `rate` for the first model and 1 for the others."""
    reader = CacheReader(root)
    forest = walk(reader, spec, KEYS)
    store = EmbeddingStore(reader, "test")
    missing = store.missing(forest.tree.outcome[:, : spec.routes.states])
    if len(missing):
        contexts = [state.context for state in states(reader, spec, forest, missing)]
        store.append(contexts, np.arange(len(missing) * 2, dtype=np.float32).reshape(-1, 2))
    prices = {name: Rate.base(rate if name == spec.models[0] else 1.0) for name in spec.models}
    score, accuracy = (stored_scores(reader, forest, name) for name in ("token_f1", "exact_match"))
    row = store.rows(forest.tree.outcome[:, : spec.routes.states])
    parts = (StatePart(store.vectors(), row),)
    return load_tree(reader, spec, forest, parts, "test", prices, score, accuracy, "token_f1")


def test_a_tree_is_dense(tmp_path: Path) -> None:
    fill(tmp_path)
    tree = load(tmp_path, rows.spec("ab", 2))
    right = tree.routes.node((0, 1))
    assert tree.query_ids == QUESTIONS
    assert np.argwhere(tree.score).tolist() == [[0, right], [1, right]]
    assert tree.tokens_in[:, 1:].tolist() == [[3] * 6] * 2
    assert tree.cost[0].tolist() == [0, 5, 5, 10, 10, 10, 10]
    assert tree.reward(0.01)[0].tolist() == pytest.approx([-0.1, 0.9, -0.1, -0.1])
    assert tree.embedding.shape == (2, 3, 2)
    assert len(np.unique(tree.embedding.reshape(-1, 2), axis=0)) == 6
    assert tree.direct.cost.tolist() == [[5, 5], [5, 5]]


def test_fewer_models_or_hops_open_the_same_cache_as_a_sub_tree(tmp_path: Path) -> None:
    fill(tmp_path, models="abc", hops=2)
    whole = load(tmp_path, rows.spec("abc", 2))
    part = load(tmp_path, rows.spec("ab", 2))
    assert part.score[:, part.routes.node((0, 1))].tolist() == [1, 1]
    assert whole.score[:, whole.routes.node((0, 1))].tolist() == [1, 1]
    assert load(tmp_path, rows.spec("cab", 1)).routes.calls == 3


def test_rows_stored_twice_count_once(tmp_path: Path) -> None:
    fill(tmp_path)
    once = load(tmp_path, rows.spec("ab", 2))
    fill(tmp_path)
    assert load(tmp_path, rows.spec("ab", 2)).fingerprint == once.fingerprint


def test_a_price_changes_the_tree_and_no_call(tmp_path: Path) -> None:
    fill(tmp_path)
    dear = load(tmp_path, rows.spec("ab", 2), rate=2.0)
    assert dear.cost[0].tolist() == [0, 10, 5, 20, 15, 15, 10]
    assert dear.base_rate.tolist() == [2, 1]


def test_a_fingerprint_under_other_prices_is_that_of_the_same_content(tmp_path: Path) -> None:
    fill(tmp_path)
    tree, dear, shallow = (
        load(tmp_path, rows.spec("ab", hops), rate) for rate, hops in ((1.0, 2), (2.0, 2), (1.0, 1))
    )
    assert dear.fingerprint != tree.fingerprint
    assert tree.same_content(dear.fingerprint)
    assert not tree.same_content(shallow.fingerprint)


def test_missing_nodes_are_counted(tmp_path: Path) -> None:
    fill(tmp_path, drop=3)
    with pytest.raises(IncompleteTree, match="1 of 2 queries lack 3 nodes"):
        load(tmp_path, rows.spec("ab", 2))


def test_nodes_below_a_hole_are_told_from_those_that_failed_themselves(tmp_path: Path) -> None:
    made = rows.tree_calls("ab", 2, "one")
    writer = PartWriter(tmp_path)
    writer.append("calls", rows.calls(*made[1:], *rows.tree_calls("ab", 2, "two")))
    writer.append("queries", rows.queries(*QUESTIONS, answer="ab"))
    spec = rows.spec("ab", 2)
    assert holes(walk(CacheReader(tmp_path), spec, KEYS), spec.routes) == (
        "1 of 2 queries lack 3 nodes and 1 direct calls (2 of them because their parent is missing)"
    )


def test_unscored_nodes_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, scored=False)
    with pytest.raises(IncompleteTree, match="12 calls are not scored"):
        load(tmp_path, rows.spec("ab", 2))


def test_a_child_is_never_matched_with_another_parents_answer(tmp_path: Path) -> None:
    fill(tmp_path)
    made = rows.tree_calls("ab", 2, "one")
    # The same root call answered otherwise: its stored children belong to the old answer.
    other = [(step, context, response + "!") for step, context, response in made[:1]]
    root = tmp_path / "other"
    table = rows.calls(*other, *made[1:], *rows.tree_calls("ab", 2, "two"))
    writer = PartWriter(root)
    writer.append("calls", table)
    writer.append("queries", rows.queries(*QUESTIONS, answer="ab"))
    writer.append("scores", rows.scores(table, answer="ab"))
    with pytest.raises(IncompleteTree, match="1 of 2 queries lack 2 nodes"):
        load(root, rows.spec("ab", 2))


def test_select_keeps_rows_together(tmp_path: Path) -> None:
    fill(tmp_path)
    tree = load(tmp_path, rows.spec("ab", 2))
    second = tree.select(np.array([1]))
    assert second.query_ids == ("two",)
    assert np.array_equal(second.embedding[0], tree.embedding[1])
    assert len(tree.split("train")) == 0


def test_a_fold_is_the_queries_of_its_name(tmp_path: Path) -> None:
    fill(tmp_path)
    tree = replace(load(tmp_path, rows.spec("ab", 2)), splits=("validation", "train"))
    assert tree.split("train").query_ids == ("two",)
    assert tree.split("validation").query_ids == ("one",)
    assert len(tree.split("test")) == 0


def test_a_fingerprint_is_the_content_and_eight_digits_of_the_prices(tmp_path: Path) -> None:
    fill(tmp_path)
    tree, other = (load(tmp_path, rows.spec("ab", 2), rate) for rate in (1.0, 2.0))
    assert tree.content == other.content
    assert re.fullmatch(rf"{tree.content}-[0-9a-f]{{8}}", tree.fingerprint)
    assert tree.fingerprint != other.fingerprint
    assert tree.same_content(other.fingerprint)
