from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hierrouter.questions.sources import count_rows, read_file
from hierrouter_cache.errors import InputError
from tests.hierrouter.questions.files import Row, rows, write


def test_byte_order_mark_and_carriage_returns_are_fine(tmp_path: Path) -> None:
    path = write(tmp_path / "b.jsonl", rows())
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert len(read_file(path)) == 6


def test_lone_surrogates_are_replaced_before_anything_is_paid_for(tmp_path: Path) -> None:
    path = tmp_path / "u.jsonl"
    path.write_text('{"id": "1", "question": "a\\ud83d", "answer": "b"}\n')
    assert read_file(path)[0].question == "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (3, '{"id": "q3", ', r"\.jsonl:3.*"),
        (1, "[1, 2]", r"not a JSON object: .*:1; write one JSON object per line"),
        (2, '{"id": "x", "question": "q", "anwser": "a"}', r"answer is missing: .*:2"),
        (2, '{"id": "x", "question": "  ", "answer": "a"}', r"question is empty.*:2"),
        (2, '{"id": "x", "question": "q", "answers": []}', r"answers is empty.*:2"),
        (2, '{"id": "x", "question": "q", "answer": NaN}', r"answer is empty or not a text: .*:2"),
        (4, '{"id": "q1", "question": "q", "answer": "a"}', r"duplicate id q1: .*:2 and .*:4"),
        (2, '{"question": "q", "answer": "a", "split": "dev"}', r"unknown split 'dev'.*:2"),
        (
            2,
            '{"question": "q", "answer": "a", "dataset": 5}',
            r"dataset is empty or not a text.*:2",
        ),
        (2, '{"id": null, "question": "q", "answer": "a"}', r"id must be a text or a number.*:2"),
        (2, "[" * 100_000, r"not JSON: .*:2"),
        (2, '{"question": "' + "x" * 1_000_001 + '", "answer": "a"}', r"too long: .*:2"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: int, change: str, message: str) -> None:
    path = write(tmp_path / "bad.jsonl", rows())
    lines = path.read_text().splitlines()
    lines[line - 1] = change
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=message):
        read_file(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no rows"),
        (b'{"id": "1", "question": "q", "answer": "a"}\n\xff\xfe', r"not UTF-8: .*:2"),
        (b"\x1f\x8b\x08\x00\xff", r"not UTF-8: .*:1"),
    ],
)
def test_a_file_that_is_no_dataset(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_file(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": None}, r"question is missing: .*\.parquet: row 2"),
        ({"question": "  "}, r"question is empty or not a text: .*: row 2"),
        ({"answer": None}, r"answer is missing: .*: row 2"),
        ({"answers": []}, r"answers is empty or not a list: .*: row 2"),
        ({"answers": ["a", None]}, r"answers holds something empty or not a text: .*: row 2"),
        ({"answers": [" "]}, r"answers holds something empty.*: row 2"),
        ({"id": "q3"}, r"duplicate id q3: .*: row 2 and .*: row 4"),
        ({"split": "dev"}, r"unknown split 'dev': .*: row 2"),
        ({"question": "x" * 1_000_001}, r"question too long: .*: row 2"),
        ({"choices": {"A": "x", "B": "y"}}, r"answer '2' is none of the labels A, B: .*: row 2"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: Row, message: str) -> None:
    content = rows()
    content[1].update(change)
    with pytest.raises(InputError, match=message):
        read_file(write(tmp_path / "bad.parquet", content))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("question", [1, 2], "question is empty or not a text: .*: row 1"),
        ("question", [b"x", b"y"], "question is empty or not a text: .*: row 1"),
        ("answer", [[1], [2]], "answer is empty or not a text: .*: row 1"),
        ("answer", [float("nan"), 1.0], "answer is empty or not a text: .*: row 1"),
        ("id", [1.5, 2.5], "id must be a text or a number, got 1.5: .*: row 1"),
        ("choices", ["A", "B"], "choices must be an object or a list, got 'A': .*: row 1"),
        ("choices", [[1], [2]], "choices must map labels to texts: .*: row 1"),
    ],
)
def test_a_column_of_another_type_is_named(
    tmp_path: Path, column: str, values: list[object], message: str
) -> None:
    table = pa.table({"id": ["1", "2"], "question": ["q", "r"], "answer": ["a", "b"]})
    table = pa.table({**{name: table[name] for name in table.column_names}, column: values})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(InputError, match=message):
        read_file(tmp_path / "x.parquet")


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    content = [{"id": row["id"], "anwser": row["answer"], "question": "q"} for row in rows()]
    with pytest.raises(InputError, match=r"answer is missing: .*: row 1; it has anwser, id, quest"):
        read_file(write(tmp_path / "x.parquet", content))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", rows(2000))
    data = path.read_bytes()
    for damaged in (b"", b"PAR1", data[:-100], b"\x1f\x8b" + data):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"not readable as parquet: .*x\.parquet"):
            read_file(path)
    path.write_bytes(data[:1000] + bytes(4000) + data[5000:])
    with pytest.raises(InputError, match=r"x\.parquet"):
        read_file(path)


def test_a_file_that_declares_too_many_rows_is_not_read(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.null())])
    with pq.ParquetWriter(tmp_path / "huge.parquet", schema) as writer:
        for _ in range(6):
            writer.write_table(pa.table({"a": pa.nulls(10_000_000)}, schema=schema))
    with pytest.raises(InputError, match="60,000,000 rows declared"):
        read_file(tmp_path / "huge.parquet")


def test_no_rows_no_folder(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": pa.array([], pa.string())}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="dataset has no rows"):
        read_file(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="is a directory"):
        read_file(tmp_path)
    with pytest.raises(InputError, match="not found"):
        read_file(tmp_path / "none.parquet")


CHOICES = {
    "struct": pa.array([{"A": "x", "B": "y", "E": None}, {"A": "x", "B": "y", "E": "z"}]),
    "map": pa.array(
        [[("A", "x"), ("B", "y")], [("A", "x"), ("B", "y"), ("E", "z")]],
        pa.map_(pa.string(), pa.string()),
    ),
}


@pytest.mark.parametrize("kind", CHOICES)
def test_a_row_has_its_own_choices_only(tmp_path: Path, kind: str) -> None:
    columns = {"question": ["q", "r"], "answer": ["B", "E"], "choices": CHOICES[kind]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    three, four = read_file(tmp_path / "x.parquet")
    assert three.choices == (("A", "x"), ("B", "y"))
    assert four.choices == (("A", "x"), ("B", "y"), ("E", "z"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_are_counted(tmp_path: Path, kind: str) -> None:
    assert count_rows(write(tmp_path / f"x.{kind}", rows(3000))) == 3000
