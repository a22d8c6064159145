r"""Where a response states its final answer.

In: a response. Out: the text of the answer, or None. Three places are known: the last `\boxed`,
what follows the last `####`, and the sentence after the last "answer is" or "A:". Not covered:
what the text means.
"""

from __future__ import annotations

import re

BOX = re.compile(r"\\(?:boxed|fbox)\b\s*")
MARK = "####"
CUE = re.compile(r"\banswer\b[^\n.:=]{0,40}?(?:\bis\b:?|[:=])|^[ \t]*A[ \t]*:", re.I | re.M)
SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")


def boxed_text(text: str) -> str | None:
    r"""What stands in the last whole `\boxed{...}`; `\boxed 5` without braces is `5`."""
    for box in reversed(list(BOX.finditer(text))):
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
    cue = None
    for cue in CUE.finditer(text):
        pass
    if cue is None:
        return None
    return sentences(text[cue.end() :].lstrip())[0]


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text, at least one."""
    return SENTENCE_END.split(text)


def _in_braces(text: str, start: int) -> str | None:
    if text[start : start + 1] != "{":
        word = text[start:].split(maxsplit=1)
        return word[0].strip("$.,") if word else None
    depth = 0
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + 1 : position]
    return None
