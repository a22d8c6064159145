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

Before that, `readable_text` removes what is no answer: thoughts, and the next question that a base
model writes after its answer.

Numbers, choices and formulas are read from that text in `hierrouter.questions.answers`.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

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

# Words between two boxes that are one answer.
BOX_JOINT_PATTERN = re.compile(
    r"[\s$]*(,|;|or|and|,\s*or|,\s*and|\\text\{\s*(?:or|and)\s*\})[\s$]*"
)

GSM8K_MARK = "####"

CUE_PATTERN = re.compile(
    r"\banswer\b(?:[^\n.:=]{0,40}?\b(?:is|of)\b:?|[\s*_]*[:=])|^[ \t]*A[ \t]*:", re.I | re.M
)
OUTPUT_CUE_PATTERN = re.compile(
    r"\b(?:outputs?|result|returns?|return(?:ed)? value)\b"
    r"(?:[^\n.:=`]{0,40}?\b(?:is|be|as)\b:?|:)?\s*",
    re.I,
)
MAX_SENTENCE_CHARACTERS = 4000
SENTENCE_END_PATTERN = re.compile(r"[.!?](?=\s|$)|\n")
WORD_BEFORE_PATTERN = re.compile(r"(?:(?P<before>\S+)\s+)?[(\"'*_]*(?P<word>[A-Za-z][A-Za-z.]*)$")
WORD_AFTER_PATTERN = re.compile(r"\s*[(\"'*_]*([^\W_]+)")
# Words that end with a full stop inside a sentence.
ABBREVIATIONS = frozenset(
    [
        "al",
        "approx",
        "ave",
        "blvd",
        "capt",
        "cf",
        "ch",
        "co",
        "col",
        "corp",
        "dept",
        "dr",
        "ed",
        "eq",
        "est",
        "etc",
        "ex",
        "fig",
        "figs",
        "ft",
        "gen",
        "gov",
        "hon",
        "inc",
        "jan",
        "feb",
        "mar",
        "apr",
        "jun",
        "jul",
        "aug",
        "sep",
        "sept",
        "oct",
        "nov",
        "dec",
        "jr",
        "lt",
        "ltd",
        "mr",
        "mrs",
        "ms",
        "mt",
        "mts",
        "no",
        "nos",
        "op",
        "p",
        "pp",
        "pres",
        "prof",
        "pt",
        "pvt",
        "rep",
        "resp",
        "rev",
        "sec",
        "sen",
        "sgt",
        "sr",
        "st",
        "ste",
        "sts",
        "vol",
        "vs",
    ]
)
NUMBERED_ABBREVIATIONS = frozenset(("no", "nos", "p", "pp", "ch", "vol", "fig", "eq", "sec", "op"))
MAX_ABBREVIATED_CHARACTERS = 40  # looked at before a full stop
# Words that begin a sentence rather than continue a name: "in the U.S. It is".
SENTENCE_STARTERS = frozenset(
    [
        "a",
        "also",
        "an",
        "and",
        "as",
        "at",
        "because",
        "both",
        "but",
        "each",
        "for",
        "from",
        "he",
        "hence",
        "here",
        "however",
        "i",
        "if",
        "in",
        "it",
        "its",
        "let",
        "most",
        "note",
        "of",
        "on",
        "one",
        "since",
        "she",
        "so",
        "some",
        "such",
        "that",
        "the",
        "their",
        "then",
        "there",
        "therefore",
        "these",
        "they",
        "this",
        "those",
        "thus",
        "to",
        "we",
        "what",
        "when",
        "which",
        "while",
        "with",
        "you",
    ]
)

# Beginnings of a new question that the model asks itself, and ends of its turn.
NEXT_QUESTION_PATTERN = re.compile(
    r"\n[ \t]*(?:#{1,4}[ \t]*|\*\*)?(?:(?:new|next)\s+)?"
    r"(?:(?:question|problem|q)[ \t]*\d{0,3}[ \t]*(?:\*\*)?:|(?:human|user)[ \t]*:)"
    r"|\n[ \t]*#{2,4}[ \t]*(?:instruction|question|problem|input|user)\b",
    re.I,
)
TURN_END_PATTERN = re.compile(
    r"<\|(?:im_end|im_start|eot_id|end_of_text|endoftext|start_header_id|end|user|return)\|>"
    r"|<(?:start|end)_of_turn>|</s>|<\uff5cend\u2581of\u2581sentence\uff5c>"
)
MAX_READ_CHARACTERS = 100_000  # some 25,000 tokens
MAX_TRIED_QUESTIONS = 4  # a solution may begin with the question and some parts of it
MAX_BARE_ANSWER_CHARACTERS = 80  # of a line that may be an answer and nothing else
OPENER_END_CHARACTERS = ":!,"  # "Sure!", "Here is the solution:"


# A response is read by several functions one after the other, and each needs the same texts.
CACHED_TEXTS = 8


@lru_cache(CACHED_TEXTS)
def readable_text(response: str) -> str:
    """The part of a response in which its answer is, with one form for each character.

    Thoughts are removed, and so is a further question that the model asks itself. Of a text that is
    longer than any answer, only the end is read.

    Returns:
        the text; empty if the response has no answer, as after a thought that was cut short.
    """
    return fold(readable_part(response).text)


@dataclass(frozen=True)
class Statement:
    """A part of a text that gives an answer.

    Attributes:
        text: of the answer, without quotes and escapes.
        start: its position in the text.
    """

    text: str
    start: int


@lru_cache(CACHED_TEXTS)
def readable_part(response: str) -> Statement:
    """The part of a response that `readable_text` folds, with its position."""
    answer = without_thoughts(response)
    start = response.rfind(answer)
    turn_end = TURN_END_PATTERN.search(answer) if "<" in answer else None
    if turn_end and answer[: turn_end.start()].strip():
        answer = answer[: turn_end.start()]
    before_question = _without_next_question(answer)
    start += answer.find(before_question)
    skipped = max(0, len(before_question) - MAX_READ_CHARACTERS)
    return Statement(before_question[skipped:], start + skipped)


def _without_next_question(text: str) -> str:
    for next_question in islice(NEXT_QUESTION_PATTERN.finditer(text), MAX_TRIED_QUESTIONS):
        answer = text[: next_question.start()].strip()
        if _is_answered(answer):
            return answer
    return text


def _is_answered(text: str) -> bool:
    """Whether a text before a question is an answer, and not the opening of a solution."""
    if stated_text(text) is not None:
        return True
    is_line = "\n" not in text and len(text) <= MAX_BARE_ANSWER_CHARACTERS
    return bool(text) and is_line and text[-1] not in OPENER_END_CHARACTERS


def stated_text(text: str) -> str | None:
    """The text of the answer in the clearest form that the response has; None if it has no form."""
    return _text_of(stated(text))


def stated(text: str) -> Statement | None:
    """The answer in the clearest form that the response has; None if it has no form."""
    for read in (declared, boxed, marked, cued):
        statement = read(text)
        if statement is not None:
            return statement
    return None


def _text_of(statement: Statement | None) -> str | None:
    return None if statement is None else statement.text


def declared_text(text: str) -> str | None:
    """The text of `declared`; None without a field and tags."""
    return _text_of(declared(text))


@lru_cache(CACHED_TEXTS)
def declared(text: str) -> Statement | None:
    """The value of the last answer field of a JSON object, else the text in the last answer tags.

    The object may be in a code fence, broken or cut short, and its strings may hold LaTeX or quotes
    that are not escaped.

    Returns:
        the value, which is empty if the field is; None without a field and tags.
    """
    field = None
    for match in ANSWER_FIELD_PATTERN.finditer(text):
        field = match
    if field is None:
        return _tagged(text)
    start = field.end()
    value = _field_value(text[start : start + MAX_FIELD_CHARACTERS]).strip()
    return Statement(value, start)


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


def _tagged(text: str) -> Statement | None:
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
            return Statement(answer, start + len(opening))
    return None


def boxed_text(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}`; of `\boxed 5`, without braces, `5`."""
    return _text_of(boxed(text))


def boxed(text: str) -> Statement | None:
    """The last complete box, see `boxed_text`."""
    boxes = _last_boxes(text)
    return Statement(boxes[-1][1], boxes[-1][0]) if boxes else None


def boxed_statement(text: str) -> str | None:
    r"""The content of the last box, with that of the box before it if the text joins them.

    `\boxed{5} or \boxed{6}` states both.
    """
    boxes = _last_boxes(text)
    if not boxes:
        return None
    statement = boxes[-1][1]
    for (_, content, end), (start, _, _) in zip(boxes[-2::-1], boxes[:0:-1], strict=True):
        joint = BOX_JOINT_PATTERN.fullmatch(text, end, start)
        if joint is None:
            break
        statement = f"{content} {joint[1]} {statement}"
    return statement


@lru_cache(CACHED_TEXTS)
def _last_boxes(text: str) -> list[tuple[int, str, int]]:
    """(start, content, end) of the last complete boxes, in order."""
    boxes = []
    for box in list(BOX_PATTERN.finditer(text))[-MAX_TRIED_BOXES:]:
        content = _braced_content(text, box.end())
        if content is not None:
            boxes.append((box.start(), *content))
    return boxes


def _braced_content(text: str, start: int) -> tuple[str, int] | None:
    """The text in the braces that open at `start`, without braces the word there, and its end."""
    limit = start + MAX_BOX_CHARACTERS
    if text[start : start + 1] != "{":
        words = text[start:limit].split(maxsplit=1)
        return (words[0].strip("$.,"), start + len(words[0])) if words else None
    depth = 0
    for position in range(start, min(len(text), limit)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
        if depth == 0:
            return text[start + 1 : position], position + 1
    return None


def marked_text(text: str) -> str | None:
    """The line after the last `####`, the way GSM8K writes its answers."""
    return _text_of(marked(text))


def marked(text: str) -> Statement | None:
    """The line after the last `####`, see `marked_text`."""
    before, mark, after = text.rpartition(GSM8K_MARK)
    return Statement(after.strip().split("\n")[0], len(before) + len(mark)) if mark else None


def cued_text(text: str) -> str | None:
    """The rest of the sentence after the last "answer is", "Answer:" or "A:"."""
    return _text_of(cued(text))


@lru_cache(CACHED_TEXTS)
def cued(text: str) -> Statement | None:
    """The rest of the sentence after the last cue, see `cued_text`."""
    cue = None
    for match in CUE_PATTERN.finditer(text):
        cue = match
    if cue is None:
        return None
    return Statement(first_sentence(text[cue.end() :].lstrip()), cue.end())


def output_text(text: str) -> str | None:
    """The rest of the line after the last "the output is" or "returns", without backticks."""
    cues = list(OUTPUT_CUE_PATTERN.finditer(text))
    if not cues:
        return None
    start = cues[-1].end()
    line = text[start : start + MAX_FIELD_CHARACTERS].lstrip().split("\n")[0]
    quoted = re.match(r"`([^`]+)`", line)
    return (quoted[1] if quoted else line).strip()


def first_sentence(text: str) -> str:
    """The first sentence or line of a text that is not blank; empty if all are blank."""
    return next(_sentences(text), "")


def last_sentence(text: str) -> str:
    """The last sentence or line of a text that is not blank; empty if all are blank."""
    return ["", *_sentences(text.rstrip()[-MAX_SENTENCE_CHARACTERS:])][-1]


def _sentences(text: str) -> Iterator[str]:
    """The sentences and lines of a text that are not blank.

    The full stop of an abbreviation ends no sentence: "St. Louis", "J. R. R. Tolkien".
    """
    start = 0
    for end in SENTENCE_END_PATTERN.finditer(text):
        if end[0] == "." and _is_abbreviation(text, end.start()):
            continue
        if text[start : end.start()].strip():
            yield text[start : end.start()]
        start = end.end()
    if text[start:].strip():
        yield text[start:]


def _is_abbreviation(text: str, stop: int) -> bool:
    """Whether the full stop at position `stop` belongs to an abbreviation or an initial."""
    word_before = WORD_BEFORE_PATTERN.search(text[max(0, stop - MAX_ABBREVIATED_CHARACTERS) : stop])
    word_after = WORD_AFTER_PATTERN.match(text, stop + 1)
    if word_before is None or word_after is None:
        return False
    word = word_before["word"].lower()
    following = word_after[1]
    if word in NUMBERED_ABBREVIATIONS:
        return following[0].isdigit()
    if following.lower() in SENTENCE_STARTERS and following[0].isupper():
        return False
    if word in ABBREVIATIONS or "." in word:
        return True
    is_initial = len(word) == 1 and word_before["word"].isupper()
    before = word_before["before"]
    return is_initial and following[0].isupper() and (before is None or before[0].isupper())


# Thoughts of reasoning models. A model writes them before its answer, usually between tags. The
# chat template may open a thought itself; then the response holds only the closing tag. A thought
# that is still open at the end leaves no answer, because the response was cut short within it.

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
# Whether a response has a thought at all, roughly; DuckDB's SQL reads this pattern, too.
THOUGHT_REGEX = (
    f"(?i){OPENING_TAG_PATTERN.pattern}|{CLOSING_TAG_PATTERN.pattern}|{CHANNEL_PATTERN.pattern}"
)
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
    answer = _final_channel(response)
    # Most responses have none of the characters that a tag begins with; to look for those is quick.
    if "<" in answer or "[" in answer or "◁" in answer:
        answer = _after_thoughts(answer, OPENING_TAG_PATTERN, CLOSING_TAG_PATTERN)
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
    channels = list(CHANNEL_PATTERN.finditer(text)) if "<|" in text else []
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


# Forms that one text can have in Unicode, Markdown and LaTeX, folded into one. The paper's
# `token_f1` compares texts as they are.

QUOTES = {**dict.fromkeys(map(ord, "‘’‚‛′ʼ＇´"), "'"), **dict.fromkeys(map(ord, "“”„‟″＂«»"), '"')}
DASHES = dict.fromkeys(map(ord, "‐‑‒–—―−﹣－"), "-")
# Characters that are not visible: soft hyphens, joiners, marks of direction and of byte order.
INVISIBLE = dict.fromkeys(
    [0x00AD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF]
)
SEPARATORS = {ord("٫"): ".", ord("٬"): ",", ord("⁄"): "/", ord("∕"): "/"}
TRANSLATION = {**QUOTES, **DASHES, **INVISIBLE, **SEPARATORS}

# A run, and what a combining mark or a fraction may belong to.
OTHER_CHARACTERS_PATTERN = re.compile(r"(?:\d\s?|.)?[^\x00-\x7f]{1,200}", re.S)
SUPERSCRIPT_DIGITS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n", strict=True))
SUPERSCRIPT_PATTERN = re.compile(f"[{''.join(SUPERSCRIPT_DIGITS)}]+")
SUBSCRIPT_DIGITS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
SUBSCRIPT_PATTERN = re.compile(f"[{''.join(SUBSCRIPT_DIGITS)}]+")
OTHER_DIGIT_PATTERN = re.compile(r"(?![0-9])\d")  # of another script
# One half and the like; after a digit it is the rest of a mixed number.
VULGAR_FRACTION_PATTERN = re.compile(r"(?:(?P<integer>\d)\s?)?(?P<fraction>[¼-¾⅐-⅞])")


def unfolded_positions(text: str, positions: Sequence[int]) -> list[int]:
    """Where positions in the folded text are in the text itself.

    Args:
        text: before it was folded.
        positions: in `fold(text)`, ascending; a position inside of a run that was folded is that of
            its end, or of its start for the first of them.
    """
    if text.isascii():
        return list(positions)
    unfolded: list[int] = []
    shift = 0  # by how much the folded text is longer up to here
    for match in OTHER_CHARACTERS_PATTERN.finditer(text):
        first, last = match.span()
        folded_length = len(_fold_run(match[0]))
        if folded_length == last - first:
            continue
        while positions[len(unfolded)] < first + shift + folded_length:
            position = positions[len(unfolded)]
            if position > first + shift:  # inside of the run
                unfolded.append(last if unfolded else first)
            else:
                unfolded.append(position - shift)
            if len(unfolded) == len(positions):
                return unfolded
        shift += folded_length - (last - first)
    return unfolded + [position - shift for position in positions[len(unfolded) :]]


def fold(text: str) -> str:
    """The text with one form for each character: NFKC, plain quotes, hyphens and digits.

    Accents count. Superscripts become powers, `x^{2}`, and fractions two numbers, `1/2`.
    """
    if text.isascii():
        return text
    return OTHER_CHARACTERS_PATTERN.sub(lambda match: _fold_run(match[0]), text)


@lru_cache(maxsize=4096)  # most texts have a few such characters, and the same ones
def _fold_run(text: str) -> str:
    """Fold a run of characters that are not ASCII, with the character before it."""
    text = SUPERSCRIPT_PATTERN.sub(
        lambda match: "^{" + "".join(SUPERSCRIPT_DIGITS[digit] for digit in match[0]) + "}", text
    )
    text = SUBSCRIPT_PATTERN.sub(
        lambda match: "_{" + "".join(SUBSCRIPT_DIGITS[digit] for digit in match[0]) + "}", text
    )
    text = VULGAR_FRACTION_PATTERN.sub(_fraction, text)
    text = unicodedata.normalize("NFKC", text.translate(TRANSLATION)).translate(TRANSLATION)
    return OTHER_DIGIT_PATTERN.sub(lambda match: str(unicodedata.decimal(match[0])), text)


def _fraction(match: re.Match[str]) -> str:
    numerator, _, denominator = unicodedata.normalize("NFKC", match["fraction"]).partition("⁄")
    integer = f"{match['integer']} " if match["integer"] else ""
    return f"{integer}{numerator}/{denominator}"


# Marks around a text: **Yes**, _Yes_, `Yes`, $\text{Yes}$.
LATEX_TEXT_PATTERN = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname|emph)\s*"
    r"\{((?:[^{}]|\{[^{}]*\})*)\}"
)
EMPHASIS_PATTERN = re.compile(r"(?<![\w*])(\*{1,3}|_{1,3}|~~)(?=\S)([^*_~\n]+?)(?<=\S)\1(?![\w*])")


def without_emphasis(text: str) -> str:
    """The text without the Markdown and LaTeX marks that only change how it looks."""
    text = LATEX_TEXT_PATTERN.sub(r"\1", text)
    return EMPHASIS_PATTERN.sub(r"\2", text)
