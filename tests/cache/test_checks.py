"""Rows of parts with right hashes and wrong content, or without the columns that came later."""

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hierrouter_cache import keys
from hierrouter_cache.chain import sound_parts
from hierrouter_cache.errors import reason_of, suggestion, typed_reason
from hierrouter_cache.maintenance import compact
from hierrouter_cache.parts import ROW_SCHEMAS, ROWS_PER_BATCH, part_batches
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import PartWriter
from tests.cache import rows

SUM = "Two and two?"
CALL: dict[str, Any] = rows.calls(("m", "c", "r")).to_pylist()[0]
QUERY = (
    keys.query_key("d", "1", SUM, ["4"], "test"),
    keys.root_context(SUM),
    keys.references_key(["4"]),
)
ROWS: dict[str, dict[str, Any]] = {
    kind: rows.table(kind, row).to_pylist()[0]
    for kind, row in {
        "calls": tuple(CALL.values()),
        "queries": (*QUERY, "1", "d", "test", SUM, ["4"], None),
        "scores": (CALL["key"], "r", "s", 1.0),
        "plans": (keys.plan_key("{}", ["q"]), "{}", ["q"]),
        "failures": (keys.call_key("m", "c"), "m", "c", "m", "empty", "", 1),
        "decisions": (keys.call_key("m", "c"), "m", "c", "m", True, 0.5, [0.0, 1.6]),
    }.items()
}
WRONG = [
    ("calls", "response", "forged", "outcome is not that of the row's content"),
    ("calls", "step", "forged", "key is not that of"),
    ("calls", "context", "forged", "key is not that of"),
    ("calls", "tokens_in", -1, "tokens_in must be int32, got -1"),
    ("calls", "tokens_out", 2**31, "tokens_out must be int32"),
    ("calls", "prompt", None, "prompt must be string, got None"),
    ("calls", "prompt", "\ud800", "prompt must be string"),
    ("calls", "latency_s", math.inf, "latency_s must be double"),
    ("queries", "question", "forged", "query is not that of"),
    ("queries", "answers", ["5"], "query is not that of"),
    ("queries", "answers", [None], "answers must be list"),
    ("queries", "split", "train", "query is not that of"),
    ("queries", "references", "0", "references is not that of"),
    ("queries", "context", "0", "context is not that of"),
    ("queries", "choices", [{"label": "A", "text": "4"}], "query is not that of"),
    ("queries", "choices", [], "choices must be list"),
    ("queries", "tests", ["assert x"], "query is not that of"),
    ("queries", "tests", [], "tests must not be empty"),
    ("queries", "tests", [5], "tests must be list"),
    ("queries", "choices", ["4"], "choices must be list"),
    ("queries", "choices", [{"label": "A"}], "choices must be list"),
    ("queries", "choices", [{"label": "A", "text": None}], "choices must be list"),
    ("scores", "value", 1.7, "value must be from 0 to 1, got 1.7"),
    ("scores", "value", -0.1, "value must be from 0 to 1"),
    ("scores", "value", math.nan, "value must be double, got nan"),
    ("scores", "value", True, "value must be double, got True"),
    ("scores", "value", 2**53 + 1, "value must be double, got"),
    ("plans", "pool", "[]", "plan is not that of"),
    ("plans", "queries", [], "plan is not that of"),
    ("failures", "step", "forged", "key is not that of"),
    ("decisions", "context", "forged", "key is not that of"),
    ("decisions", "made", 1, "made must be bool, got 1"),
    ("decisions", "chance", 1.5, "chance must be from 0 to 1, got 1.5"),
    ("decisions", "alphas", [math.nan], "alphas must be list"),
    ("failures", "attempts", True, "attempts must be int32"),
]


@pytest.mark.parametrize("kind", ROW_SCHEMAS)
def test_a_right_row_has_no_fault(kind: str) -> None:
    assert keys.row_fault(kind, ROWS[kind]) is None
    assert keys.row_fault(kind, {**ROWS[kind], "filename": "another column"}) is None
    if kind == "calls":
        assert keys.row_fault(kind, {**CALL, "latency_s": None}) is None


def test_choices_are_part_of_what_a_query_is() -> None:
    choices = [("A", "3"), ("B", "4")]
    row = {
        **ROWS["queries"],
        "query": keys.query_key("d", "1", SUM, ["4"], "test", choices),
        "references": keys.references_key(["4"], choices),
        "choices": [{"label": label, "text": text} for label, text in choices],
    }
    assert keys.row_fault("queries", row) is None
    row["choices"][1]["text"] = "5"
    assert keys.row_fault("queries", row) == "query is not that of the row's content"


@pytest.mark.parametrize(("kind", "column", "value", "message"), WRONG)
def test_a_wrong_value_is_named(kind: str, column: str, value: object, message: str) -> None:
    fault = keys.row_fault(kind, {**ROWS[kind], column: value})
    assert fault
    assert fault.startswith(message)


def test_every_row_of_a_part_is_looked_at(tmp_path: Path) -> None:
    table = rows.calls(*(("m", f"c{number}", "r") for number in range(2 * ROWS_PER_BATCH)))
    writer = PartWriter(tmp_path)
    writer.append("calls", table)
    responses = ["r"] * (2 * ROWS_PER_BATCH - 1)
    writer.append("calls", rows.with_column(table, "response", [*responses, "forged"]))
    sound, forged = sound_parts(tmp_path)
    seen: list[int] = []
    assert keys.part_fault(sound, on_rows=seen.append) is None
    assert seen == [ROWS_PER_BATCH, ROWS_PER_BATCH]
    assert (
        keys.part_fault(forged)
        == f"row {2 * ROWS_PER_BATCH}: outcome is not that of the row's content"
    )


def test_a_text_that_is_not_utf_8_is_a_fault(tmp_path: Path) -> None:
    table = rows.calls(("m", "c", "r"))
    rows.put(tmp_path, "calls", rows.with_column(table, "prompt", rows.no_utf8()))
    (part,) = sound_parts(tmp_path)
    fault = keys.part_fault(part)
    assert fault
    assert fault.startswith("not readable after row 0")


CHOICES = [{"label": "A", "text": "yes"}, {"label": "B", "text": "no"}]


def without_choices(*questions: str) -> pa.Table:
    """Queries as versions wrote them that knew no choices, and so no tests and types."""
    return rows.queries(*questions).drop_columns(["choices", "tests", "answer_type"])


def test_a_part_without_choices_is_read_as_one_with_none(tmp_path: Path) -> None:
    rows.put(tmp_path, "queries", without_choices("a", "b"))
    (part,) = sound_parts(tmp_path)
    (batch,) = part_batches(part)
    assert batch.schema == ROW_SCHEMAS["queries"]
    assert batch["choices"].null_count == 2
    found = CacheReader(tmp_path).queries(["q-b", "q-a"], ("id", "choices")).to_pylist()
    assert found == [{"id": "b", "choices": None}, {"id": "a", "choices": None}]


def test_a_cache_may_hold_parts_with_choices_and_without(tmp_path: Path) -> None:
    rows.put(tmp_path, "calls", rows.calls(("m", "c", "r")))
    assert "choices" in CacheReader(tmp_path).sql("SELECT * FROM queries").column_names
    rows.put(tmp_path, "queries", without_choices("a", "b"))
    rows.put(tmp_path, "queries", rows.with_column(rows.queries("c"), "choices", [CHOICES]), seq=2)
    rows.put(tmp_path, "queries", without_choices("d"), seq=3)
    reader = CacheReader(tmp_path)
    found = reader.queries(["q-d", "q-c", "q-a"], ("choices",))["choices"].to_pylist()
    assert found == [None, CHOICES, None]
    assert reader.sql("SELECT id FROM queries_rows")["id"].to_pylist() == ["a", "b", "c", "d"]
    before = reader.sql("SELECT * FROM queries ORDER BY id")
    compact(tmp_path)
    assert len(list((tmp_path / "parts").glob("queries-*"))) == 1
    assert CacheReader(tmp_path).sql("SELECT * FROM queries ORDER BY id").equals(before)


def test_keys_without_choices_are_those_of_before() -> None:
    """Literal digests: were they others, no old cache would find its queries and scores."""
    assert keys.query_key("d", "1", "q", ["a"], "test") == "d7e981aaaca093212f388c2be7af6d69"
    assert keys.references_key(["a"]) == "cce87d48b2928d322f10f64973e0a23a"
    assert keys.references_key(["a"], [("A", "a")]) != keys.references_key(["a"])


@pytest.mark.parametrize(
    ("error", "limit", "said", "named"),
    [
        (ValueError("two\n  lines\t."), 120, "two lines .", "ValueError: two lines ."),
        (ValueError("12345"), 3, "123", "ValueError: 123"),
        (ValueError(), 120, "ValueError", "ValueError"),
        (OSError(" \n "), 120, "OSError", "OSError"),
    ],
)
def test_an_error_is_one_short_line(error: Exception, limit: int, said: str, named: str) -> None:
    assert reason_of(error, limit) == said
    assert typed_reason(error, limit) == named


def test_what_may_be_meant_is_suggested_and_else_what_is_known() -> None:
    assert suggestion("gsm9k", ["math", "gsm8k"]) == "did you mean gsm8k? "
    assert suggestion("xyz", ["math", "gsm8k"]) == "known: math, gsm8k; "
    assert suggestion("xyz", ["math", "gsm8k"], "see there; ") == "see there; "
