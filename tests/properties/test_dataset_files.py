"""Any file of questions is read, or refused in one line that names it."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierrouter.questions.datasets import load_queries
from hierrouter.questions.query import Query
from hierrouter.questions.sources import read_file
from hierrouter.serving.logs import LogShape, read_log
from hierrouter_cache.errors import InputError
from tests.cache.rows import parquet
from tests.properties.near import damaged, edited

Rows = list[dict[str, Any]]
FEW = settings(max_examples=30)
ROWS: Rows = [
    {"id": "q1", "question": "1+1?", "answer": "2", "split": "train"},
    {"question": "which?", "answer": "B", "choices": {"A": "no", "B": "yes"}, "dataset": "mmlu"},
    {"question": "which now?", "answers": ["B"], "choices": ["no", "yes"], "id": 7},
    {"question": "2+2?", "answer": 4.5, "final_answer": 4, "split": "test"},
]
STEPS = [
    {"model": "a", "propensity": 0.5, "cost": 1.0, "response": "x"},
    {"model": "b", "propensity": 1, "tokens_in": 3, "tokens_out": 4, "stop": None},
]
LOG: Rows = [
    {"query": "q", "question": "?", "dataset": "d", "steps": STEPS, "quality": 1.0, "policy": "p"},
    {"query": "q", "question": "?", "steps": [{**STEPS[0], "stop": True}], "quality": 0},
    {"status": 500, "steps": []},
]
# Columns of types that Python or JSON know nothing of.
TYPES: dict[str, tuple[list[Any], pa.DataType]] = {
    "a moment that is none": ([2**60], pa.timestamp("us")),
    "a day that is none": ([2**30], pa.date32()),
    "a zone that is none": ([1], pa.timestamp("us", "Nowhere/No")),
    "nanoseconds": ([1], pa.duration("ns")),
    "bytes": ([b"\xff"], pa.binary()),
    "a number as text": (["1e999"], pa.string()),
    "a half": ([0.5], pa.float16()),
    "labels that are numbers": ([[(1, "x")]], pa.map_(pa.int64(), pa.string())),
    "labels that are tables": (
        [[({"a": 1}, "x")]],
        pa.map_(pa.struct([("a", pa.int64())]), pa.string()),
    ),
    "labels that are lists": ([[([1], "x")]], pa.map_(pa.list_(pa.int64()), pa.string())),
    "nothing": ([None], pa.null()),
}


def lines(rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@st.composite
def files(draw: st.DrawFn, sound: Rows) -> tuple[str, bytes]:
    """(ending, bytes) of a file near a sound one."""
    rows, ending = draw(edited(sound)), draw(st.sampled_from((".jsonl", ".parquet")))
    try:
        data = lines(rows) if ending == ".jsonl" else parquet(pa.Table.from_pylist(rows))
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError, AttributeError):
        data = parquet(pa.Table.from_pylist(sound[:1]))  # no such table can be written
    return ending, draw(st.one_of(st.just(data), damaged(data)))


def read(ending: str, data: bytes) -> list[Query]:
    """The file through everything that a collection does with its questions."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"near{ending}"
        file.write_bytes(data)
        try:
            read_file(file)
            return load_queries([str(file)], None, 42, Path(folder))
        except InputError as error:
            assert str(error)
            return []


@FEW
@given(files(ROWS))
def test_any_file_of_questions_is_taken_or_refused(file: tuple[str, bytes]) -> None:
    for query in read(*file):
        assert query.key and query.references
        assert query.split in ("train", "validation", "test")


@FEW
@given(files(LOG))
def test_any_log_is_taken_or_refused(file: tuple[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        path.write_bytes(file[1])
        try:
            episodes = read_log(path, LogShape(("a", "b"), 2, ((1.0, 1.0), (2.0, 2.0))))
        except InputError as error:
            assert "log.jsonl" in str(error)
        else:
            assert all(1 <= len(episode.steps) <= 2 for episode in episodes)


def test_sound_files_are_taken() -> None:
    """Without this, a property that refuses all would pass."""
    assert len(read(".jsonl", lines(ROWS))) == 4
    assert read(".parquet", parquet(pa.Table.from_pylist(ROWS[:1])))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("column", ["choices", "id", "answer", "further"])
def test_any_column_of_parquet_is_taken_or_refused(name: str, column: str) -> None:
    values, kind = TYPES[name]
    columns = {"question": pa.array(["which?"]), "answer": pa.array(["A"])}
    read(".parquet", parquet(pa.table({**columns, column: pa.array(values, kind)})))
