"""Where a final answer is found, at the edges of what is looked at."""

import pytest

from hierrouter.questions.answers import boxed_text, cued_text, marked_text


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
