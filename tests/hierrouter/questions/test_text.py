import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierrouter.questions.answers import exact_match, token_f1

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
