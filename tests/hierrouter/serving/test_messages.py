"""Messages and lines of JSON become the question that models see."""

from typing import Any

import pytest

from hierrouter.serving.messages import question_in, question_of
from hierrouter_cache.errors import InputError

BRIEF = {"role": "system", "content": "Be brief."}
FOUR = {"role": "assistant", "content": "4"}


def user(text: object) -> dict[str, object]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("messages", "question"),
    [
        ("two\n\nparagraphs ", "two\n\nparagraphs "),
        ([user("User: ✓")], "User: ✓"),
        ([user([{"type": "text", "text": "12"}, {"type": "text", "text": "+7"}])], "12+7"),
        ([user("2+2?"), FOUR, user("3+3?")], "User: 2+2?\n\nAssistant: 4\n\nUser: 3+3?"),
        ([user("Hello"), BRIEF, user("Bye")], "Be brief.\n\nUser: Hello\n\nUser: Bye"),
        ([BRIEF, user("Hello")], "Be brief.\n\nHello"),
    ],
)
def test_one_message_is_its_own_text_and_several_a_transcript(messages: Any, question: str) -> None:
    assert question_of(messages) == question


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("", "empty question"),
        ("  \n", "empty question"),
        ([], "no message"),
        ([user("")], "empty message"),
        ([user(None)], "content is no text"),
        ([user([])], "content is no text"),
        ([user([{"type": "image_url", "image_url": "x"}])], "type 'image_url'.*only text"),
        ([{"role": "tool", "content": "x"}], "a tool was called: messages.0."),
        ([{"content": "x"}], "unknown role None"),
        (["x"], "no object: messages.0."),
        ([user("a"), FOUR], "last message is of role assistant"),
        ("x" * 2_000_001, "2,000,001 characters"),
    ],
)
def test_what_cannot_be_asked_is_refused(messages: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        question_of(messages)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"quest": "x"}, "neither of question and messages: f:1; give one of them"),
        ({"question": "x", "messages": []}, "both of question and messages: f:1"),
        ({"question": ["x"]}, "question is not a text: f:1"),
        ({"messages": []}, "no message: messages: f:1; give at least one"),
        ({"question": "x", "id": float("nan")}, "id is neither a text nor a whole number: f:1"),
    ],
)
def test_a_line_that_is_no_question_is_named(row: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        question_in(row, "f:1")
    assert question_in({"question": "x", "id": 7}, "f:1") == "x"
