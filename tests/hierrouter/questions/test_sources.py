"""What a row and a file may hold; the six datasets from a hub on this machine."""

import json
import sys
import tomllib
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement

from hierrouter.questions.query import Query
from hierrouter.questions.scoring import scorer
from hierrouter.questions.sources import (
    HUB_REPOSITORIES,
    MATH_SUBJECTS,
    PAPER_DATASETS,
    query_of,
    read_file,
)
from hierrouter_cache.errors import InputError
from tests.conftest import SOURCES, spawned
from tests.hierrouter.collection.examples import questions, save
from tests.hub import COMMIT, hub, repository


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


def test_odd_spaces_survive_and_lone_surrogates_are_replaced_everywhere() -> None:
    texts = ["10\u00a0kg", "\ufeff20 kg", "a\u2009b", ""]
    found = query(question="How\u00a0much\ufeff?", choices=texts, answer="B")
    assert [text for _, text in found.choices] == texts
    assert found.question.startswith("How\u00a0much\ufeff?\nA. 10\u00a0kg\nB. \ufeff20 kg\n")
    assert scorer("choice")("20 kg", found.answers, found.choices) == 1
    found = query(question="q\ud83d", choices=["\ud83d", "y"], answers=["A", "\ud83d"])
    assert found.question == "q\ufffd\nA. \ufffd\nB. y"
    assert found.choices[0] == ("A", "\ufffd")
    assert found.answers[1] == "\ufffd"


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"answer": 5}, ("5",)),
        ({"answer": 0.5}, ("0.5",)),
        ({"answer": 12.0}, ("12",)),
        ({"answer": -0.0}, ("0",)),
        ({"answer": 1e22}, ("10000000000000000000000",)),
        ({"answer": 1e300}, ("1e+300",)),
        ({"answer": 1e-7}, ("0.0000001",)),
        ({"answer": 1 / 3}, ("0.3333333333333333",)),
        ({"answer": 0.1 + 0.2}, ("0.3",)),
        ({"answer": 1.1 * 3}, ("3.3",)),
        ({"answer": Decimal("12.50")}, ("12.5",)),
        ({"answer": Decimal("100.00")}, ("100",)),
        ({"answers": [12.0, "a dozen"]}, ("12", "a dozen")),
        ({"answer": "a dozen", "final_answer": 12.0}, ("a dozen", "12")),
        ({"answer": "four and one", "final_answer": 5}, ("four and one", "5")),
        ({"answer": "4 + 1 = 5\n#### 5", "final_answer": "5"}, ("4 + 1 = 5\n#### 5",)),
        ({"answer": "five", "final_answer": "five"}, ("five",)),
        ({"answer": r"It is $\boxed{}$."}, (r"It is $\boxed{}$.",)),
    ],
)
def test_reference_answers(row: dict[str, Any], answers: tuple[str, ...]) -> None:
    assert query(**row).answers == answers


ICE = ["ice", "sand", "glass"]


@pytest.mark.parametrize(
    ("choices", "answer", "label"),
    [
        (ICE, "(B)", "B"),
        (ICE, "[c]", "C"),
        (ICE, "A.", "A"),
        (ICE, "(B) sand", "B"),
        (ICE, "B. Sand", "B"),
        (ICE, " SAND ", "B"),
        (ICE, ["B"], "B"),
        (ICE, ["sand"], "B"),
        (["a", "an", "the"], "an", "B"),
        (["b", "a", "the"], "a", "B"),
        (["1 kg", "(A) and (B)", "none"], "(A) and (B)", "B"),
        ({"a": "ice", "b": "sand"}, "b", "B"),
        ({"1": "ice", "2": "sand"}, 2, "B"),
        ({"0": "ice", "1": "sand"}, "1", "B"),
        ({"A": "ice", "B": "sand"}, "sand", "B"),
        ({"label": ["A", "B"], "text": ["ice", "sand"]}, "B", "B"),
        ([{"label": "1", "text": "ice"}, {"label": "2", "text": "sand"}], "2", "B"),
        ([f"claim {number}" for number in range(26)], "Z", "Z"),
    ],
)
def test_the_right_choice_as_others_write_it(choices: Any, answer: Any, label: str) -> None:
    found = query(choices=choices, answer=answer)
    assert found.answers == (label,)
    for said, value in ((f"The answer is ({label}).", 1), ("The answer is (D).", 0)):
        assert scorer("accuracy")(said, found.answers, found.choices) == value
    text = dict(found.choices)[label]
    states_labels = len(text) == 1 or "(A)" in text
    said = f"The answer is: {text}"
    assert states_labels or scorer("accuracy")(said, found.answers, found.choices) == 1


def test_labels_that_are_right_together_stay_together() -> None:
    found = query(choices=ICE, answer="A, C")
    assert found.answers == ("A, C",)
    assert scorer("accuracy")("The answer is A and C.", found.answers, found.choices) == 1
    assert scorer("accuracy")("The answer is A.", found.answers, found.choices) == 0


def read_choices(
    folder: Path, answers: Sequence[Any], choices: Sequence[str] = ICE, **more: Sequence[Any]
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The references of a file with these answers, and the notes on it."""
    rows = [
        {"question": f"What melts at {number}?", "choices": choices, "answer": answer}
        | {name: values[number] for name, values in more.items()}
        for number, answer in enumerate(answers)
    ]
    path = folder / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []
    return [each.answers for each in read_file(path, notes.append)], notes


@pytest.mark.parametrize(
    ("answers", "labels", "first"),
    [
        ([0, 1, 1], "ABB", 0),
        (["0", "1", "2"], "ABC", 0),
        ([2.0, 0.0, 1.0], "CAB", 0),
        ([1, 3, 2], "ACB", 1),
        ([3, 3, 3], "CCC", 1),
        ([0, "B", "(C)"], "ABC", 0),
        ([3, "sand", "A"], "CBA", 1),
    ],
)
def test_numbers_of_choices_count_from_where_the_complete_file_says(
    tmp_path: Path, answers: list[Any], labels: str, first: int
) -> None:
    references, notes = read_choices(tmp_path, answers)
    assert references == [(label,) for label in labels]
    assert notes == [f"{tmp_path / 'x.jsonl'}: answers are numbers of choices, from {first}"]


def test_several_right_numbers_of_one_question(tmp_path: Path) -> None:
    references, _ = read_choices(tmp_path, [[0, 2], [1], [1, 1]])
    assert references == [("A", "C"), ("B",), ("B",)]


def test_each_dataset_of_a_file_has_its_own_numbers(tmp_path: Path) -> None:
    references, notes = read_choices(tmp_path, [0, 1, 3, 1], dataset=["m", "m", "a", "a"])
    assert references == [("A",), ("B",), ("C",), ("A",)]
    assert [note.rpartition("x.jsonl: ")[2] for note in notes] == [
        "m: answers are numbers of choices, from 0",
        "a: answers are numbers of choices, from 1",
    ]


def test_numbers_that_nothing_decides_are_refused(tmp_path: Path) -> None:
    undecided = r"answers may be numbers from 0 or numbers from 1: .*x\.jsonl: 3 such as '1', and"
    with pytest.raises(InputError, match=undecided):
        read_choices(tmp_path, [1, 2, 1])
    with pytest.raises(InputError, match="may be numbers from 1 or texts of choices"):
        read_choices(tmp_path, [1, 3, 2], choices=["3", "1", "2"])
    # Both readings name the same choices.
    assert read_choices(tmp_path, [1, 3, 2], choices=["1", "2", "3"])[0] == [("A",), ("C",), ("B",)]
    # They are no numbers of these choices.
    assert read_choices(tmp_path, [40, 50], choices=["40", "50"]) == ([("A",), ("B",)], [])


def test_a_number_out_of_range_is_a_bad_row(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"answer '3' is none of the labels A, B, C, nor a number from 0: .*:2"
    ):
        read_choices(tmp_path, [0, 3, 1, 0])


def test_an_answer_that_is_a_label_and_another_choice_s_text_is_named(tmp_path: Path) -> None:
    references, [note] = read_choices(tmp_path, ["A", "C"], choices=["B", "A", "C"])
    assert references == [("A",), ("C",)]
    assert note.endswith(
        "answers such as 'A' are read as labels, though another choice has that text"
    )


def test_an_empty_box_is_a_reference_that_nothing_meets() -> None:
    for said in (r"\boxed{}", "5"):
        assert scorer("accuracy")(said, [r"So the answer is $\boxed{}$."]) == 0


@pytest.mark.parametrize(
    ("spelt", "name"),
    [("arc_easy", "arc-easy"), ("arc-challenge", "arc-challenge"), ("my_own", "my_own")],
)
def test_a_paper_dataset_has_one_spelling(spelt: str, name: str) -> None:
    assert query(answer="a", dataset=spelt).dataset == name


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "E", "choices": {"A": "x", "B": "y"}}, "answer 'E' is none of the labels A, B"),
        ({"answer": 0, "choices": ["x", "y"]}, "answer '0' is none of the labels A, B"),
        ({"answer": "A", "choices": ["x"] * 27}, "27 choices, 26 at most"),
        ({"answer": "x", "choices": ["x", "y", "x"]}, "answer 'x' is none of the labels A, B, C"),
        (
            {"answer": "A", "choices": [{"label": "A", "text": "x"}, {"label": "A", "text": "y"}]},
            "1 different labels for 2 choices",
        ),
        (
            {"answer": "A", "choices": {"label": ["A", "B"], "text": ["x"]}},
            "2 different labels for 1 choices",
        ),
        ({"answer": "A", "choices": {"A": 5}}, "choices must map labels to texts"),
        ({"answer": "A", "choices": "A. x"}, "choices must be an object or a list"),
        ({"answer": "x", "final_answer": ""}, "final_answer is empty or not a text"),
        ({"answer": "x", "final_answer": float("nan")}, "final_answer is empty or not a text"),
        ({"answer": True}, "answer is true or false, neither a text nor a number"),
        ({"answers": ["a", False]}, "answers is true or false, neither a text nor a number"),
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


def test_a_damaged_file_or_one_that_declares_too_many_rows_is_refused(tmp_path: Path) -> None:
    path = save(questions(2000), tmp_path / "x.parquet")
    data = path.read_bytes()
    for damaged in (b"", b"PAR1", data[:-100], b"\x1f\x8b" + data):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"not readable as parquet: .*x\.parquet"):
            read_file(path)
    path.write_bytes(data[:1000] + bytes(4000) + data[5000:])
    with pytest.raises(InputError, match=r"x\.parquet"):
        read_file(path)
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
    more = {"a": pa.array(["{}", "1"], pa.json_()), "b": pa.array([b"x" * 64] * 2, pa.binary(64))}
    columns = {"question": ["q", "r"], "answer": ["B", "E"], "choices": choices, **more}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    assert [each.choices for each in read_file(tmp_path / "x.parquet")] == list(map(tuple, PAIRS))
    pq.write_table(pa.table({**columns, "choices": [[1], [2]]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"choices must map labels to texts: .*: row 1"):
        read_file(tmp_path / "x.parquet")


def written(folder: Path, content: str | bytes, name: str = "x.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def table(folder: Path, name: str = "x", metadata: Any = None, **columns: Any) -> Path:
    """A Parquet file of two questions with these further columns."""
    rows = {"question": ["Which is one?", "Which is two?"], **columns}
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table(rows).replace_schema_metadata(metadata), path)
    return path


@pytest.mark.parametrize(
    "digits", ["3.14159265358979323846", "0.12345678901234567891", "12345678901234567.5"]
)
def test_a_number_of_json_keeps_the_digits_that_no_float_has(tmp_path: Path, digits: str) -> None:
    path = written(tmp_path, f'{{"question": "q", "answer": {digits}}}')
    assert read_file(path)[0].answers == (digits,)


def test_digits_that_come_from_computing_are_named(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "answer": answer} for n, answer in enumerate((0.5, 0.1 + 0.2))]
    path = written(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []
    assert [each.answers for each in read_file(path, notes.append)] == [("0.5",), ("0.3",)]
    assert notes == [
        f"{path}: 1 answers such as 0.30000000000000004, with digits that come from computing, "
        "are read as 0.3"
    ]


@pytest.mark.parametrize(
    ("answers", "references"),
    [
        (pa.array([12.0, 0.1], pa.float32()), ["12", "0.1"]),
        (pa.array([12.0, 0.1], pa.float16()), ["12", "0.1"]),
        (pa.array([12.0, 0.1], pa.float64()), ["12", "0.1"]),
        (pa.array([Decimal("12.50"), Decimal("7.00")], pa.decimal128(10, 2)), ["12.5", "7"]),
        (pa.array([2**63 + 1, 0], pa.uint64()), ["9223372036854775809", "0"]),
    ],
)
def test_a_number_of_any_width_is_read_as_it_was_written(
    tmp_path: Path, answers: pa.Array, references: list[str]
) -> None:
    path = table(tmp_path, answer=answers)
    assert [each.answers for each in read_file(path)] == [(text,) for text in references]
    listed = table(tmp_path, answers=pa.array([[value] for value in answers]))
    if answers.type != pa.uint64():
        assert [each.answers for each in read_file(listed)] == [(text,) for text in references]


def test_an_id_of_a_column_with_gaps_is_a_whole_number(tmp_path: Path) -> None:
    path = table(tmp_path, id=pa.array([7.0, None], pa.float64()), answer=["a", "b"])
    assert [each.id for each in read_file(path)] == ["7", "2"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"question": "q", "answer": "1", "answer": "2"}', "key 'answer' twice in one object"),
        ('{"question": "q", "answer": "1", "answer": "1"}', "key 'answer' twice in one object"),
        ('{"question": "q", "choices": {"A": "x", "A": "y"}, "answer": "A"}', "key 'A' twice"),
        ('{"question": "q", "answer": "1", "meta": [{"a": 1, "a": 2}]}', "key 'a' twice"),
        (r'{"question": "q", "answer": "1", "\u0061nswer": "2"}', "key 'answer' twice"),
        ('{"question": "q", "answer": NaN}', "answer is empty or not a text"),
        ('{"question": "q", "answer": -Infinity}', "answer is empty or not a text"),
        ('{"question": "q", "answer": 1e999}', "answer is empty or not a text"),
        ('{"question": "q", "answer": null}', "answer is empty or not a text"),
        ('{"question": null, "answer": "a"}', "question is empty or not a text"),
    ],
)
@pytest.mark.parametrize("ending", [".jsonl", ".json"])
def test_json_that_readers_read_differently_is_refused_by_row(
    tmp_path: Path, row: str, message: str, ending: str
) -> None:
    path = written(tmp_path, f'{{"question": "before", "answer": "1"}}\n{row}\n', f"x{ending}")
    with pytest.raises(InputError, match=rf"{message}.*: .*x{ending}:2; "):
        read_file(path)
    with pytest.raises(InputError, match=message):
        read_file(written(tmp_path, f'[{{"question": "b", "answer": "1"}}, {row}]', "y.json"))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    names = ["question", "answer", "answer"]
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 3, names=names), path)
    with pytest.raises(InputError, match=r"column 'answer' twice: .*x\.parquet; keep one"):
        read_file(path)
    fields = [pa.field("A", pa.string()), pa.field("A", pa.string())]
    choices = pa.StructArray.from_arrays([pa.array(["x"]), pa.array(["y"])], fields=fields)
    pq.write_table(pa.table({"question": ["q"], "answer": ["A"], "choices": choices}), path)
    with pytest.raises(InputError, match=r"column 'choices\.A' twice"):
        read_file(path)


def test_nulls_of_json_are_empty_cells(tmp_path: Path) -> None:
    row = dict.fromkeys(("id", "split", "dataset", "choices", "final_answer", "tests", "meta"))
    row |= {"answers": None, "question": "q", "answer": "a"}
    [found] = read_file(written(tmp_path, json.dumps(row)))
    assert (found.id, found.dataset, found.split, found.answers) == ("1", "x", "", ("a",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": {"0": "q"}, "answer": {"0": "a"}}', r"question is empty.*x\.json: row 1"),
        ('[["q", "a"]]', r"not a JSON object: .*x\.json: row 1; write a list of JSON objects"),
        ('"text"', r"not a list of JSON objects: .*x\.json; "),
        ("[" * 100_000, r"not JSON: .*x\.json: "),
        ("[" + "[]," * 2_000_001, r"more than 2,000,000 values: .*x\.json"),
        ('[{"question": "q", "answer": "a"}', r"not JSON: .*x\.json: "),
        ("", r"dataset has no rows: .*x\.json"),
        ("\ufeff[]", r"dataset has no rows: .*x\.json"),
        ('[{"question": "q", "answer": "a"}]'.encode("utf-16"), r"not UTF-8: .*x\.json; save it"),
        (b"\x1f\x8b" + bytes(50), r"not UTF-8: .*x\.json; save it"),
    ],
)
def test_json_that_is_no_list_of_rows_is_refused(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_file(written(tmp_path, content, "x.json"))


LETTERS = ["A", "B", "C", "D"]
PHYSICS = [["a", "b", "c", "d"]] * 2
CLASSES = {"answer": {"names": LETTERS, "_type": "ClassLabel"}, "question": {"dtype": "string"}}
FEATURES = {"huggingface": json.dumps({"info": {"features": CLASSES}})}
AS_COLUMNS = [{"text": ["a", "b"], "label": ["1", "2"]}, {"text": ["a", "b"], "label": ["A", "B"]}]
AS_PAIRS = [[{"text": "a", "label": "1"}, {"text": "b", "label": "2"}]] * 2
MBPP = {"code": ["def f(): pass"] * 2, "test_list": [["assert f() is None"]] * 2}
# Columns of published files beside the question, what an answer becomes, and the first id.
PUBLISHED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "mmlu with subjects": (
        "mmlu",
        {"subject": ["physics"] * 2, "choices": PHYSICS, "answer": [1, 1]},
        "B",
        "1",
    ),
    "mmlu of one subject": ("mmlu", {"choices": PHYSICS, "answer": [1, 1]}, "B", "1"),
    "mmlu of another name": (
        "test-00000-of-00001",
        {"subject": ["physics"] * 2, "choices": PHYSICS, "answer": [1, 1]},
        "B",
        "1",
    ),
    "mmlu of pandas with gaps": ("mmlu", {"choices": PHYSICS, "answer": [1.0, 1.0]}, "B", "1"),
    "mmlu with letters": ("mmlu", {"choices": PHYSICS, "answer": ["B", "B"]}, "B", "1"),
    "mmlu's columns of choices": (
        "mmlu",
        {"question": None, "input": ["q", "r"], "target": ["B", "B"]}
        | {letter: [f"{letter} 1", f"{letter} 2"] for letter in LETTERS},
        "B",
        "1",
    ),
    "arc as columns": (
        "arc-easy",
        {"id": ["M1", "M2"], "choices": AS_COLUMNS, "answerKey": ["2", "B"]},
        "B",
        "M1",
    ),
    "arc as pairs": (
        "arc-challenge",
        {"id": ["M1", "M2"], "choices": AS_PAIRS, "answerKey": ["2", "2"]},
        "B",
        "M1",
    ),
    "arc of AI2": (
        "arc-easy",
        {
            "id": ["M1", "M2"],
            "question": [
                {"stem": "q", "choices": AS_PAIRS[0]},
                {"stem": "r", "choices": AS_PAIRS[0]},
            ],
            "answerKey": ["2", "2"],
        },
        "B",
        "M1",
    ),
    "math": (
        "math",
        {
            "question": None,
            "problem": ["q", "r"],
            "solution": [r"\boxed{1}"] * 2,
            "level": ["5"] * 2,
        },
        r"\boxed{1}",
        "1",
    ),
    "math with answers": (
        "math",
        {
            "question": None,
            "problem": ["q", "r"],
            "solution": [r"It is $\boxed{1}$."] * 2,
            "answer": ["1", "1"],
            "unique_id": ["test/1.json", "test/2.json"],
        },
        r"It is $\boxed{1}$.",
        "test/1.json",
    ),
    "math without solutions": (
        "math",
        {"question": None, "problem": ["q", "r"], "answer": ["1", "1"]},
        "1",
        "1",
    ),
    "mbpp, full": (
        "mbpp",
        {"question": None, "text": ["q", "r"], "task_id": [11, 12], **MBPP},
        "def f(): pass",
        "11",
    ),
    "mbpp, sanitized": (
        "mbpp",
        {"question": None, "prompt": ["q", "r"], "task_id": [11.0, 12.0], "source_file": ["a"] * 2}
        | {"test_imports": [["import math"], []], **MBPP},
        "def f(): pass",
        "11",
    ),
    "gsm8k": ("gsm8k", {"answer": ["so\n#### 1"] * 2}, "so\n#### 1", "1"),
    "gsm8k, socratic": ("gsm8k", {"answer": ["How? ** 1\n#### 1"] * 2}, "How? ** 1\n#### 1", "1"),
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".json"])
def test_the_published_files_of_the_six_datasets(tmp_path: Path, name: str, ending: str) -> None:
    dataset, columns, answer, id = PUBLISHED[name]
    rows = {"question": ["q", "r"], **columns}
    data = pa.table({key: values for key, values in rows.items() if values is not None})
    path = tmp_path / f"{dataset}{ending}"
    if ending == ".parquet":
        pq.write_table(data, path)
    elif ending == ".json":
        path.write_text(json.dumps(data.to_pylist()))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in data.to_pylist()))
    first, second = read_file(path)
    assert (first.id, first.answers, second.answers) == (id, (answer,), (answer,))
    assert first.dataset == dataset
    assert first.question.startswith("q") and second.question.startswith("r")
    has_choices = dataset.startswith(("mmlu", "arc", "test"))
    assert [label for label, _ in first.choices][:2] == (LETTERS[:2] if has_choices else [])
    has_tests = dataset == "mbpp"
    assert first.tests[-1:] == (("assert f() is None",) if has_tests else ())


def test_classes_of_the_hub_s_library_have_names(tmp_path: Path) -> None:
    path = table(tmp_path, metadata=FEATURES, choices=PHYSICS, answer=[1, 3])
    assert [each.answers for each in read_file(path)] == [("B",), ("D",)]
    # The hidden answers of a test fold.
    path = table(tmp_path, metadata=FEATURES, choices=PHYSICS, answer=[1, -1])
    with pytest.raises(InputError, match=r"answer is missing: .*x\.parquet: row 2"):
        read_file(path)
    for odd in ("{", "[]", '{"info": {"features": []}}', '{"info": {"features": {"answer": 1}}}'):
        path = table(tmp_path, metadata={"huggingface": odd}, choices=PHYSICS, answer=[0, 3])
        assert [each.answers for each in read_file(path)] == [("A",), ("D",)]


def test_a_column_that_no_question_has_is_not_read(tmp_path: Path) -> None:
    further = {
        "when": pa.array([2**62 + 1] * 2, pa.timestamp("ns")),
        "zone": pa.array([1, 2], pa.timestamp("us", "Nowhere/No")),
        "image": pa.array([b"x" * 1000] * 2),
    }
    assert len(read_file(table(tmp_path, answer=["a", "b"], **further))) == 2


def test_lists_that_may_unpack_to_any_size_are_refused_by_column(tmp_path: Path) -> None:
    count = 3000
    columns = {
        "question": [f"q{number}" for number in range(count)],
        "answer": ["A"] * count,
        "choices": [[f"a{number}" * 20, "b", "c", "d"] for number in range(count)],
    }
    path = tmp_path / "x.parquet"
    encoding = {"choices.list.element": "DELTA_BYTE_ARRAY"}
    pq.write_table(pa.table(columns), path, use_dictionary=["answer"], column_encoding=encoding)
    with pytest.raises(InputError, match=r"column 'choices\.list\.element' as .*DELTA_BYTE_ARRAY"):
        read_file(path)


pytest.importorskip("datasets")

ROWS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "openai/gsm8k": {
        "main": [
            {"question": "Two boats carry 4 crates each. All?", "answer": "<<2*4=8>>8.\n#### 8"},
            {"question": "Two boats carry 4 crates each. All?", "answer": "Again.\n#### 8"},
        ]
    },
    "EleutherAI/hendrycks_math": {
        subject: [
            {
                "problem": f"Name a value of {subject}.",
                "level": "Level 5",
                "type": subject,
                "solution": r"It is $\boxed{}$." if subject == "geometry" else r"\boxed{1}",
            }
        ]
        for subject in MATH_SUBJECTS
    },
    "google-research-datasets/mbpp": {
        "full": [
            {
                "task_id": 11,
                "text": "Write a function that doubles.",
                "code": "def double(n):\r\n    return 2 * n",
                "test_list": ["assert double(2) == 4"],
            }
        ]
    },
    "cais/mmlu": {
        "all": [
            {
                "question": "Which weighs\u00a0more?",
                "subject": "college_physics",
                "choices": ["\ufeffa feather", "10\u00a0kg", "a leaf", ""],
                "answer": 1,
            }
        ]
    },
    "allenai/ai2_arc": {
        "ARC-Easy": [
            {
                "id": "Made_1",
                "question": "What melts?",
                "choices": {"text": ["ice", "sand", "glass"], "label": ["1", "2", "3"]},
                "answerKey": "1",
            },
            {
                "id": "Made_2",
                "question": "What burns?",
                "choices": {"text": ["ash", "rock", "ice", "wood"], "label": ["A", "B", "C", "D"]},
                "answerKey": "D",
            },
        ],
        "ARC-Challenge": [
            {
                "id": "Made_3",
                "question": "What floats?",
                "choices": {"text": ["a", "b", "c", "d", "cork"], "label": list("ABCDE")},
                "answerKey": "E",
            }
        ],
    },
}

SHOWN = """
import json, sys
from hierrouter.questions.sources import hub_queries
from hierrouter_cache.errors import WorldError
for name in sys.argv[1:]:
    try:
        queries, commit = hub_queries(name, f"data/{name}.jsonl")
    except WorldError as error:
        print(error)
        continue
    for query in queries:
        print(json.dumps([name, query.id, query.question, query.answers, query.choices]))
    print(f"{name}@{commit}")
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    repositories = {
        name: repository({(part, "test"): rows for part, rows in parts.items()})
        for name, parts in ROWS.items()
    }
    with hub(repositories) as found:
        yield found


def loaded(*names: str, home: Path, **more: str) -> list[str]:
    """What a process of its own says of these, whose hub is named by its environment."""
    settings = {"HF_HUB_OFFLINE": "0", "HF_HOME": str(home), **more}
    done = spawned(sys.executable, "-c", SHOWN, *names, **settings)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def said(address: str, home: Path) -> list[str]:
    """Of all six, downloaded into `home`."""
    return loaded(*PAPER_DATASETS, home=home, HF_ENDPOINT=address)


def test_every_dataset_comes_in_our_shape(said: list[str]) -> None:
    rows = [json.loads(line) for line in said if line.startswith("[")]
    found = {(dataset, name): row for dataset, name, *row in rows}
    assert found["gsm8k", "test-0"][1] == ["8.\n#### 8"]  # without <<2*4=8>>
    assert found["gsm8k", "test-1"][0] == found["gsm8k", "test-0"][0]
    assert [name for dataset, name in found if dataset == "math"] == [
        f"test-{subject}-0" for subject in MATH_SUBJECTS
    ]
    assert found["math", "test-geometry-0"][1] == [r"It is $\boxed{}$."]
    assert found["mbpp", "11"][:2] == [
        "Write a function that doubles.",
        ["def double(n):\r\n    return 2 * n"],
    ]
    assert found["mmlu", "test-college_physics-0"] == [
        "Which weighs\u00a0more?\nA. \ufeffa feather\nB. 10\u00a0kg\nC. a leaf\nD. ",
        ["B"],
        [["A", "\ufeffa feather"], ["B", "10\u00a0kg"], ["C", "a leaf"], ["D", ""]],
    ]
    assert found["arc-easy", "Made_1"] == [
        "What melts?\nA. ice\nB. sand\nC. glass",
        ["A"],
        [["A", "ice"], ["B", "sand"], ["C", "glass"]],
    ]
    assert found["arc-easy", "Made_2"][1] == ["D"]
    assert found["arc-challenge", "Made_3"][1] == ["E"]
    places = [line for line in said if "@" in line]
    assert places == [f"{name}@{COMMIT}" for name in PAPER_DATASETS]


def test_what_was_downloaded_is_used_where_the_hub_is_off(said: list[str], home: Path) -> None:
    off = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    assert loaded(*PAPER_DATASETS, home=home, **off) == said


def test_another_repository_or_a_hub_of_no_address_is_one_line(tmp_path: Path) -> None:
    wrong = {
        "openai/gsm8k": repository({("main", "test"): [{"question": "q", "reply": "r"}]}),
        "google-research-datasets/mbpp": repository({("sane", "test"): [{"text": "t"}]}),
    }
    with hub(wrong) as address:
        found = loaded("gsm8k", "mbpp", "mmlu", home=tmp_path, HF_ENDPOINT=address)
    for line, name, word in zip(
        found, ("gsm8k", "mbpp", "mmlu"), ("answer", "full", "does not have it"), strict=True
    ):
        assert line.startswith(f"cannot load from the hub: {HUB_REPOSITORIES[name].repository}: ")
        assert word in line
        assert f"put the questions into data/{name}.jsonl, one JSON object a line" in line
    [line] = loaded("gsm8k", home=tmp_path, HF_ENDPOINT="no address")
    assert line.startswith("cannot load from the hub: openai/gsm8k: ")
    assert line.endswith("see docs/datasets.md")


def test_the_hub_needs_no_extra() -> None:
    """The package brings what loads from it, and the name of the extra that did stays."""
    about = tomllib.loads((SOURCES / "pyproject.toml").read_text())["project"]
    assert "datasets" in {Requirement(line).name for line in about["dependencies"]}
    assert about["optional-dependencies"]["hub"] == []
    assert tuple(HUB_REPOSITORIES) == PAPER_DATASETS


LABELLED: list[dict[str, Any]] = [
    {"question": "1+1?", "answer": "2", "kind": "sums", "level": 3, "dataset": "maths"},
    {"question": "2+2?", "answer": "4", "kind": "sums", "level": 2.0},
    {"question": "Who?", "answer": "Ada", "kind": "names", "level": 2.5, "easy": True},
    {"question": "Why?", "answer": "so"},
]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "json"])
def test_any_field_can_name_the_group_of_a_question(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"mine.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(LABELLED, pa.schema(LABELLED_COLUMNS)), path)
    elif kind == "json":
        path.write_text(json.dumps(LABELLED))
    else:
        save(LABELLED, path)

    def groups(field: str | None) -> list[str]:
        return [query.dataset for query in read_file(path, group_by=field)]

    assert groups(None) == ["maths", "mine", "mine", "mine"]
    assert groups("kind") == ["sums", "sums", "names", "mine"]
    assert groups("level") == ["3", "2", "2.5", "mine"]
    assert groups("easy") == ["maths", "mine", "true", "mine"]
    with pytest.raises(InputError, match=r"no question has the field 'kinds': .*mean kind\?"):
        groups("kinds")


LABELLED_COLUMNS = [
    ("question", pa.string()),
    ("answer", pa.string()),
    ("dataset", pa.string()),
    ("kind", pa.dictionary(pa.int8(), pa.string())),
    ("level", pa.float32()),
    ("easy", pa.bool_()),
]


@pytest.mark.parametrize("label", [["a"], {"a": 1}, " ", "\u200b", "x" * 201, float("inf")])
def test_a_label_that_is_no_name_is_refused_by_its_row(tmp_path: Path, label: Any) -> None:
    path = tmp_path / "mine.jsonl"
    rows = [*LABELLED[:2], {"question": "Odd?", "answer": "1", "kind": label}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"mine\.jsonl:3"):
        read_file(path, group_by="kind")
    assert len(read_file(path)) == 3 or label == float("inf")
