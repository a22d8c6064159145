r"""What a response states as its final answer, whatever form it is stated in.

From the clearest form to the vaguest: a field of JSON (`"answer": "17"`), answer tags, `\boxed`,
the line after `####`, the sentence after "the answer is". A vaguer one never beats a clearer one.
All of them look from the end, at a bounded part of the text: no response takes long.
"""

import re

FIELD = re.compile(r"[\"'](?:final[ _]?)?answer[\"']\s*:\s*", re.I)
LONGEST_FIELD = 2000  # characters
# A quote ends a field where the object ends, or the next field begins: quotes inside are often not
# escaped.
FIELD_END = re.compile(
    r"(?<!\\)(?:\\\\)*([\"'])(?=\s*(?:,\s*[\"'][\w ]{1,40}[\"']\s*:|,?\s*(?:\}|```|\Z)))"
)
BARE_END = re.compile(r",\s*[\"'][\w ]{1,40}[\"']\s*:|[}\n]|\Z")
ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|[a-zA-Z]+|.)", re.S)
CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
# Commands that JSON would read as a control character and the rest of a word: "\frac" as "\f".
COMMANDS = re.compile(
    r"bar|begin|beta|bigg?|binom|bmod|boxed|bullet|forall|frac|nabla|neq?|not|nu|rangle|rceil|rfloor"
    r"|rho|right|rightarrow|rm|tanh?|tau|text(?:bf|it)?|tfrac|theta|therefore|times|to|triangle"
)
TAGS = (("[answer]", "[/answer]"), ("<answer>", "</answer>"))
ASSERTED = re.compile(r"\s*assert\b.*==", re.S)  # as CRUXEval asks for it

BOX = re.compile(r"\\(?:boxed|fbox)\b\s*")
BOXES = 8  # so many are tried, the last ones; a response cut short may have open ones
LONGEST_BOX = 2000  # characters
MARK = "####"
CUE = re.compile(
    r"\banswer\b(?:[^\n.:=]{0,40}?\b(?:is|of)\b:?|[\s*_]*[:=])|^[ \t]*A[ \t]*:", re.I | re.M
)
OUTPUT = re.compile(
    r"\b(?:outputs?|result|returns?|return(?:ed)? value)\b"
    r"(?:[^\n.:=`]{0,40}?\b(?:is|be|as)\b:?|:)?\s*",
    re.I,
)
SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")


def declared_text(text: str) -> str | None:
    """What stands in the last answer field of a JSON object, else between the last answer tags.

    None where there is neither; a field may be empty. The object may be fenced, broken or cut
    short, its strings may hold LaTeX or quotes that are not escaped.
    """
    keys = list(FIELD.finditer(text))
    if not keys:
        return tagged_text(text)
    return _field(text[keys[-1].end() : keys[-1].end() + LONGEST_FIELD]).strip()


def _field(rest: str) -> str:
    """The value that a text begins with."""
    if rest[:1] not in ("'", '"'):
        return _bare(rest)
    end = next((one for one in FIELD_END.finditer(rest, 1) if one[1] == rest[0]), None)
    # One that is cut short ends with its line.
    content = rest[1 : end.start(1)] if end else rest[1:].split("\n")[0].rstrip("\"',} ")
    return ESCAPE.sub(_unescaped, content)


def _bare(rest: str) -> str:
    """A value without quotes: a list or an object as it is written, else the rest of its line."""
    if rest[:1] in ("[", "{", "("):
        depth = 0
        for position, character in enumerate(rest):
            depth += (character in "[{(") - (character in "]})")
            if depth == 0:
                return rest[: position + 1]
    end = BARE_END.search(rest)
    return rest[: end.start()].rstrip(" ,") if end else rest


def _unescaped(match: re.Match[str]) -> str:
    said = match[1]
    if len(said) == 5 and said[1:].isalnum() and not said.isalpha():
        return chr(int(said[1:], 16))
    if not said.isalpha():
        return said if said in "\"'/\\" else match[0]
    if COMMANDS.fullmatch(said) or said[0] not in CONTROLS:
        return match[0]
    return CONTROLS[said[0]] + said[1:]


def tagged_text(text: str) -> str | None:
    """What stands between the last answer tags; of an assertion in them what it compares with."""
    small = text.lower() if text.isascii() else text
    for opening, closing in TAGS:
        end = small.rfind(closing)
        start = small.rfind(opening, 0, end) if end >= 0 else -1
        if start >= 0:
            inside = text[start + len(opening) : end][:LONGEST_FIELD]
            if said := ASSERTED.sub("", inside, count=1).strip():
                return said
    return None


def boxed_text(text: str) -> str | None:
    r"""What stands in the last whole `\boxed{...}`; `\boxed 5` without braces is `5`."""
    contents = (_in_braces(text, box.end()) for box in reversed(list(BOX.finditer(text))[-BOXES:]))
    return next((content for content in contents if content is not None), None)


def _in_braces(text: str, start: int) -> str | None:
    if text[start : start + 1] != "{":
        word = text[start : start + LONGEST_BOX].split(maxsplit=1)
        return word[0].strip("$.,") if word else None
    depth = 0
    for position in range(start, min(len(text), start + LONGEST_BOX)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + 1 : position]
    return None


def marked_text(text: str) -> str | None:
    """The line after the last `####`, the way GSM8K writes its answers."""
    _, mark, after = text.rpartition(MARK)
    return after.strip().split("\n")[0] if mark else None


def cued_text(text: str) -> str | None:
    """The rest of the sentence after the last "answer is", "Answer:" or "A:"."""
    cues = list(CUE.finditer(text))
    return sentences(text[cues[-1].end() :].lstrip())[0] if cues else None


def output_text(text: str) -> str | None:
    """The rest of the line after the last "the output is" or "returns", without backticks."""
    cues = list(OUTPUT.finditer(text))
    if not cues:
        return None
    line = text[cues[-1].end() :][:LONGEST_FIELD].lstrip().split("\n")[0]
    quoted = re.match(r"`([^`]+)`", line)
    return (quoted[1] if quoted else line).strip()


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text that are not blank; one blank where all are."""
    return [part for part in SENTENCE_END.split(text) if part.strip()] or [""]


def stated_text(text: str) -> str | None:
    """What a text states as its answer in the clearest form that it has; None where in none."""
    forms = (read(text) for read in (declared_text, boxed_text, marked_text, cued_text))
    return next((found for found in forms if found is not None), None)
