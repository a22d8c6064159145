"""Chat messages as the question that a router reads.

In: a text, or messages as OpenAI's chat completions have them. Out: one question. A single user
message is its own text, byte for byte, so that a live route is the cached one. Of several turns a
transcript is made. Not covered: images and tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hierrouter.collect.prompts import PART_BREAK
from hierrouter.query import storable
from hierrouter_cache.errors import InputError

# What stands before a turn in a transcript; who says it in a message.
SPEAKERS = {"user": "User: ", "assistant": "Assistant: "}
INSTRUCTING = ("system", "developer")
MOST_CHARACTERS = 2_000_000

Message = Mapping[str, Any]


def question_of(messages: str | Sequence[Message]) -> str:
    """The question that these messages ask.

    Args:
        messages: the question itself; or objects with `role` and `content`, the last of them the
            user's. What the system or developer says comes first.

    Raises:
        InputError: no message, an unknown role, no text, or somebody else has the last word.
    """
    if isinstance(messages, str):
        return _checked(messages)
    if not messages:
        raise InputError("no message: messages; give at least one of role user")
    turns = [_turn(message, f"messages[{place}]") for place, message in enumerate(messages)]
    if turns[-1][0] != "user":
        raise InputError(f"the last message is of role {turns[-1][0]}: messages; it must be user's")
    orders = [text for role, text in turns if role in INSTRUCTING]
    said = [(role, text) for role, text in turns if role in SPEAKERS]
    if len(said) > 1:
        said = [(role, SPEAKERS[role] + text) for role, text in said]
    return _checked(PART_BREAK.join([*orders, *(text for _, text in said)]))


def _turn(message: Any, where: str) -> tuple[str, str]:
    """Role and text of one message."""
    if not isinstance(message, Mapping):
        raise InputError(f"a message is no object: {where}; give role and content")
    role = message.get("role")
    if role not in (*SPEAKERS, *INSTRUCTING):
        known = ", ".join((*SPEAKERS, *INSTRUCTING))
        raise InputError(f"unknown role {role!r:.40}: {where}; known: {known}")
    text = _text(message.get("content"), where)
    if not text.strip() and role == "user":
        raise InputError(f"an empty message: {where}; give a text")
    return role, text


def _text(content: Any, where: str) -> str:
    """The text of a message, given whole or in parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InputError(f"content is no text: {where}; give a text, or parts of type text")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            raise InputError(f"content of type {kind!r:.40}: {where}; only text can be routed")
        texts.append(text)
    return "".join(texts)


def _checked(question: str) -> str:
    if not question.strip():
        raise InputError("an empty question; give a text")
    if len(question) > MOST_CHARACTERS:
        raise InputError(
            f"a question of {len(question):,} characters; at most {MOST_CHARACTERS:,} are taken"
        )
    return storable(question)
