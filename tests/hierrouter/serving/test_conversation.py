"""Messages become the question that models see."""

import pytest

from hierrouter.serving.messages import question_of
from hierrouter_cache.errors import InputError


def user(text: object) -> dict[str, object]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("question", ["compute 12+7", " two\n\nparagraphs ", "User: ✓"])
def test_one_message_is_its_own_text(question: str) -> None:
    assert question_of(question) == question
    assert question_of([user(question)]) == question


def test_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "compute "}, {"type": "text", "text": "12+7"}]
    assert question_of([user(parts)]) == "compute 12+7"


def test_several_turns_are_a_transcript() -> None:
    turns = [user("What is 2+2?"), {"role": "assistant", "content": "4"}, user("And 3+3?")]
    assert question_of(turns) == "User: What is 2+2?\n\nAssistant: 4\n\nUser: And 3+3?"


def test_what_the_system_says_comes_first() -> None:
    order = {"role": "system", "content": "Be brief."}
    assert question_of([user("Hello"), order, user("Bye")]) == (
        "Be brief.\n\nUser: Hello\n\nUser: Bye"
    )
    assert question_of([order, user("Hello")]) == "Be brief.\n\nHello"


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
        ([{"role": "tool", "content": "x"}], "unknown role 'tool'"),
        ([{"content": "x"}], "unknown role None"),
        (["x"], "no object: messages.0."),
        ([user("a"), {"role": "assistant", "content": "b"}], "last message is of role assistant"),
        ("x" * 2_000_001, "2,000,001 characters"),
    ],
)
def test_what_cannot_be_asked_is_refused(messages: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        question_of(messages)  # type: ignore[arg-type]
