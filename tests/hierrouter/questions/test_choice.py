import pytest

from hierrouter.questions.answers import choice, label_of_text, stated_label, token_f1
from tests.hierrouter.questions.real import questions

STATED = [
    ("The answer is (C).", "C"),
    ("C. because", "C"),
    ("**C**", "C"),
    (r"\boxed{C}", "C"),
    (r"so $\boxed{\text{(C)}}$.", "C"),
    ("Answer: C", "C"),
    ("Answer - B", "B"),
    ("Answer:\nD", "D"),
    ("Answer: B the moon", "B"),
    ("c", "C"),
    ("(b)", "B"),
    ("`C`", "C"),
    ("[C]", "C"),
    ("option C", "C"),
    ("I", "I"),
    ("A", "A"),
    ("Answer: A", "A"),
    ("Answer: A.", "A"),
    ("**Answer:** A", "A"),
    ("The correct answer is **A. whale**.", "A"),
    ("The answer is A because it is warm.", "A"),
    ("A. whale", "A"),
    ("(A) whale", "A"),
    ("I would choose D", "D"),
    ("Therefore, it is B.", "B"),
    ("(d) is correct", "D"),
    ("Sedimentary rock (C)", "C"),
    ("Let me think.\n\nC", "C"),
]
DISCUSSED = [
    ("A is wrong because x. B is wrong. So the answer is C.", "C"),
    ("(A) is wrong, (D) is possible. The answer is (C), since (D) is not.", "C"),
    ("The answer is: C\n\nExplanation: A is wrong", "C"),
    ("The answer is A. No: the answer is D.", "D"),
    ("The answer is not A, it is B.", "B"),
    ("Option B is correct, not A.", "B"),
    ("D. none of the above. A is wrong", "D"),
    ("A. dog\nB. cat\nC. whale\nAnswer: C", "C"),
    ("In case A, a is b; I see. Then the answer is (A).", "A"),
]
NOTHING = [
    "",
    "a whale",
    "A dog is a mammal.",
    "The answer is a mammal.",
    "Answer: A mammal",
    "I think it is a whale.",
    "The answer is I think a whale",
    "vitamin C is important",
    "The answer is vitamin C.",
    "B-cells make antibodies",
    "The answer is e.g. water",
    "The answer is not (A).",
    "(A) and (B)",
    "A. dog\nB. cat\nC. whale",
    "A. dog\nB. cat",
    "Answer choices: A. dog B. cat",
    "choose a card",
    "K",
]


@pytest.mark.parametrize(("text", "label"), STATED)
def test_a_stated_label(text: str, label: str) -> None:
    assert stated_label(text) == label


@pytest.mark.parametrize(("text", "label"), DISCUSSED)
def test_the_last_statement_wins(text: str, label: str) -> None:
    assert stated_label(text) == label


def test_a_label_that_opens_a_text_wins_over_one_that_is_discussed_twice() -> None:
    assert stated_label("B because it is warm.\nC. is cold.\nC) is colder.") == "B"
    assert stated_label("B because it is warm.") == "B"


@pytest.mark.parametrize("text", NOTHING)
def test_no_label(text: str) -> None:
    assert stated_label(text) is None


def test_the_label_is_compared() -> None:
    assert choice("The answer is (C).", ["C"]) == 1
    assert choice("The answer is (C).", ["D"]) == 0
    assert choice("The answer is (C).", ["D", "C"]) == 1


STATES = (("A", "solid to a liquid"), ("B", "liquid"), ("C", "5"), ("D", "-5"), ("E", "5.5"))
IN_WORDS = [
    ("solid to a liquid", "A"),
    ("Solid to a\u00a0liquid.", "A"),
    ("The answer is: solid to a liquid.", "A"),
    ("The answer is liquid, because it flows.", "B"),
    ("I thought first of a liquid. The answer is solid to a liquid since it melts.", "A"),
    (r"So it is \boxed{liquid}.", "B"),
    (r"\boxed{5}", "C"),
    ("Answer: -5", "D"),
    ("The answer is 5.5.", "E"),
    ("**liquid**", "B"),
    ("The answer is liquid (as any).", "B"),
]
NOT_IN_WORDS = [
    "It melts from a solid to a liquid.",
    "The answer is not liquid.",
    "The answer is liquid to a gas.",
    "A liquid it is not.",
    "The answer is 50.",
    "The answer is 5,000.",
    "",
]


@pytest.mark.parametrize(("text", "label"), IN_WORDS)
def test_the_text_of_a_choice_is_its_label(text: str, label: str) -> None:
    assert stated_label(text) is None
    assert choice(text, [label], STATES) == 1
    assert all(choice(text, [other], STATES) == 0 for other in set("ABCDE") - {label})
    assert choice(text, [label]) == 0


@pytest.mark.parametrize("text", NOT_IN_WORDS)
def test_other_words_are_no_label(text: str) -> None:
    assert label_of_text(text, STATES) is None


def test_a_label_goes_before_a_text() -> None:
    assert choice("B. solid to a liquid", ["B"], STATES) == 1
    assert choice("The answer is (B): solid to a liquid", ["A"], STATES) == 0


def test_a_choice_without_a_word_is_never_stated() -> None:
    for said in ("The answer is: ", "The answer is: ...", "..."):
        assert label_of_text(said, (("A", "..."), ("B", "ice"))) is None


def test_of_two_choices_one_of_which_begins_the_other_the_longer_is_meant() -> None:
    for said in (("ice", "ice, water"), ("ice, water", "ice")):
        pairs = tuple(zip("AB", said, strict=True))
        assert label_of_text("The answer is ice, water.", pairs) == "AB"[said.index("ice, water")]


def test_a_text_that_two_choices_have_is_no_label() -> None:
    assert label_of_text("both", (("A", "both"), ("B", "Both."))) is None


def test_every_choice_of_real_questions_is_known_by_its_text() -> None:
    for name in ("mmlu", "arc_easy", "arc_challenge"):
        for row in questions(name):
            pairs = tuple(row["choices"].items())
            for label, text in pairs:
                for said in (text, f"The answer is {text}", f"\\boxed{{{text}}}"):
                    assert label_of_text(said, pairs) in (label, None), said
            known = [label_of_text(text, pairs) for _, text in pairs]
            assert known == [label for label, _ in pairs], row["id"]


def test_the_article_is_no_label() -> None:
    wrong = "a change of a gas to a liquid"
    assert token_f1(wrong, ["A"]) > 0  # what F1 makes of it
    assert choice(wrong, ["A"]) == 0


def test_wrong_answers_get_nothing_where_a_is_right() -> None:
    """A response that is the text of a wrong choice never counts as the letter A."""
    found = 0
    for name in ("mmlu", "arc_easy", "arc_challenge"):
        for row in questions(name):
            for label, text in row["choices"].items():
                found += 1
                assert choice(f"It is a kind of {text}", ["A"]) == 0, text
                assert choice(f"The answer is {label}. {text}", [label]) == 1, text
                assert choice(f"{label}. {text}", [label]) == 1, text
    assert found > 400
