import pytest

from hierrouter.questions.answers import boxed, choice, exact_match, numeric
from hierrouter.questions.scoring import ScoreFunction, accuracy, judged_by, with_final
from tests.hierrouter.questions.real import questions


@pytest.mark.parametrize(
    ("reference", "judge"),
    [
        ("3 + 4 = 7\n#### 7", numeric),
        ("-1,234.5", numeric),
        ("3/4", numeric),
        (r"so it is \boxed{x+1}.", boxed),
        ("C", choice),
        ("c", exact_match),
        ("K", exact_match),
        ("Paris", exact_match),
        ("7 dogs", exact_match),
        ("", exact_match),
    ],
)
def test_the_form_of_a_reference_chooses_the_judge(reference: str, judge: ScoreFunction) -> None:
    assert judged_by(reference) is judge


def test_each_reference_is_judged_by_its_own_form() -> None:
    assert accuracy("The answer is (C).", ["Paris", "C"]) == 1
    assert accuracy("paris", ["Paris", "C"]) == 1
    assert accuracy("The answer is (D).", ["Paris", "C"]) == 0


@pytest.mark.parametrize(
    ("answers", "references"),
    [
        (["about a week"], ("about a week", "7")),
        (["7"], ("7",)),
        (["3 + 4\n#### 7"], ("3 + 4\n#### 7",)),
        (["about a week", "C"], ("about a week", "C")),
        (["a week", "a week"], ("a week", "7")),
    ],
)
def test_a_result_is_one_reference_more_where_no_answer_states_it(
    answers: list[str], references: tuple[str, ...]
) -> None:
    assert with_final(answers, "7") == references


@pytest.mark.parametrize(
    ("name", "judge"),
    [
        ("gsm8k", numeric),
        ("math", boxed),
        ("mmlu", choice),
        ("arc_easy", choice),
        ("arc_challenge", choice),
        ("mbpp", exact_match),
    ],
)
def test_real_references(name: str, judge: ScoreFunction) -> None:
    for row in questions(name):
        assert judged_by(row["answer"]) is judge, row["answer"]
        assert accuracy(row["answer"], [row["answer"]]) == 1
        assert accuracy("", [row["answer"]]) == 0
