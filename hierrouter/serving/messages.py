"""The question that models see: read from chat messages, from lines of JSON, or from a pipe."""

import os
import select
from collections.abc import Iterator, Mapping, Sequence
from threading import Event
from typing import Any
from urllib.parse import unquote

from hierrouter.engines.generator import PART_BREAK
from hierrouter.questions.files import MAX_LINE_BYTES
from hierrouter.questions.query import MAX_GROUP_NAME, group_name
from hierrouter_cache.errors import InputError
from hierrouter_cache.keys import sound_text

# The roles whose turns make up the transcript, with the label before each turn.
SPEAKER_LABELS = {"user": "User: ", "assistant": "Assistant: "}
GROUP_HEADER = "x-hierrouter-group"  # of a request whose body cannot say it
INSTRUCTION_ROLES = ("system", "developer")
TOOL_ROLES = ("tool", "function")
TOOL_CALL_KEYS = ("tool_calls", "function_call")
MAX_QUESTION_CHARACTERS = 2_000_000
PIPE_POLL_S = 0.2  # between two checks of whether a read was cancelled
PIPE_CHUNK_BYTES = 1 << 16

Message = Mapping[str, Any]
Question = str | Sequence[Message]


def question_of(question: Question) -> str:
    """Return the text that models see.

    Args:
        question: the text itself; or objects with `role` and `content`, the last of them the
            user's. The text of system and developer comes first.

    Raises:
        InputError: no message, an unknown role, no text, or the last message is not the user's.
    """
    if isinstance(question, str):
        return _checked_text(question)
    text, images = text_and_images(question)
    if images:
        raise Unroutable("content of type 'image_url': messages; only text can be routed")
    return text


def text_and_images(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """Return the text that models see of chat messages, and the images in them.

    Raises:
        InputError: see `question_of`.
        Unroutable: the messages have content other than text and images.
    """
    images: list[Message] = []
    return _checked_text(_transcript(messages, images)), images


def _checked_text(text: str) -> str:
    """Return the text without characters that no file takes.

    Raises:
        InputError: it is blank or too long.
    """
    if not text.strip():
        raise InputError("an empty question; give a text")
    if len(text) > MAX_QUESTION_CHARACTERS:
        raise InputError(
            f"a question of {len(text):,} characters; at most {MAX_QUESTION_CHARACTERS:,} are taken"
        )
    return sound_text(text)


class Unroutable(InputError):
    """A valid request that asks for more than a route can give."""


def _transcript(messages: Sequence[Message], images: list[Message]) -> str:
    """Join several turns to one text; a single turn is the text itself.

    Args:
        messages: of the chat.
        images: receives the images in them.
    """
    if not messages:
        raise InputError("no message: messages; give at least one of role user")
    turns = [
        _turn(message, f"messages[{number}]", images) for number, message in enumerate(messages)
    ]
    if turns[-1][0] != "user":
        raise InputError(f"the last message is of role {turns[-1][0]}: messages; it must be user's")
    instructions = [text for role, text in turns if role in INSTRUCTION_ROLES]
    spoken = [(SPEAKER_LABELS[role], text) for role, text in turns if role in SPEAKER_LABELS]
    if len(spoken) == 1:
        return PART_BREAK.join([*instructions, spoken[0][1]])
    return PART_BREAK.join([*instructions, *(label + text for label, text in spoken)])


def _turn(message: Any, where: str, images: list[Message]) -> tuple[str, str]:
    """Return role and text of a message; its images are added to the list."""
    if not isinstance(message, Mapping):
        raise InputError(f"a message is no object: {where}; give role and content")
    role = message.get("role")
    if role in TOOL_ROLES or any(message.get(key) for key in TOOL_CALL_KEYS):
        raise Unroutable(f"a tool was called: {where}; only text can be routed")
    roles = (*SPEAKER_LABELS, *INSTRUCTION_ROLES)
    if role not in roles:
        raise InputError(f"unknown role {role!r:.40}: {where}; known: {', '.join(roles)}")
    text = _content_text(message.get("content"), where, images)
    if not text.strip() and role == "user":
        raise InputError(f"an empty message: {where}; give a text")
    return role, text


def _content_text(content: Any, where: str, images: list[Message]) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InputError(f"content is no text: {where}; give a text, or parts of type text")
    texts = []
    for element in content:
        part = element if isinstance(element, Mapping) else {}
        if _is_image(part):
            images.append(part)
        elif part.get("type") == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = f"{part.get('type')!r:.40}"
            raise Unroutable(f"content of type {kind}: {where}; only text can be routed")
    return "".join(texts)


def _is_image(part: Message) -> bool:
    """Whether a part is an image that a server may read: sent along, or on the public web."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else None
    return part.get("type") == "image_url" and str(url).startswith(("data:image/", "https://"))


def question_in(row: dict[str, Any], where: str) -> Question:
    """Return the question of one line of JSON.

    Args:
        row: the object on the line.
        where: file and line, for messages.

    Raises:
        InputError: neither question nor messages, or both, or nothing that can be asked; or an id
            that is neither a text nor a whole number.
    """
    keys = [key for key in ("question", "messages") if row.get(key) is not None]
    if len(keys) != 1:
        count = "both" if keys else "neither"
        raise InputError(f"{count} of question and messages: {where}; give one of them")
    [key] = keys
    question: Question = row[key]
    if key == "question" and not isinstance(question, str):
        raise InputError(f"question is not a text: {where}; give one")
    if key == "messages" and not isinstance(question, list):
        raise InputError(f"messages is not a list of messages: {where}; give one")
    try:
        question_of(question)
    except InputError as error:
        fault, _, remedy = str(error).partition("; ")
        raise InputError(f"{fault}: {where}; {remedy}") from None
    if not isinstance(row.get("id"), str | int | None):
        raise InputError(f"id is neither a text nor a whole number: {where}; change it")
    return question


def group_in(row: dict[str, Any], where: str, group_by: str | None = None) -> str:
    """Return the group of the question on one line of JSON: its `group`, else its `dataset`.

    Args:
        row: the object on the line.
        where: file and line, for messages.
        group_by: the field to look at before these.

    Returns:
        The name; "" if there is none.

    Raises:
        InputError: it is no text, or too long.
    """
    keys = ("group", "dataset") if group_by is None else (group_by, "group", "dataset")
    key = next((key for key in keys if row.get(key) not in (None, "")), None)
    if key is None:
        return ""
    group = group_name(row[key])
    if group is None:
        raise InputError(
            f"{key:.60} is no name of up to {MAX_GROUP_NAME} characters: {where}; "
            "give a data set or a label as text"
        )
    return group


def group_in_header(headers: Mapping[str, str]) -> str:
    """Return the group of the question of a request by its header, with percent escapes.

    Returns:
        The name; "" if there is none.

    Raises:
        InputError: it is too long.
    """
    text = headers.get(GROUP_HEADER, "")
    group = group_name(unquote(text))
    if text.strip() and group is None:
        raise InputError(
            f"{GROUP_HEADER} is no name of up to {MAX_GROUP_NAME} characters; give a data set or "
            "a label"
        )
    return group or ""


def piped_lines(pipe: int, stopped: Event, where: str) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, bytes) of each line of a pipe until it ends or is stopped.

    Args:
        pipe: file descriptor, read past Python's own buffers; other readers of it take lines away.
        stopped: once it is set, no more lines come, and a read that waits for data ends.
        where: name of the pipe, for messages.

    Raises:
        InputError: it cannot be read, or a line is too long.
    """
    number = 0
    incomplete = bytearray()
    while chunk := _next_chunk(pipe, stopped, where):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            number += 1
            yield number, bytes(incomplete) + line
            incomplete.clear()
        incomplete += rest
        if len(incomplete) > MAX_LINE_BYTES:
            raise InputError(
                f"line longer than {MAX_LINE_BYTES:,} bytes: {where}:{number + 1}; "
                "write one JSON object per line"
            )
    if incomplete and not stopped.is_set():
        yield number + 1, bytes(incomplete)


def _next_chunk(pipe: int, stopped: Event, where: str) -> bytes:
    """Return the next bytes of a pipe; b"" at its end, or when it was stopped."""
    try:
        while not stopped.is_set():
            # Wait for data only briefly: a blocking read could not be stopped.
            if select.select([pipe], [], [], PIPE_POLL_S)[0]:
                return os.read(pipe, PIPE_CHUNK_BYTES)
    except OSError as error:
        raise InputError(f"cannot be read: {where}: {error.strerror}; give JSON lines") from None
    return b""
