"""Which call is which node, what is missing, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from hierrouter_cache.errors import CacheError, IncompleteTree
from hierrouter_cache.keys import next_context, root_context, text_digest
from hierrouter_cache.maintenance import compact
from hierrouter_cache.reader import CacheReader, first_match
from hierrouter_cache.walk import describe_holes, newest_answers, states, stored_scores, walk
from hierrouter_cache.writer import PartWriter
from tests.cache import rows
from tests.cache.rows import KEYS, fill, load

SPEC = rows.spec("ab", 2)
ONE = rows.tree_calls("ab", 2, "one")
TWO = rows.tree_calls("ab", 2, "two")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return fill(tmp_path)


def test_the_first_of_equal_numbers_is_found() -> None:
    among = np.array([5, 7, 5, 9, 7], np.uint64)
    wanted = np.array([[7, 5], [8, 9]], np.uint64)
    assert first_match(wanted, among).tolist() == [[1, 0], [-1, 3]]
    assert first_match(wanted, np.empty(0, np.uint64)).tolist() == [[-1, -1], [-1, -1]]


def test_of_two_answers_to_one_call_the_first_part_counts(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path)
    writer.append("queries", rows.queries("one"))
    for response in ("first", "second"):
        writer.append("calls", rows.calls(("a", root_context("one"), response)))
    reader = CacheReader(tmp_path)
    (call,) = reader.texts(walk(reader, rows.spec("a", 1), ["q-one"]).tree.key[:, 1]).values()
    assert call.response == "first"
    assert list(reader.responses().values()) == ["first"]
    assert reader.sql("SELECT response FROM calls").to_pylist() == [{"response": "first"}]


def test_of_thousands_of_rivals_the_first_part_counts(tmp_path: Path) -> None:
    """So many that a join of the engine does not keep the order of the parts."""
    writer, names = PartWriter(tmp_path), list(map(str, range(6000)))
    writer.append("queries", rows.queries(*names))
    for response in ("first", "second"):
        for start in range(0, 6000, 1000):
            some = names[start : start + 1000]
            writer.append(
                "calls", rows.calls(*(("a", root_context(n), f"{response} {n}") for n in some))
            )
    reader = CacheReader(tmp_path)
    keys = reader.hashes(reader.sql("SELECT DISTINCT key FROM calls_rows")["key"].to_pylist())
    found = [call.response for call in reader.texts(keys).values()]
    assert len(found) == 6000
    assert all(response.startswith("first ") for response in found)
    first = {text_digest(f"first {n}") for n in range(6000)}
    assert set(reader.answers(keys).tolist()) == set(reader.hashes(list(first)).tolist())
    forest = walk(reader, rows.spec("a", 1), [f"q-{n}" for n in names])
    after = [next_context(root_context(n), f"first {n}") for n in names]
    assert forest.tree.outcome[:, 1].tolist() == reader.hashes(after).tolist()


def test_rows_stored_twice_count_once(root: Path) -> None:
    once = load(root)
    assert load(fill(root)).fingerprint == once.fingerprint


def test_missing_nodes_are_counted(tmp_path: Path) -> None:
    with pytest.raises(IncompleteTree, match="1 of 2 queries lack 3 nodes"):
        load(fill(tmp_path, drop=3))


def test_below_a_hole_there_is_nothing_and_that_is_told(tmp_path: Path) -> None:
    rows.store(tmp_path, *ONE[1:], *TWO)
    forest = walk(CacheReader(tmp_path), SPEC, KEYS)
    lost = [SPEC.layout.node(path) for path in ((0,), (0, 0), (0, 1))]
    assert np.flatnonzero(~forest.tree.present[0]).tolist() == lost
    assert forest.complete.tolist() == [False, True]
    assert not forest.tree.tokens_in[0, lost].any()
    assert describe_holes(forest, SPEC) == (
        "1 of 2 queries lack 3 nodes and 1 direct calls (2 of them because their parent is missing)"
        ": no answer of a in 1"
    )


def test_unscored_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IncompleteTree, match="12 calls are not scored"):
        load(fill(tmp_path, scored=False))


def test_a_child_is_never_matched_with_another_parents_answer(tmp_path: Path) -> None:
    """The same root call answered otherwise: its stored children belong to the old answer."""
    step, context, response = ONE[0]
    rows.store(tmp_path, (step, context, response + "!"), *ONE[1:], *TWO)
    with pytest.raises(IncompleteTree, match="1 of 2 queries lack 2 nodes"):
        load(tmp_path)


def test_states_come_with_their_words(root: Path) -> None:
    reader = CacheReader(root)
    forest = walk(reader, SPEC, KEYS)
    wanted = forest.tree.outcome[[1, 0, 0], [2, 0, 1]]
    found = states(reader, SPEC, forest, wanted)
    said = [(state.question, state.responses) for state in found]
    assert said == [("two", ("b",)), ("one", ()), ("one", ("a",))]
    assert found[1].context == root_context("one")
    assert reader.hashes([state.context for state in found]).tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("value", "message"),
    [(None, "tokens_in is missing in a row"), (-3, "negative number of tokens_in")],
)
def test_an_impossible_number_of_tokens_is_refused(
    root: Path, value: int | None, message: str
) -> None:
    table = rows.calls(("a", root_context("three"), "x"))
    PartWriter(root).append("calls", rows.with_column(table, "tokens_in", [value]))
    with pytest.raises(CacheError, match=message):
        walk(CacheReader(root), SPEC, KEYS)


@pytest.mark.parametrize("value", [1.7, -0.1, float("nan")])
def test_an_impossible_score_is_refused(root: Path, value: float) -> None:
    table = rows.scores(rows.calls(("a", root_context("one"), "x")))
    PartWriter(root).append("scores", rows.with_column(table, "value", [value] * 2))
    reader = CacheReader(root)
    with pytest.raises(CacheError, match=r"score out of range \[0, 1\] or NaN: token_f1"):
        stored_scores(reader, walk(reader, SPEC, KEYS), "token_f1")


def test_a_plan_of_another_run_or_none_is_named(root: Path) -> None:
    reader = CacheReader(root)
    with pytest.raises(CacheError, match=r"1 queries that are not here.*another run"):
        walk(reader, SPEC, [*KEYS, "q-three"])
    with pytest.raises(CacheError, match=f"no plan in the cache: {root}; collect with"):
        reader.latest_plan()


def test_a_compaction_under_an_open_reader_changes_nothing(tmp_path: Path) -> None:
    for drop in (0, 3):
        fill(tmp_path, drop=drop)
    before = walk(CacheReader(tmp_path), SPEC, KEYS)
    readers = [CacheReader(tmp_path) for _ in range(3)]
    old = readers[0].parts
    compact(tmp_path)
    after = walk(readers[0], SPEC, KEYS)
    assert readers[0].parts != old
    for name in ("present", "key", "tokens_in"):
        assert np.array_equal(getattr(before.tree, name), getattr(after.tree, name))
    calls = before.tree.key[:, 1:]
    assert len(readers[1].texts(calls)) == calls.size
    assert len(np.unique(readers[2].answers(calls))) == 6


def test_equal_answers_have_equal_hashes_whatever_came_before(tmp_path: Path) -> None:
    said = {"a": "ja, naïve ✓ \x00\n", "b": ""}
    calls = []
    for question in rows.QUESTIONS:
        context = root_context(question)
        calls += [(step, context, said[step]) for step in "ab"]
        for first in "ab":
            after = next_context(context, said[first])
            calls += [(step, after, said[step]) for step in "ab"]
    rows.store(tmp_path, *calls)
    reader = CacheReader(tmp_path)
    spec = rows.spec("ab", 3)
    found = newest_answers(reader, spec, walk(reader, spec, KEYS))
    a, b = (int(reader.hashes([text_digest(said[step])])[0]) for step in "ab")
    assert found.tolist() == [[b, a, b, a, b, a, b]] * 2


def test_one_hop_has_no_answer_to_see(root: Path) -> None:
    reader, spec = CacheReader(root), rows.spec("ab", 1)
    nothing = reader.hashes([text_digest("")]).tolist()
    assert newest_answers(reader, spec, walk(reader, spec, KEYS)).tolist() == [nothing] * 2
