"""Parts of before there were choices: read, checked, merged like any other."""

from pathlib import Path

import pyarrow as pa
import pytest

from hierrouter_cache.errors import DamagedPart
from hierrouter_cache.keys import query_key, references_key
from hierrouter_cache.maintenance import compact
from hierrouter_cache.parts import KINDS, part_batches, part_name, sound_parts
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.writer import WHILE_COLLECTING, PartWriter, commit, encode, no_steps
from tests.cache import rows

CHOICES = [{"label": "A", "text": "yes"}, {"label": "B", "text": "no"}]


def store_old(root: Path, table: pa.Table, seq: int = 1) -> None:
    """Write a part as versions did that knew no choices."""
    PartWriter(root)
    data = encode("queries", table.drop_columns(["choices"]), WHILE_COLLECTING)
    commit(root, part_name("queries", seq, "a" * 8, table.num_rows, data), data, no_steps)


def with_choices(table: pa.Table) -> pa.Table:
    column = pa.array([CHOICES] * table.num_rows, KINDS["queries"].field("choices").type)
    return table.set_column(table.schema.get_field_index("choices"), "choices", column)


def test_their_choices_are_null(tmp_path: Path) -> None:
    store_old(tmp_path, rows.queries("a", "b"))
    found = CacheReader(tmp_path).queries(["q-b", "q-a"], ("id", "choices")).to_pylist()
    assert found == [{"id": "b", "choices": None}, {"id": "a", "choices": None}]
    (part,) = sound_parts(tmp_path)
    (batch,) = part_batches(part)
    assert batch.schema == KINDS["queries"]
    assert batch["choices"].null_count == 2


def test_a_cache_may_hold_both(tmp_path: Path) -> None:
    store_old(tmp_path, rows.queries("a", "b"))
    PartWriter(tmp_path).append("queries", with_choices(rows.queries("c")))
    store_old(tmp_path, rows.queries("d"), seq=3)
    reader = CacheReader(tmp_path)
    found = reader.queries(["q-d", "q-c", "q-a"], ("choices",))["choices"].to_pylist()
    assert found == [None, CHOICES, None]
    assert reader.sql("SELECT id FROM queries_rows")["id"].to_pylist() == ["a", "b", "c", "d"]
    before = reader.sql("SELECT * FROM queries ORDER BY id")
    compact(tmp_path)
    assert len(list((tmp_path / "parts").glob("queries-*"))) == 1
    assert CacheReader(tmp_path).sql("SELECT * FROM queries ORDER BY id").equals(before)


def test_a_cache_without_queries_has_the_column(tmp_path: Path) -> None:
    PartWriter(tmp_path).append("calls", rows.calls(("m", "c", "r")))
    assert "choices" in CacheReader(tmp_path).sql("SELECT * FROM queries").column_names


def test_other_columns_are_needed(tmp_path: Path) -> None:
    store_old(tmp_path, rows.queries("a").drop_columns(["answers"]))
    with pytest.raises(DamagedPart, match="column answers is missing"):
        CacheReader(tmp_path)


def test_keys_without_choices_are_those_of_before() -> None:
    """Literal digests: were they others, no old cache would find its queries and scores."""
    assert query_key("d", "1", "q", ["a"], "test") == "d7e981aaaca093212f388c2be7af6d69"
    assert references_key(["a"]) == "cce87d48b2928d322f10f64973e0a23a"
    assert references_key(["a"], [("A", "a")]) != references_key(["a"])
