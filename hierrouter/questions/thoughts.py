"""Separate the thoughts of a reasoning model from its answer.

A reasoning model writes a thought before its answer, usually between tags. The chat template may
open the thought itself; then the response holds only the closing tag. A thought is never an answer:
whatever ends at the last closing tag is removed, and a thought that is still open at the end of the
response leaves no answer at all, because the response was cut short within it.

The tags below are those of public models. Models with other tags name them in the pool file
(`thought_tags`).
"""

import re
from collections.abc import Iterable

# Names of tags, as in <think>...</think>; some models add a prefix, <seed:think>.
TAG_NAMES_REGEX = (
    r"(?:[a-z]+:)?(?:think(?:ing)?|thoughts?|reasoning|reflection|scratchpad|analysis)"
)
# Each pattern begins with a literal character, by which `re` skips most of a text quickly.
OPENING_TAG_PATTERN = re.compile(
    rf"<\s*{TAG_NAMES_REGEX}(?:\s[^<>]{{0,80}})?>"
    r"|\[think(?:ing)?\]"
    r"|◁think▷"
    r"|<\|(?:begin_of_thought|start_thinking|think|thinking)\|>",
    re.I,
)
CLOSING_TAG_PATTERN = re.compile(
    rf"<\s*/\s*{TAG_NAMES_REGEX}\s*>"
    rf"|<\s*{TAG_NAMES_REGEX}\s*/>"  # an empty thought
    r"|\[/think(?:ing)?\]"
    r"|◁/think▷"
    r"|<\|(?:end_of_thought|end_thinking|/think|/thinking)\|>",
    re.I,
)
QUOTE_CHARACTERS = "`'\""  # a tag directly after one of them is mentioned, not used

# Channels: every message begins with the name of its channel, and the answer is in "final".
CHANNEL_PATTERN = re.compile(r"<\|channel\|>\s*(\w+)[^<]{0,80}<\|message\|>", re.I)
FINAL_CHANNEL = "final"
MESSAGE_END_PATTERN = re.compile(r"<\|(?:end|return|call|start|channel)\|>", re.I)
# The same response decoded without its special tokens: only the names of the channels are left.
BARE_CHANNELS_PATTERN = re.compile(r"\s*analysis(?=[A-Z\s])")
BARE_FINAL_MARK = "assistantfinal"


def without_thoughts(response: str, tags: Iterable[tuple[str, str]] = ()) -> str:
    """The part of a response after its thoughts.

    Args:
        response: text of a model.
        tags: opening and closing tag of each further kind of thought that the model writes.

    Returns:
        the answer; empty if a thought is not finished or nothing follows it.
    """
    answer = _after_thoughts(_final_channel(response), OPENING_TAG_PATTERN, CLOSING_TAG_PATTERN)
    for opening, closing in tags:
        answer = _after_thoughts(
            answer, re.compile(re.escape(opening)), re.compile(re.escape(closing))
        )
    return answer


def _after_thoughts(text: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> str:
    end = 0
    for tag in closing.finditer(text):
        if not _is_mentioned(text, tag.start()):
            end = tag.end()
    for tag in opening.finditer(text, end):
        # The `<Thought>` of `List<Thought>` is code.
        is_code = tag.start() > 0 and text[tag.start() - 1].isalnum()
        if not is_code and not _is_mentioned(text, tag.start()):
            return ""
    return text[end:].lstrip() if end else text


def _is_mentioned(text: str, position: int) -> bool:
    return position > 0 and text[position - 1] in QUOTE_CHARACTERS


def _final_channel(text: str) -> str:
    """The message of the last channel if it is the final one; a text without channels as it is."""
    channels = list(CHANNEL_PATTERN.finditer(text))
    if channels:
        if channels[-1][1].lower() != FINAL_CHANNEL:
            return ""
        message = text[channels[-1].end() :]
        end = MESSAGE_END_PATTERN.search(message)
        return message[: end.start()] if end else message
    if BARE_CHANNELS_PATTERN.match(text):
        _, mark, message = text.rpartition(BARE_FINAL_MARK)
        if mark:
            return message
    return text
