"""The question that models see, from chat messages, from lines of JSON, and from a pipe of them."""

import os
import select
from collections.abc import Iterator, Mapping, Sequence
from threading import Event
from typing import Any

from hierrouter.engines.generator import PART_BREAK
from hierrouter.questions.files import MAX_LINE
from hierrouter.questions.query import storable
from hierrouter_cache.errors import InputError

# What stands before a turn in a transcript; who says it in a message.
SPEAKERS = {"user": "User: ", "assistant": "Assistant: "}
INSTRUCTING = ("system", "developer")
TOOL_ROLES, TOOL_CALLS = ("tool", "function"), ("tool_calls", "function_call")
MOST_CHARACTERS = 2_000_000
LOOK_S = 0.2  # between two looks whether a read has been stopped
CHUNK = 1 << 16

Message = Mapping[str, Any]
Question = str | Sequence[Message]


def question_of(question: Question) -> str:
    """The text that models see.

    Raises InputError: no message, an unknown role, no text, or somebody else has the last word.

    Args:
        question: the text itself; or objects with `role` and `content`, the last of them the
            user's. What the system or developer says comes first.
    """
    text, images = (question, []) if isinstance(question, str) else asked_of(question)
    if images:
        raise Unroutable("content of type 'image_url': messages; only text can be routed")
    return _sound(text)


def asked_of(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """The text that models see of chat messages, and the images that are shown with it.

    Raises InputError: see `question_of`; Unroutable: there is more in them.
    """
    images: list[Message] = []
    return _sound(_transcript(messages, images)), images


def _sound(text: str) -> str:
    if not text.strip():
        raise InputError("an empty question; give a text")
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"a question of {len(text):,} characters; at most {MOST_CHARACTERS:,} are taken"
        )
    return storable(text)


class Unroutable(InputError):
    """A request that is in order, but asks for more than a route can give."""


def _transcript(messages: Sequence[Message], images: list[Message]) -> str:
    """Several turns as one text; a single one is its own text. Images are put into the list."""
    if not messages:
        raise InputError("no message: messages; give at least one of role user")
    turns = [_turn(message, f"messages[{at}]", images) for at, message in enumerate(messages)]
    if turns[-1][0] != "user":
        raise InputError(f"the last message is of role {turns[-1][0]}: messages; it must be user's")
    instructions = [text for role, text in turns if role in INSTRUCTING]
    spoken = [(SPEAKERS[role], text) for role, text in turns if role in SPEAKERS]
    if len(spoken) == 1:
        return PART_BREAK.join([*instructions, spoken[0][1]])
    return PART_BREAK.join([*instructions, *(speaker + text for speaker, text in spoken)])


def _turn(message: Any, where: str, images: list[Message]) -> tuple[str, str]:
    if not isinstance(message, Mapping):
        raise InputError(f"a message is no object: {where}; give role and content")
    role = message.get("role")
    if role in TOOL_ROLES or any(message.get(name) for name in TOOL_CALLS):
        raise Unroutable(f"a tool was called: {where}; only text can be routed")
    if role not in (*SPEAKERS, *INSTRUCTING):
        known = ", ".join((*SPEAKERS, *INSTRUCTING))
        raise InputError(f"unknown role {role!r:.40}: {where}; known: {known}")
    text = _text(message.get("content"), where, images)
    if not text.strip() and role == "user":
        raise InputError(f"an empty message: {where}; give a text")
    return role, text


def _text(content: Any, where: str, images: list[Message]) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InputError(f"content is no text: {where}; give a text, or parts of type text")
    texts = []
    for part in content:
        given = part if isinstance(part, Mapping) else {}
        if _is_image(given):
            images.append(given)
            continue
        if given.get("type") != "text" or not isinstance(given.get("text"), str):
            kind = f"{given.get('type')!r:.40}"
            raise Unroutable(f"content of type {kind}: {where}; only text can be routed")
        texts.append(given["text"])
    return "".join(texts)


def _is_image(part: Message) -> bool:
    """Whether a part is an image that a server may read: sent along, or on the public web."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else None
    return part.get("type") == "image_url" and str(url).startswith(("data:image/", "https://"))


def question_in(row: dict[str, Any], where: str) -> Question:
    """The question of one line of JSON.

    Raises InputError: neither question nor messages, or both, or nothing that can be asked; or an
    id that is neither a text nor a whole number.

    `where`: file and line, for messages.
    """
    given = [name for name in ("question", "messages") if row.get(name) is not None]
    if len(given) != 1:
        raise InputError(
            f"{'both' if given else 'neither'} of question and messages: {where}; give one of them"
        )
    [name] = given
    question: Question = row[name]
    wanted, kind = (str, "a text") if name == "question" else (list, "a list of messages")
    if not isinstance(question, wanted):
        raise InputError(f"{name} is not {kind}: {where}; give one")
    try:
        question_of(question)
    except InputError as error:
        fault, _, remedy = str(error).partition("; ")
        raise InputError(f"{fault}: {where}; {remedy}") from None
    if not isinstance(row.get("id"), str | int | None):
        raise InputError(f"id is neither a text nor a whole number: {where}; change it")
    return question


def piped_lines(pipe: int, stopped: Event, where: str) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes) of each line; once `stopped` is set, no more.

    Raises InputError: it cannot be read, or a line is too long.

    `pipe`: read past Python's own buffers; whoever reads there as well takes lines away; `where`:
    its name, for messages.
    """
    number, begun = 0, bytearray()
    while chunk := _next_bytes(pipe, stopped, where):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            number += 1
            yield number, bytes(begun) + line
            begun.clear()
        begun += rest
        if len(begun) > MAX_LINE:
            raise InputError(
                f"line longer than {MAX_LINE:,} bytes: {where}:{number + 1}; "
                "write one JSON object per line"
            )
    if begun and not stopped.is_set():
        yield number + 1, bytes(begun)


def _next_bytes(pipe: int, stopped: Event, where: str) -> bytes:
    """What comes next; nothing at the end, or when it was stopped."""
    try:
        while not stopped.is_set():
            if select.select([pipe], [], [], LOOK_S)[0]:
                return os.read(pipe, CHUNK)
    except OSError as error:
        raise InputError(f"cannot be read: {where}: {error.strerror}; give JSON lines") from None
    return b""
