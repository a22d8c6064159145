"""Any file of questions is read, or refused in one line that names it.

A table is the same questions whoever wrote it.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
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
    rows, ending = draw(edited(sound)), draw(st.sampled_from((".jsonl", ".json", ".parquet")))
    try:
        data = parquet(pa.Table.from_pylist(rows)) if ending == ".parquet" else lines(rows)
        if ending == ".json" and draw(st.booleans()):
            data = json.dumps(rows).encode()
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


# One table by every writer. Polars writes large_string, or string_view, and large_list; Spark the
# lists of two levels, old timestamps and v2 pages; the hub's library large row groups.

Choices = list[tuple[str, str]]
CHOICE_FORMS: dict[str, Callable[[Choices], Any]] = {
    "texts": lambda choices: [text for _, text in choices],
    "columns": lambda choices: {
        "label": [label for label, _ in choices],
        "text": [text for _, text in choices],
    },
    "pairs": lambda choices: [{"label": label, "text": text} for label, text in choices],
    "object": dict,
}
FURTHER = "seen"  # a column that no question has


def with_text_type(kind: pa.DataType, text: pa.DataType) -> pa.DataType:
    """The type with another type of text, and large lists."""
    if pa.types.is_string(kind):
        return text
    if text == pa.string_view():  # pyarrow cannot write lists of views
        return kind
    if pa.types.is_list(kind):
        return pa.large_list(with_text_type(kind.value_type, text))
    if pa.types.is_struct(kind):
        fields = [kind.field(position) for position in range(kind.num_fields)]
        return pa.struct([(field.name, with_text_type(field.type, text)) for field in fields])
    return kind


def retyped(table: pa.Table, text: pa.DataType) -> pa.Table:
    kinds = [(field.name, with_text_type(field.type, text)) for field in table.schema]
    return pa.Table.from_pylist(table.to_pylist(), schema=pa.schema(kinds))


def text_leaves(table: pa.Table) -> list[str]:
    """The paths of the columns of text in a file of this table."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    schema = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    columns = [schema.column(position) for position in range(len(schema))]
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def encoded(table: pa.Table, path: Path, encoding: str, **options: Any) -> None:
    encodings = dict.fromkeys(text_leaves(table), encoding)
    pq.write_table(table, path, use_dictionary=False, column_encoding=encodings, **options)


def by_duckdb(table: pa.Table, path: Path, options: str) -> None:
    connection = duckdb.connect()
    connection.register("questions", table)
    connection.execute(f"COPY questions TO '{path}' ({options})")
    connection.close()


def with_categories(table: pa.Table) -> pa.Table:
    columns = {
        name: column.dictionary_encode() if pa.types.is_string(column.type) else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return pa.table(columns)


def with_moments(table: pa.Table) -> pa.Table:
    """The table with a column of moments that Python has not."""
    moments = pa.array([2**62 + 1] * len(table), pa.timestamp("ns"))
    return table.append_column(FURTHER, moments)


ARROW_WRITERS: dict[str, Callable[[pa.Table, Path], object]] = {
    "pyarrow": pq.write_table,
    "small groups": lambda table, path: pq.write_table(table, path, row_group_size=2),
    "v2 pages": lambda table, path: pq.write_table(
        table, path, data_page_version="2.0", version="2.6", compression="zstd"
    ),
    "lists of two levels": lambda table, path: pq.write_table(
        table, path, use_compliant_nested_type=False, store_schema=False, flavor="spark"
    ),
    "int96": lambda table, path: pq.write_table(
        with_moments(table), path, use_deprecated_int96_timestamps=True
    ),
    "large_string": lambda table, path: pq.write_table(retyped(table, pa.large_string()), path),
    "string_view": lambda table, path: pq.write_table(retyped(table, pa.string_view()), path),
    "categories": lambda table, path: pq.write_table(with_categories(table), path),
    "pandas": lambda table, path: table.to_pandas().to_parquet(path),
    "duckdb v1": lambda table, path: by_duckdb(table, path, "FORMAT parquet"),
    "duckdb v2": lambda table, path: by_duckdb(table, path, "FORMAT parquet, PARQUET_VERSION v2"),
    **{
        encoding: lambda table, path, encoding=encoding: encoded(table, path, encoding)
        for encoding in ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")
    },
    "delta in v2 pages": lambda table, path: encoded(
        table, path, "DELTA_BYTE_ARRAY", data_page_version="2.0"
    ),
}
JSON_WRITERS: dict[str, Callable[[Rows], tuple[str, bytes]]] = {
    "lines": lambda rows: (".jsonl", lines(rows)),
    "lines of Windows": lambda rows: (
        ".jsonl",
        b"\xef\xbb\xbf" + lines(rows).replace(b"\n", b"\r\n"),
    ),
    "lines in Unicode": lambda rows: (
        ".jsonl",
        "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode(),
    ),
    "lines in .json": lambda rows: (".json", lines(rows)),
    "list": lambda rows: (".json", json.dumps(rows).encode()),
    "list of Windows": lambda rows: (
        ".json",
        b"\xef\xbb\xbf" + json.dumps(rows, indent=1).replace("\n", "\r\n").encode(),
    ),
    "object around the list": lambda rows: (
        ".json",
        json.dumps({"version": "1.1", "data": rows}, indent=2).encode(),
    ),
    "pandas": lambda rows: (".json", pd.DataFrame(rows).to_json(orient="records").encode()),
    "duckdb": lambda rows: (".jsonl", duckdb_lines(rows)),
}


def duckdb_lines(rows: Rows) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.json"
        by_duckdb(pa.Table.from_pylist(rows), file, "FORMAT json")
        return file.read_bytes()


# A number that every writer keeps: JSON of pandas has 10 decimals, Parquet all of a float.
NUMBER = st.integers(-(2**50), 2**50) | st.integers(-(10**8), 10**8).map(lambda n: n / 1000)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Rows, list[tuple[Any, ...]]]:
    """Rows of one form, and (id, question, answers, choices) that each stands for."""
    count = draw(st.integers(1, 5))
    form = draw(st.sampled_from((None, *CHOICE_FORMS)))
    kind = draw(st.sampled_from(("text", "number", "whole floats")))
    rows: Rows = []
    expected: list[tuple[Any, ...]] = []
    for number in range(count):
        row: dict[str, Any] = {"id": f"q{number}", "question": f"{draw(WORDS)} {number}?"}
        if form is None:
            value = draw(NUMBER)
            answer: Any = {"text": f"so {draw(WORDS)}", "number": float(value)}.get(kind)
            answer = float(number * 3) if answer is None else answer
            choices: Choices = []
            text = answer if isinstance(answer, str) else np.format_float_positional(answer)
            references = (text.removesuffix(".") if not isinstance(answer, str) else text,)
            references = ("0",) if references == ("-0",) else references
        else:
            texts = draw(st.lists(WORDS, min_size=3, max_size=3, unique_by=str.casefold))
            choices = [(label, f"{text} {label}") for label, text in zip("ABC", texts, strict=True)]
            row["choices"] = CHOICE_FORMS[form](choices)
            answer = draw(st.sampled_from("ABC"))
            references = (answer,)
        rows.append({**row, "answer": answer})
        question = row["question"] + "".join(f"\n{label}. {text}" for label, text in choices)
        expected.append((row["id"], question, references, tuple(choices)))
    return rows, expected


def read_back(file: Path) -> list[tuple[Any, ...]]:
    return [(query.id, query.question, query.answers, query.choices) for query in read_file(file)]


@FEW
@given(tables())
def test_a_table_is_the_same_questions_whoever_wrote_it(
    table: tuple[Rows, list[tuple[Any, ...]]],
) -> None:
    rows, expected = table
    with tempfile.TemporaryDirectory() as folder:
        for name, write in ARROW_WRITERS.items():
            file = Path(folder) / "x.parquet"
            write(pa.Table.from_pylist(rows), file)
            assert read_back(file) == expected, name
        for name, encode in JSON_WRITERS.items():
            ending, data = encode(rows)
            file = Path(folder) / f"x{ending}"
            file.write_bytes(data)
            assert read_back(file) == expected, name


def test_the_writers_differ(tmp_path: Path) -> None:
    """Without this, one encoding under many names would pass."""
    rows = [{"question": f"q{n}", "answer": "a", "choices": ["a", f"b{n}"]} for n in range(40)]
    encodings = set()
    for write in ARROW_WRITERS.values():
        write(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
        group = pq.read_metadata(tmp_path / "x.parquet").row_group(0)
        encodings |= {each for n in range(group.num_columns) for each in group.column(n).encodings}
    assert encodings >= {"PLAIN", "RLE_DICTIONARY", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"}
