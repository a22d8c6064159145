r"""Where a response states its final answer.

In: a response. Out: the text of the answer, or None. Three places are known: the last `\boxed`,
what follows the last `####`, and the sentence after the last "answer is" or "A:". Not covered:
what the text means.
"""

from __future__ import annotations

import re

BOX = re.compile(r"\\(?:boxed|fbox)\b\s*")
BOXES = 8  # so many are tried, the last ones; a response cut short may have open ones
LONGEST = 2000  # characters in a box
MARK = "####"
CUE = re.compile(
    r"\banswer\b(?:[^\n.:=]{0,40}?\b(?:is|of)\b:?|[\s*_]*[:=])|^[ \t]*A[ \t]*:", re.I | re.M
)
SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")


def boxed_text(text: str) -> str | None:
    r"""What stands in the last whole `\boxed{...}`; `\boxed 5` without braces is `5`."""
    for box in reversed(list(BOX.finditer(text))[-BOXES:]):
        content = _in_braces(text, box.end())
        if content is not None:
            return content
    return None


def marked_text(text: str) -> str | None:
    """The line after the last `####`, the way GSM8K writes its answers."""
    _, mark, after = text.rpartition(MARK)
    return after.strip().split("\n")[0] if mark else None


def cued_text(text: str) -> str | None:
    """The rest of the sentence after the last "answer is", "Answer:" or "A:"."""
    cues = list(CUE.finditer(text))
    return sentences(text[cues[-1].end() :].lstrip())[0] if cues else None


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text that are not blank; one blank where all are."""
    return [part for part in SENTENCE_END.split(text) if part.strip()] or [""]


def _in_braces(text: str, start: int) -> str | None:
    if text[start : start + 1] != "{":
        word = text[start:].split(maxsplit=1)
        return word[0].strip("$.,") if word else None
    depth = 0
    for position in range(start, min(len(text), start + LONGEST)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + 1 : position]
    return None
