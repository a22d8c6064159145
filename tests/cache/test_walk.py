from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hierrouter_cache.errors import CacheError
from hierrouter_cache.keys import next_context, root_context, text_digest
from hierrouter_cache.maintenance import compact
from hierrouter_cache.reader import CacheReader, first_match
from hierrouter_cache.walk import newest_answers, states, stored_scores, walk
from hierrouter_cache.writer import PartWriter
from tests.cache import rows
from tests.cache.test_loading import KEYS, fill


def test_the_first_of_equal_numbers_is_found() -> None:
    among = np.array([5, 7, 5, 9, 7], np.uint64)
    wanted = np.array([[7, 5], [8, 9]], np.uint64)
    assert first_match(wanted, among).tolist() == [[1, 0], [-1, 3]]
    assert first_match(wanted, np.empty(0, np.uint64)).tolist() == [[-1, -1], [-1, -1]]


def test_of_two_answers_to_one_call_the_first_part_counts(tmp_path: Path) -> None:
    context = root_context("one")
    writer = PartWriter(tmp_path)
    writer.append("queries", rows.queries("one"))
    for response in ("first", "second"):
        writer.append("calls", rows.calls(("a", context, response)))
    reader = CacheReader(tmp_path)
    (call,) = reader.texts(walk(reader, rows.spec("a", 1), ["q-one"]).tree.key[:, 1]).values()
    assert call.response == "first"
    assert list(reader.responses().values()) == ["first"]
    assert reader.sql("SELECT response FROM calls").to_pylist() == [{"response": "first"}]


def test_of_thousands_of_rivals_the_first_part_counts(tmp_path: Path) -> None:
    """So many that a join of the engine does not keep the order of the parts."""
    writer = PartWriter(tmp_path)
    for response in ("first", "second"):
        for start in range(0, 6000, 1000):
            many = [("a", f"context {n}", f"{response} {n}") for n in range(start, start + 1000)]
            writer.append("calls", rows.calls(*many))
    reader = CacheReader(tmp_path)
    keys = reader.hashes(reader.sql("SELECT DISTINCT key FROM calls_rows")["key"].to_pylist())
    found = [call.response for call in reader.texts(keys).values()]
    assert len(found) == 6000
    assert all(response.startswith("first ") for response in found)
    first = {text_digest(f"first {n}") for n in range(6000)}
    assert set(reader.answers(keys).tolist()) == set(reader.hashes(list(first)).tolist())


def test_a_number_that_is_missing_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    table = rows.calls(("a", root_context("three"), "x"))
    at = table.schema.get_field_index("tokens_in")
    PartWriter(tmp_path).append(
        "calls", table.set_column(at, "tokens_in", pa.array([None], pa.int32()))
    )
    with pytest.raises(CacheError, match="tokens_in is missing in a row"):
        walk(CacheReader(tmp_path), rows.spec("ab", 2), KEYS)


def test_below_a_hole_there_is_nothing(tmp_path: Path) -> None:
    made = rows.tree_calls("ab", 2, "one")
    writer = PartWriter(tmp_path)
    writer.append("queries", rows.queries("one"))
    writer.append("calls", rows.calls(*made[1:]))
    reader = CacheReader(tmp_path)
    spec = rows.spec("ab", 2)
    forest = walk(reader, spec, ["q-one"])
    lost = [spec.routes.node(path) for path in ((0,), (0, 0), (0, 1))]
    assert np.flatnonzero(~forest.tree.found[0]).tolist() == lost
    assert not forest.complete[0]
    assert not forest.tree.tokens_in[0, lost].any()


def test_states_come_with_their_words(tmp_path: Path) -> None:
    fill(tmp_path)
    reader = CacheReader(tmp_path)
    spec = rows.spec("ab", 2)
    forest = walk(reader, spec, KEYS)
    wanted = forest.tree.outcome[[1, 0, 0], [2, 0, 1]]
    found = states(reader, spec, forest, wanted)
    assert [(state.question, state.responses) for state in found] == [
        ("two", ("b",)),
        ("one", ()),
        ("one", ("a",)),
    ]
    assert found[1].context == root_context("one")
    assert reader.hashes([state.context for state in found]).tolist() == wanted.tolist()


def test_an_impossible_number_of_tokens_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    table = rows.calls(("a", root_context("three"), "x"))
    wrong = table.set_column(
        table.schema.get_field_index("tokens_in"), "tokens_in", pa.array([-3], pa.int32())
    )
    PartWriter(tmp_path).append("calls", wrong)
    reader = CacheReader(tmp_path)
    with pytest.raises(CacheError, match="negative number of tokens_in"):
        walk(reader, rows.spec("ab", 2), KEYS)


@pytest.mark.parametrize("value", [1.7, -0.1, float("nan")])
def test_an_impossible_score_is_refused(tmp_path: Path, value: float) -> None:
    fill(tmp_path)
    table = rows.scores(rows.calls(("a", root_context("one"), "x")))
    PartWriter(tmp_path).append("scores", table.set_column(3, "value", pa.array([value] * 2)))
    reader = CacheReader(tmp_path)
    forest = walk(reader, rows.spec("ab", 2), KEYS)
    with pytest.raises(CacheError, match=r"score out of range \[0, 1\] or NaN: token_f1"):
        stored_scores(reader, forest, "token_f1")


def test_a_plan_of_another_run_is_named(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(CacheError, match=r"1 queries that are not here.*another run"):
        walk(CacheReader(tmp_path), rows.spec("ab", 2), [*KEYS, "q-three"])


def test_parts_without_a_plan_are_named(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(CacheError, match=f"no plan in the cache: {tmp_path}; collect with"):
        CacheReader(tmp_path).latest_plan()


def test_a_compaction_under_an_open_reader_changes_nothing(tmp_path: Path) -> None:
    for drop in (0, 3):
        fill(tmp_path, drop=drop)
    spec = rows.spec("ab", 2)
    before = walk(CacheReader(tmp_path), spec, KEYS)
    reader = CacheReader(tmp_path)
    compact(tmp_path)
    after = walk(reader, spec, KEYS)
    assert all(not part.path.name.startswith("calls-00000004") for part in reader.parts)
    for name in ("found", "key", "tokens_in"):
        assert np.array_equal(getattr(before.tree, name), getattr(after.tree, name))


def test_equal_answers_have_equal_hashes_whatever_came_before(tmp_path: Path) -> None:
    said = {"a": "ja, naïve ✓ \x00\n", "b": ""}
    calls = []
    for question in ("one", "two"):
        context = root_context(question)
        calls += [(step, context, said[step]) for step in "ab"]
        for first in "ab":
            after = next_context(context, said[first])
            calls += [(step, after, said[step]) for step in "ab"]
    writer = PartWriter(tmp_path)
    writer.append("queries", rows.queries("one", "two"))
    writer.append("calls", rows.calls(*calls))
    reader = CacheReader(tmp_path)
    spec = rows.spec("ab", 3)
    found = newest_answers(reader, spec, walk(reader, spec, KEYS))
    a, b = (int(reader.hashes([text_digest(said[step])])[0]) for step in "ab")
    assert found.tolist() == [[b, a, b, a, b, a, b]] * 2


def test_one_hop_has_no_answer_to_see(tmp_path: Path) -> None:
    fill(tmp_path)
    reader = CacheReader(tmp_path)
    spec = rows.spec("ab", 1)
    nothing = reader.hashes([text_digest("")]).tolist()
    assert newest_answers(reader, spec, walk(reader, spec, KEYS)).tolist() == [nothing] * 2


def test_texts_are_found_after_a_compaction_under_an_open_reader(tmp_path: Path) -> None:
    fill(tmp_path)
    fill(tmp_path)
    reader = CacheReader(tmp_path)
    calls = walk(reader, rows.spec("ab", 2), KEYS).tree.key[:, 1:]
    compact(tmp_path)
    assert len(reader.texts(calls)) == calls.size
    fill(tmp_path)
    reader = CacheReader(tmp_path)
    compact(tmp_path)
    assert len(np.unique(reader.answers(calls))) == 6
