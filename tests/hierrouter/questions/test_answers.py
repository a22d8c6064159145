"""What a text states as its answer, and whether it is right: words, numbers, choices."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.questions.answers import choice, exact_match, numeric, token_f1
from hierrouter.questions.final import boxed_text, cued_text, marked_text
from hierrouter.questions.labels import label_of_text, stated_label
from hierrouter.questions.numbers import final_number, parse_number
from tests.hierrouter.questions.real import answers, questions

words = st.lists(st.sampled_from(["a", "B", "12", "seven"]), max_size=6).map(" ".join)


@pytest.mark.parametrize(
    ("scorer", "response", "references", "value"),
    [
        (token_f1, "The answer is 42.", ["42"], 0.4),
        (token_f1, "Paris, France", ["paris france!"], 1),
        (token_f1, "a a b", ["a b b"], 2 / 3),  # multiset overlap: one a and one b are shared
        (token_f1, "1,200", ["1200"], 1),  # punctuation is deleted
        (token_f1, "12+7", ["12 7"], 0),
        (token_f1, "the cat", ["cat"], 2 / 3),  # articles stay
        (token_f1, "b a", ["a b"], 1),
        (token_f1, "blue whale", ["shark", "blue whale"], 1),
        (token_f1, "", ["42"], 0),
        (token_f1, "41", ["42"], 0),
        (exact_match, "5", ["-5"], 0),
        (exact_match, "1.5", ["1 5"], 0),
        (exact_match, "3<4", ["3>4"], 0),
        (exact_match, "b a", ["a b"], 0),
        (exact_match, " 42. ", ["7", "42"], 1),
        (exact_match, 'so\n{"answer": "Blue whale"}', ["blue whale"], 1),
        (exact_match, "The answer is blue whale.", ["blue whale"], 1),
        (exact_match, '{"answer": "[\'U\', 2]"}', ["['U',2]"], 1),
        (exact_match, '{"answer": ["U", true]}', ["['U', True]"], 0),  # true is no Python
        (exact_match, '{"answer": {"a": 1}}', ["{'a': 1}"], 1),
        (exact_match, '{"answer": "aB"}', ["'aB'"], 1),
        (exact_match, '{"answer": "ab"}', ["'aB'"], 0),
        (exact_match, '{"answer": ""}', ["''"], 1),
        (exact_match, "It returns `[1, 2]` as wanted.", ["[1, 2]"], 1),
        (exact_match, "The output is [1, 2]", ["[1, 3]"], 0),
        (numeric, "1234", ["so\n#### 1,234"], 1),
        (numeric, "0.333", ["1/3"], 0),
        (numeric, "12", ["-12"], 0),
        (numeric, "15", ["1.5"], 0),
        (numeric, "9007199254740993", ["9007199254740992"], 0),  # one double, two numbers
        (numeric, "7", ["6", "7"], 1),
        (numeric, "none", ["none"], 0),
        (choice, "The answer is (C).", ["C"], 1),
        (choice, "The answer is (C).", ["D"], 0),
        (choice, "The answer is (C).", ["D", "(C)"], 1),
        (choice, "a change of a gas to a liquid", ["A"], 0),  # the article is no label
    ],
)
def test_a_value(
    scorer: Callable[..., float], response: str, references: list[str], value: float
) -> None:
    assert scorer(response, references) == pytest.approx(value)


@given(words, words)
def test_f1_is_symmetric_and_bounded(left: str, right: str) -> None:
    value = token_f1(left, [right])
    assert 0 <= value <= 1
    assert value == token_f1(right, [left])
    assert exact_match(left, [left]) == 1
    assert token_f1(left, [left]) == (1 if left else 0)


LONGEST_BOX = "x" * 1_998
STATED: dict[Callable[[str], Any], list[tuple[str, Any]]] = {
    boxed_text: [
        (r"\boxed 5 apples and 7", "5"),
        (r"\boxed $5.$", "5"),
        (r"so \fbox |x|", "|x|"),
        (r"\boxed", None),
        (r"\boxed{1} or \boxed{2", "1"),
        (r"\boxed{1}" + r"\boxed{" * 7, "1"),  # only the last eight are tried
        (r"\boxed{1}" + r"\boxed{" * 8, None),
        (rf"\boxed{{{LONGEST_BOX}}} y}}", LONGEST_BOX),
        (rf"ten signs, \boxed{{{LONGEST_BOX}}} y}}", LONGEST_BOX),
        (rf"\boxed{{x{LONGEST_BOX}}} y}}", None),
        (rf"ten signs, \boxed{{x{LONGEST_BOX}}} y}}", None),
    ],
    marked_text: [("#### 3\n#### \n 4 apples \nor more\n", "4 apples "), ("### 3", None)],
    cued_text: [("think\nA: 5. No", "5"), ("the ANSWER is 6! A\n7", "6"), ("A man has 8", None)],
    final_number: [
        ("He has 3 dogs and 4 cats, so 7 pets.\n#### 7", 7),
        ("A: 1,234", 1234),
        ("The answer is 5. No, the answer is 6. It is 1 more.", 6),
        ("#### 5\n#### 6 eggs of 12", 6),
        ("The answer is $18.", 18),
        ("The answer is 3 + 4 = 7 apples in 2 boxes.", 7),
        ("The answer is 18. She sells 9 eggs.", 18),
        ("**Answer:** 12", 12),
        ("the final answer is:\n\n5 miles", 5),
        (r"so \boxed{42} of the 50", 42),
        (r"\boxed{x = 5}", 5),
        (r"\boxed{1{,}234 \text{ dollars}}", 1234),
        (r"\boxed{\frac{3}{4}}", 0.75),
        ("#### -3", -3),
        ("it is \N{MINUS SIGN}3", -3),
        ("-$5", -5),
        ("$-5", -5),
        ("10-3", 3),
        ("f(x)-3", 3),
        ("50%", 50),
        ("about 1/2", 0.5),
        ("2 1/2 cups", 2.5),
        (".5", 0.5),
        ("0.50", 0.5),
        ("1.5e3", 1500),
        (r"1.5 \times 10^{3}", 1500),
        ("2 x 10^-2", Fraction(1, 50)),
        ("7.", 7),
        ("18dollars", 18),
        ("There are 900 such 9-digit codes", 900),
        ("50 pounds of CO2", 50),
        ("5 m^2", 5),
        ("The answer is below.\nIt took 4 and 5, then 9", 9),
    ],
    parse_number: [
        ("12", 12),
        ("-1,234.5", -1234.5),
        ("$3", 3),
        ("50%", 50),
        ("3/4", 0.75),
        ("1e6", 10**6),
        (" 7. ", 7),
        (r"$\$5$", 5),
    ],
}
LABELS = {
    "A": (
        *("Answer: A.", "**Answer:** A", "The correct answer is **A. whale**."),
        *("The answer is A because it is warm.", "A. whale", "(A) whale"),
        "In case A, a is b; I see. Then the answer is (A).",
    ),
    "B": (
        *("Answer - B", "Answer: B the moon", "(b)", "Therefore, it is B."),
        *("The answer is not A, it is B.", "Option B is correct, not A."),
        *("B because it is warm.\nC. is cold.\nC) is colder.", "B because it is warm."),
    ),
    "C": (
        *("The answer is (C).", "C. because", "**C**", r"\boxed{C}", r"so $\boxed{\text{(C)}}$."),
        *("Answer: C", "c", "`C`", "[C]", "option C", "Sedimentary rock (C)"),
        *("Let me think.\n\nC", "A is wrong because x. B is wrong. So the answer is C."),
        "(A) is wrong, (D) is possible. The answer is (C), since (D) is not.",
        *("The answer is: C\n\nExplanation: A is wrong", "A. dog\nB. cat\nC. whale\nAnswer: C"),
    ),
    "D": (
        *("Answer:\nD", "I would choose D", "(d) is correct"),
        *("The answer is A. No: the answer is D.", "D. none of the above. A is wrong"),
    ),
    "I": ("I",),
}
NOTHING: dict[Callable[[str], Any], tuple[str, ...]] = {
    final_number: ("1/0", "H2O", "e9", "the answer is unknown"),
    parse_number: ("", "12 dogs", "1, 2", "C", "3 + 4", "version 2"),
    stated_label: (
        *("", "a whale", "A dog is a mammal.", "The answer is a mammal.", "Answer: A mammal"),
        *("I think it is a whale.", "The answer is I think a whale", "vitamin C is important"),
        *("The answer is vitamin C.", "B-cells make antibodies", "The answer is e.g. water"),
        *("The answer is not (A).", "(A) and (B)", "A. dog\nB. cat\nC. whale", "A. dog\nB. cat"),
        *("Answer choices: A. dog B. cat", "choose a card", "K"),
    ),
}


@pytest.mark.parametrize(
    ("read", "text", "found"),
    [
        *((read, *case) for read, cases in STATED.items() for case in cases),
        *((stated_label, text, label) for label, texts in LABELS.items() for text in texts),
        *((read, text, None) for read, texts in NOTHING.items() for text in texts),
    ],
)
def test_what_a_text_states(read: Callable[[str], Any], text: str, found: object) -> None:
    assert read(text) == found


@given(st.fractions() | st.integers(), st.integers())
def test_a_written_number_is_read_back(number: Fraction | int, other: int) -> None:
    text = str(number)
    if len(text) < 300:
        assert final_number(text) == parse_number(text) == number
    assert numeric(f"The answer is {other:,}.", [text]) == (other == number)


@pytest.mark.parametrize("huge", ["1e999999999", "9" * 100_000, "1" + ",234" * 30_000])
def test_a_huge_number_costs_nothing(huge: str) -> None:
    assert numeric(huge, ["2"]) == 0


@pytest.mark.parametrize("reference", ["answer", "final_answer"])
def test_real_answers_are_judged_as_by_their_source(reference: str) -> None:
    rows = answers("depth1_gsm8k_openai4_200")
    agree = [numeric(row["response"], [row[reference]]) == row["score"] for row in rows]
    assert sum(agree) >= 0.99 * len(rows)  # measured: 800 of 800


STATES = (("A", "solid to a liquid"), ("B", "liquid"), ("C", "5"), ("D", "-5"), ("E", "5.5"))


@pytest.mark.parametrize(
    ("text", "label"),
    [
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
        ("It melts from a solid to a liquid.", None),
        ("The answer is not liquid.", None),
        ("The answer is liquid to a gas.", None),
        ("A liquid it is not.", None),
        ("The answer is 50.", None),
        ("The answer is 5,000.", None),
        ("", None),
    ],
)
def test_the_text_of_a_choice_is_its_label(text: str, label: str | None) -> None:
    assert label_of_text(text, STATES) == label
    if label:
        assert stated_label(text) is None
        assert [choice(text, [each], STATES) for each in "ABCDE"] == [
            each == label for each in "ABCDE"
        ]
        assert choice(text, [label]) == 0


def test_a_label_goes_before_a_text() -> None:
    assert choice("B. solid to a liquid", ["B"], STATES) == 1
    assert choice("The answer is (B): solid to a liquid", ["A"], STATES) == 0


@pytest.mark.parametrize(
    ("text", "texts", "label"),
    [
        ("The answer is: ", ("...", "ice"), None),  # one without a word is never stated
        ("The answer is: ...", ("...", "ice"), None),
        ("...", ("...", "ice"), None),
        ("The answer is ice, water.", ("ice", "ice, water"), "B"),  # the longer is meant
        ("The answer is ice, water.", ("ice, water", "ice"), "A"),
        ("both", ("both", "Both."), None),
    ],
)
def test_choices_that_are_alike(text: str, texts: tuple[str, str], label: str | None) -> None:
    assert label_of_text(text, tuple(zip("AB", texts, strict=True))) == label


def test_choices_of_real_questions() -> None:
    """Each is known by its text; one that is wrong never counts as the letter A."""
    asked = [row for name in ("mmlu", "arc_easy", "arc_challenge") for row in questions(name)]
    assert len(asked) > 100
    for row in asked:
        pairs = tuple(row["choices"].items())
        for label, text in pairs:
            assert label_of_text(text, pairs) == label, row["id"]
            for said in (f"The answer is {text}", f"\\boxed{{{text}}}"):
                assert label_of_text(said, pairs) in (label, None), said
            assert choice(f"It is a kind of {text}", ["A"]) == 0, text
            assert choice(f"The answer is {label}. {text}", [label]) == 1, text
            assert choice(f"{label}. {text}", [label]) == 1, text
