from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.questions.answers import final_number, numeric, plain_number
from tests.hierrouter.questions.real import answers, questions


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
