"""What a text states as its answer, and whether it is right: words, numbers, choices."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.questions.answers import (
    boxed_text,
    choice,
    cued_text,
    exact_match,
    final_number,
    label_of_text,
    marked_text,
    numeric,
    plain_number,
    stated_label,
    token_f1,
)
from tests.hierrouter.questions.real import answers, questions

words = st.lists(st.sampled_from(["a", "B", "12", "seven"]), max_size=6).map(" ".join)


@pytest.mark.parametrize(
    ("response", "reference", "expected"),
    [
        ("42", "42", 1.0),
        ("The answer is 42.", "42", 0.4),
        ("Paris, France", "paris france!", 1.0),
        ("a a b", "a b b", 2 / 3),  # multiset overlap: one a and one b are shared
        ("12+7", "12 7", 1.0),  # punctuation becomes a blank, numbers stay apart
        ("", "42", 0.0),
        ("41", "42", 0.0),
    ],
)
def test_token_f1(response: str, reference: str, expected: float) -> None:
    assert token_f1(response, [reference]) == pytest.approx(expected)


def test_the_best_reference_counts() -> None:
    assert token_f1("blue whale", ["shark", "blue whale"]) == 1.0


@given(words, words)
def test_f1_is_symmetric_and_bounded(left: str, right: str) -> None:
    value = token_f1(left, [right])
    assert 0 <= value <= 1
    assert value == token_f1(right, [left])


@given(words)
def test_a_text_matches_itself(text: str) -> None:
    assert exact_match(text, [text]) == 1
    assert token_f1(text, [text]) == (1 if text else 0)


@pytest.mark.parametrize(
    ("response", "reference", "right"),
    [("5", "-5", 0), ("1.5", "1 5", 0), ("3<4", "3>4", 0), ("a-b", "a+b", 0), (" 42. ", "42", 1)],
)
def test_exact_match_minds_signs(response: str, reference: str, right: int) -> None:
    assert exact_match(response, [reference]) == right


def test_exact_match_minds_the_order() -> None:
    assert exact_match("b a", ["a b"]) == 0
    assert token_f1("b a", ["a b"]) == 1


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed 5 apples and 7", "5"),
        (r"\boxed $5.$", "5"),
        (r"so \fbox |x|", "|x|"),
        (r"\boxed", None),
        (r"\boxed{1} or \boxed{2", "1"),
    ],
)
def test_a_box(text: str, answer: str | None) -> None:
    assert boxed_text(text) == answer


def test_only_the_last_boxes_are_tried() -> None:
    assert boxed_text(r"\boxed{1}" + r"\boxed{" * 7) == "1"
    assert boxed_text(r"\boxed{1}" + r"\boxed{" * 8) is None


@pytest.mark.parametrize("before", ["", "ten signs, "])
def test_a_box_may_be_so_long_wherever_it_begins(before: str) -> None:
    longest = "x" * 1_998
    assert boxed_text(before + r"\boxed{" + longest + "} y}") == longest
    assert boxed_text(before + r"\boxed{x" + longest + "} y}") is None


def test_the_line_after_the_last_mark() -> None:
    assert marked_text("#### 3\n#### \n 4 apples \nor more\n") == "4 apples "
    assert marked_text("### 3") is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [("think\nA: 5. No", "5"), ("the ANSWER is 6! A\n7", "6"), ("A man has 8", None)],
)
def test_the_sentence_after_the_last_cue(text: str, answer: str | None) -> None:
    assert cued_text(text) == answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("He has 3 dogs and 4 cats, so 7 pets.\n#### 7", "7"),
        ("A: 1,234", "1234"),
        ("The answer is 5. No, the answer is 6. It is 1 more.", "6"),
        ("#### 5\n#### 6 eggs of 12", "6"),
        ("The answer is $18.", "18"),
        ("The answer is 3 + 4 = 7 apples in 2 boxes.", "7"),
        ("The answer is 18. She sells 9 eggs.", "18"),
        ("**Answer:** 12", "12"),
        ("the final answer is:\n\n5 miles", "5"),
        (r"so \boxed{42} of the 50", "42"),
        (r"\boxed{x = 5}", "5"),
        (r"\boxed{1{,}234 \text{ dollars}}", "1234"),
        (r"\boxed{\frac{3}{4}}", "3/4"),
        ("#### -3", "-3"),
        ("it is \N{MINUS SIGN}3", "-3"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("10-3", "3"),
        ("f(x)-3", "3"),
        ("50%", "50"),
        ("about 1/2", "1/2"),
        ("2 1/2 cups", "5/2"),
        (".5", "1/2"),
        ("0.50", "1/2"),
        ("1.5e3", "1500"),
        (r"1.5 \times 10^{3}", "1500"),
        ("2 x 10^-2", "1/50"),
        ("7.", "7"),
        ("18dollars", "18"),
        ("There are 900 such 9-digit codes", "900"),
        ("50 pounds of CO2", "50"),
        ("5 m^2", "5"),
        ("The answer is below.\nIt took 4 and 5, then 9", "9"),
    ],
)
def test_the_final_number(text: str, number: str) -> None:
    assert final_number(text) == Fraction(number)


@pytest.mark.parametrize("text", ["", "none", "1/0", "H2O", "e9", "the answer is unknown"])
def test_no_number(text: str) -> None:
    assert final_number(text) is None
    assert numeric(text, ["1"]) == 0


@pytest.mark.parametrize(
    ("response", "reference", "right"),
    [
        ("1234", "so\n#### 1,234", 1),
        ("0.333", "1/3", 0),
        ("12", "-12", 0),
        ("15", "1.5", 0),
        ("9007199254740993", "9007199254740992", 0),  # one double, two numbers
    ],
)
def test_numbers_are_compared_exactly(response: str, reference: str, right: int) -> None:
    assert numeric(response, [reference]) == right


def test_one_matching_reference_is_enough() -> None:
    assert numeric("7", ["6", "7"]) == 1


@pytest.mark.parametrize("text", ["12", "-1,234.5", "$3", "50%", "3/4", "1e6", " 7. ", r"$\$5$"])
def test_a_plain_number(text: str) -> None:
    assert plain_number(text) is not None


@pytest.mark.parametrize("text", ["", "12 dogs", "1, 2", "x", "C", "3 + 4", "version 2"])
def test_no_plain_number(text: str) -> None:
    assert plain_number(text) is None


@given(st.fractions() | st.integers())
def test_a_written_number_is_read_back(number: Fraction | int) -> None:
    text = str(number)
    if len(text) < 300:
        assert final_number(text) == plain_number(text) == number


@given(st.integers(), st.integers())
def test_other_numbers_do_not_match(said: int, meant: int) -> None:
    assert numeric(f"The answer is {said:,}.", [str(meant)]) == (said == meant)


@pytest.mark.parametrize("huge", ["1e999999999", "9" * 100_000, "1" + ",234" * 30_000])
def test_a_huge_number_costs_nothing(huge: str) -> None:
    assert numeric(huge, ["2"]) == 0


@pytest.mark.parametrize("reference", ["answer", "final_answer"])
def test_real_answers_are_judged_as_by_their_source(reference: str) -> None:
    rows = answers("depth1_gsm8k_openai4_200")
    agree = [numeric(row["response"], [row[reference]]) == row["score"] for row in rows]
    assert sum(agree) >= 0.99 * len(rows)  # measured: 800 of 800


def test_a_real_solution_is_right() -> None:
    for row in questions("gsm8k"):
        assert numeric(row["answer"], [row["answer"]]) == 1


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
