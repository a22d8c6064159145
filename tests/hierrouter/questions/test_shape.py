"""What a row may hold, with the traps of the paper's datasets."""

from typing import Any

import pytest

from hierrouter.questions.query import Query
from hierrouter.questions.scoring import scorer
from hierrouter.questions.sources import query_of
from hierrouter_cache.errors import InputError


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
def test_a_bad_row_is_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        query(**row)
    assert "here:1" in str(error.value)
