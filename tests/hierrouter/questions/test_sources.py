"""What a row may hold, with the traps of the paper's datasets, and what a file may be."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hierrouter.questions.query import Query
from hierrouter.questions.scoring import scorer
from hierrouter.questions.sources import count_rows, query_of, read_file
from hierrouter_cache.errors import InputError
from tests.hierrouter.questions.files import Row, rows, write


def query(**row: Any) -> Query:
    return query_of({"question": "Which?", **row}, "here:1", "mine", 1)


def test_choices_become_part_of_the_question_and_are_kept() -> None:
    found = query(choices={"A": "x", "B": "y"}, answers=["B", "y"])
    assert found.question == "Which?\nA. x\nB. y"
    assert found.choices == (("A", "x"), ("B", "y"))
    assert found.answers == ("B", "y")
    assert found.id == "1"


def test_a_list_of_choices_has_letters() -> None:
    found = query(choices=["x", "y", "z"], answer="C")
    assert found.choices == (("A", "x"), ("B", "y"), ("C", "z"))


@pytest.mark.parametrize("count", [3, 4, 5])
def test_labels_that_are_numbers_are_shown_as_letters(count: int) -> None:
    texts = ["ice", "steam", "water", "fog", "dew"][:count]
    labels = [str(number) for number in range(1, count + 1)]
    for answer in ("3", 3):
        found = query(choices=dict(zip(labels, texts, strict=True)), answer=answer)
        assert found.answers == ("C",)
        assert found.choices == tuple(zip("ABCDE", texts, strict=False))
        assert found.question.endswith("\nC. water" + "\nD. fog\nE. dew"[: 7 * (count - 3)])
        assert scorer("accuracy")("The answer is (C).", found.answers, found.choices) == 1


def test_non_breaking_spaces_and_byte_order_marks_survive() -> None:
    texts = ["10\u00a0kg", "\ufeff20 kg", "a\u2009b", ""]
    found = query(question="How\u00a0much\ufeff?", choices=texts, answer="B")
    assert [text for _, text in found.choices] == texts
    assert found.question.startswith("How\u00a0much\ufeff?\nA. 10\u00a0kg\nB. \ufeff20 kg\n")
    assert scorer("choice")("20 kg", found.answers, found.choices) == 1


def test_an_empty_box_is_a_reference_that_nothing_meets() -> None:
    found = query(answer=r"So the answer is $\boxed{}$.")
    assert found.answers == (r"So the answer is $\boxed{}$.",)
    assert scorer("accuracy")(r"\boxed{}", found.answers) == 0
    assert scorer("accuracy")("5", found.answers) == 0


def test_numbers_are_answers() -> None:
    assert query(answer=5).answers == ("5",)
    assert query(answer=0.5).answers == ("0.5",)


def test_a_final_answer_is_a_reference_where_the_answer_states_none() -> None:
    assert query(answer="four and one make five", final_answer=5).answers == (
        "four and one make five",
        "5",
    )
    assert query(answer="4 + 1 = 5\n#### 5", final_answer="5").answers == ("4 + 1 = 5\n#### 5",)
    assert query(answer="five", final_answer="five").answers == ("five",)


@pytest.mark.parametrize(
    ("spelt", "name"),
    [("arc_easy", "arc-easy"), ("arc-challenge", "arc-challenge"), ("my_own", "my_own")],
)
def test_a_paper_dataset_has_one_spelling(spelt: str, name: str) -> None:
    assert query(answer="a", dataset=spelt).dataset == name


def test_lone_surrogates_are_replaced_everywhere() -> None:
    found = query(question="q\ud83d", choices=["\ud83d", "y"], answers=["A", "\ud83d"])
    assert found.question == "q\ufffd\nA. \ud83d\nB. y".replace("\ud83d", "\ufffd")
    assert found.choices[0] == ("A", "\ufffd")
    assert found.answers[1] == "\ufffd"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "E", "choices": {"A": "x", "B": "y"}}, "answer 'E' is none of the labels A, B"),
        ({"answer": 0, "choices": ["x", "y"]}, "answer '0' is none of the labels A, B"),
        ({"answer": "A", "choices": list("abcdefghijk")}, "11 choices, 10 at most"),
        ({"answer": "A", "choices": {"A": 5}}, "choices must map labels to texts"),
        ({"answer": "A", "choices": "A. x"}, "choices must be an object or a list"),
        ({"answer": "x", "final_answer": ""}, "final_answer is empty or not a text"),
        ({"answer": "x", "final_answer": float("nan")}, "final_answer is empty or not a text"),
    ],
)
def test_a_row_that_is_no_question_is_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        query(**row)
    assert "here:1" in str(error.value)


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
