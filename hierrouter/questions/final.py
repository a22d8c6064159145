r"""Find the text that a response states as its final answer.

Models state an answer in many forms. From the clearest to the vaguest:

1. a field of a JSON object, `"answer": "17"`, else answer tags, `[ANSWER]17[/ANSWER]`
   (`declared_text`);
2. a LaTeX box, `\boxed{17}` (`boxed_text`);
3. the line after `####`, as in GSM8K (`marked_text`);
4. the sentence after "the answer is" (`cued_text`).

A vaguer form never wins over a clearer one (`stated_text`). Within a form the last occurrence
counts, because responses reason first and answer last. Every function looks at a bounded part of
the text only, so that no response takes long.

Numbers, choices and formulas are read from that text in `hierrouter.questions.answers`.
"""

import re

# A field of a JSON object. Fields and boxes are cut at a length that no answer has.
ANSWER_FIELD_PATTERN = re.compile(r"[\"'](?:final[ _]?)?answer[\"']\s*:\s*", re.I)
MAX_FIELD_CHARACTERS = 2000
# Models often forget to escape quotes inside a value. So a quote ends the value only if the object
# ends after it, or the next field begins.
QUOTED_VALUE_END_PATTERN = re.compile(
    r"(?<!\\)(?:\\\\)*([\"'])(?=\s*(?:,\s*[\"'][\w ]{1,40}[\"']\s*:|,?\s*(?:\}|```|\Z)))"
)
BARE_VALUE_END_PATTERN = re.compile(r",\s*[\"'][\w ]{1,40}[\"']\s*:|[}\n]|\Z")
ESCAPE_PATTERN = re.compile(r"\\(u[0-9a-fA-F]{4}|[a-zA-Z]+|.)", re.S)
CONTROL_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
# LaTeX commands that JSON would read as a control character and the rest of a word: "\frac" as
# "\f" and "rac".
LATEX_COMMAND_PATTERN = re.compile(
    r"bar|begin|beta|bigg?|binom|bmod|boxed|bullet|forall|frac|nabla|neq?|not|nu|rangle|rceil|rfloor"
    r"|rho|right|rightarrow|rm|tanh?|tau|text(?:bf|it)?|tfrac|theta|therefore|times|to|triangle"
)

ANSWER_TAGS = (("[answer]", "[/answer]"), ("<answer>", "</answer>"))  # compared in lower case
ASSERTION_PATTERN = re.compile(r"\s*assert\b.*==", re.S)  # CRUXEval asks for `assert f(1) == 2`

BOX_PATTERN = re.compile(r"\\(?:boxed|fbox)\b\s*")
MAX_TRIED_BOXES = 8  # from the end; a response that was cut short may have boxes without an end
MAX_BOX_CHARACTERS = 2000

GSM8K_MARK = "####"

CUE_PATTERN = re.compile(
    r"\banswer\b(?:[^\n.:=]{0,40}?\b(?:is|of)\b:?|[\s*_]*[:=])|^[ \t]*A[ \t]*:", re.I | re.M
)
OUTPUT_CUE_PATTERN = re.compile(
    r"\b(?:outputs?|result|returns?|return(?:ed)? value)\b"
    r"(?:[^\n.:=`]{0,40}?\b(?:is|be|as)\b:?|:)?\s*",
    re.I,
)
SENTENCE_END_PATTERN = re.compile(r"[.!?](?=\s|$)|\n")


def stated_text(text: str) -> str | None:
    """The text of the answer in the clearest form that the response has; None if it has no form."""
    for read in (declared_text, boxed_text, marked_text, cued_text):
        answer = read(text)
        if answer is not None:
            return answer
    return None


def declared_text(text: str) -> str | None:
    """The value of the last answer field of a JSON object, else the text in the last answer tags.

    The object may be in a code fence, broken or cut short, and its strings may hold LaTeX or quotes
    that are not escaped.

    Returns:
        the text, which is empty if the field is; None without a field and tags.
    """
    fields = list(ANSWER_FIELD_PATTERN.finditer(text))
    if not fields:
        return tagged_text(text)
    start = fields[-1].end()
    return _field_value(text[start : start + MAX_FIELD_CHARACTERS]).strip()


def _field_value(rest: str) -> str:
    """The value at the beginning of a text, without quotes and escapes."""
    quote = rest[:1]
    if quote not in ("'", '"'):
        return _bare_value(rest)
    ends = (end for end in QUOTED_VALUE_END_PATTERN.finditer(rest, 1) if end[1] == quote)
    end = next(ends, None)
    if end is None:
        # The response was cut short: the value ends with its line.
        line = rest[1:].split("\n")[0]
        content = line.rstrip("\"',} ")
    else:
        content = rest[1 : end.start(1)]
    return ESCAPE_PATTERN.sub(_unescape, content)


def _bare_value(rest: str) -> str:
    """A value without quotes: a whole list or object, else the rest of its line."""
    if rest[:1] in ("[", "{", "("):
        depth = 0
        for position, character in enumerate(rest):
            if character in "[{(":
                depth += 1
            elif character in "]})":
                depth -= 1
            if depth == 0:
                return rest[: position + 1]
    end = BARE_VALUE_END_PATTERN.search(rest)
    return rest[: end.start()].rstrip(" ,") if end else rest


def _unescape(match: re.Match[str]) -> str:
    """The text that an escape of JSON means, unless it is a command of LaTeX."""
    escape = match[1]
    # `u0041`, but not a command of five letters such as `union`.
    is_code_point = len(escape) == 5 and escape[1:].isalnum() and not escape.isalpha()
    if is_code_point:
        return chr(int(escape[1:], 16))
    if not escape.isalpha():
        return escape if escape in "\"'/\\" else match[0]
    is_latex = LATEX_COMMAND_PATTERN.fullmatch(escape) is not None
    if is_latex or escape[0] not in CONTROL_CHARACTERS:
        return match[0]
    # The pattern takes all letters: of "\nthe" the first one is the escape.
    return CONTROL_CHARACTERS[escape[0]] + escape[1:]


def tagged_text(text: str) -> str | None:
    """The text between the last answer tags; of an assertion there, only its right side."""
    # Lower case can change the length of a text that is not ASCII, and with it the positions.
    lowered = text.lower() if text.isascii() else text
    for opening, closing in ANSWER_TAGS:
        end = lowered.rfind(closing)
        start = lowered.rfind(opening, 0, end) if end >= 0 else -1
        if start < 0:
            continue
        content = text[start + len(opening) : end][:MAX_FIELD_CHARACTERS]
        answer = ASSERTION_PATTERN.sub("", content, count=1).strip()
        if answer:
            return answer
    return None


def boxed_text(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}`; of `\boxed 5`, without braces, `5`."""
    boxes = list(BOX_PATTERN.finditer(text))[-MAX_TRIED_BOXES:]
    for box in reversed(boxes):
        content = _braced_content(text, box.end())
        if content is not None:
            return content
    return None


def _braced_content(text: str, start: int) -> str | None:
    """The text in the braces that open at `start`; without braces, the word there."""
    limit = start + MAX_BOX_CHARACTERS
    if text[start : start + 1] != "{":
        words = text[start:limit].split(maxsplit=1)
        return words[0].strip("$.,") if words else None
    depth = 0
    for position in range(start, min(len(text), limit)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
        if depth == 0:
            return text[start + 1 : position]
    return None


def marked_text(text: str) -> str | None:
    """The line after the last `####`, the way GSM8K writes its answers."""
    _, mark, after = text.rpartition(GSM8K_MARK)
    return after.strip().split("\n")[0] if mark else None


def cued_text(text: str) -> str | None:
    """The rest of the sentence after the last "answer is", "Answer:" or "A:"."""
    cues = list(CUE_PATTERN.finditer(text))
    if not cues:
        return None
    return sentences(text[cues[-1].end() :].lstrip())[0]


def output_text(text: str) -> str | None:
    """The rest of the line after the last "the output is" or "returns", without backticks."""
    cues = list(OUTPUT_CUE_PATTERN.finditer(text))
    if not cues:
        return None
    start = cues[-1].end()
    line = text[start : start + MAX_FIELD_CHARACTERS].lstrip().split("\n")[0]
    quoted = re.match(r"`([^`]+)`", line)
    return (quoted[1] if quoted else line).strip()


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text that are not blank; one empty text if all are blank."""
    parts = [part for part in SENTENCE_END_PATTERN.split(text) if part.strip()]
    return parts or [""]
