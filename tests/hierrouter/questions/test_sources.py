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
from tests.hierrouter.questions.files import rows, write


def query(**row: Any) -> Query:
    return query_of({"question": "Which?", **row}, "here:1", "mine", 1)


def test_choices_become_part_of_the_question_and_are_kept() -> None:
    found = query(choices={"A": "x", "B": "y"}, answers=["B", "y"])
    assert found.question == "Which?\nA. x\nB. y"
    assert found.choices == (("A", "x"), ("B", "y"))
    assert found.answers == ("B", "y")
    assert found.id == "1"
    listed = query(choices=["x", "y", "z"], answer="C")
    assert listed.choices == (("A", "x"), ("B", "y"), ("C", "z"))


@pytest.mark.parametrize("count", [3, 5])
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


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"answer": 5}, ("5",)),
        ({"answer": 0.5}, ("0.5",)),
        ({"answer": "four and one", "final_answer": 5}, ("four and one", "5")),
        ({"answer": "4 + 1 = 5\n#### 5", "final_answer": "5"}, ("4 + 1 = 5\n#### 5",)),
        ({"answer": "five", "final_answer": "five"}, ("five",)),
        ({"answer": r"It is $\boxed{}$."}, (r"It is $\boxed{}$.",)),
    ],
)
def test_reference_answers(row: dict[str, Any], answers: tuple[str, ...]) -> None:
    assert query(**row).answers == answers


def test_an_empty_box_is_a_reference_that_nothing_meets() -> None:
    for said in (r"\boxed{}", "5"):
        assert scorer("accuracy")(said, [r"So the answer is $\boxed{}$."]) == 0


@pytest.mark.parametrize(
    ("spelt", "name"),
    [("arc_easy", "arc-easy"), ("arc-challenge", "arc-challenge"), ("my_own", "my_own")],
)
def test_a_paper_dataset_has_one_spelling(spelt: str, name: str) -> None:
    assert query(answer="a", dataset=spelt).dataset == name


def test_lone_surrogates_are_replaced_everywhere() -> None:
    found = query(question="q\ud83d", choices=["\ud83d", "y"], answers=["A", "\ud83d"])
    assert found.question == "q\ufffd\nA. \ufffd\nB. y"
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
        ({"answer": True}, "answer is empty or not a text"),
        ({"answer": b"x"}, "answer is empty or not a text"),
        ({"answers": ["a", None]}, "answers holds something empty or not a text"),
        ({"answers": [" "]}, "answers holds something empty or not a text"),
        ({"answer": "a", "question": 1}, "question is empty or not a text"),
        ({"answer": "a", "question": "x" * 1_000_001}, "question too long"),
        ({"answer": "a", "split": "dev"}, "unknown split 'dev'"),
        ({"answer": "a", "dataset": 5}, "dataset is empty or not a text"),
        ({"answer": "a", "id": None}, "id must be a text or a number, got None"),
        ({"answer": "a", "id": 1.5}, "id must be a text or a number, got 1.5"),
    ],
)
def test_a_row_that_is_no_question_is_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"{message}.*: here:1"):
        query(**row)


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


STRUCT = pa.array([{"A": "x", "B": "y", "E": None}, {"A": "x", "B": "y", "E": "z"}])
PAIRS = [[("A", "x"), ("B", "y")], [("A", "x"), ("B", "y"), ("E", "z")]]


@pytest.mark.parametrize("choices", [STRUCT, pa.array(PAIRS, pa.map_(pa.string(), pa.string()))])
def test_a_row_has_its_own_choices_only(tmp_path: Path, choices: pa.Array) -> None:
    columns = {"question": ["q", "r"], "answer": ["B", "E"], "choices": choices}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    assert [each.choices for each in read_file(tmp_path / "x.parquet")] == list(map(tuple, PAIRS))
    pq.write_table(pa.table({**columns, "choices": [[1], [2]]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"choices must map labels to texts: .*: row 1"):
        read_file(tmp_path / "x.parquet")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_are_counted(tmp_path: Path, kind: str) -> None:
    assert count_rows(write(tmp_path / f"x.{kind}", rows(3000))) == 3000
