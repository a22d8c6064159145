r"""What a scorer read of a response: where the answer stands, and what type it has.

A score says how good an answer is, not which answer that was. So the span of the response and the
type are stored beside the score, for people who ask why (`hierrouter explain`, `cache sql`).

The types are number, expression, set, interval, label, labels, text and code; `none` if the
response states no answer, or two different ones. An answer that is written in another way than it
is read, such as a label by the text of its choice, has the span of what is written.

Spans are found again in the response after it was read: the texts that were compared are folded,
without markup. `token_f1` reads no answer, and a user's own scorer reads by its own rules, so
neither has a reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hierrouter.questions import final
from hierrouter.questions.formulas import final_expressions
from hierrouter.questions.labels import label_of_text, labels_of_reference, stated_labels
from hierrouter.questions.numbers import parse_number, position_of_number, read_number
from hierrouter_cache.keys import Choices

NUMBER = "number"
EXPRESSION = "expression"
SET = "set"
INTERVAL = "interval"
LABEL = "label"
LABELS = "labels"
TEXT = "text"
CODE = "code"
NO_ANSWER = "none"

# `[0, 1)`, `(-\infty, 3]`: brackets of two kinds, or an end that is no number.
INTERVAL_PATTERN = re.compile(r"(?:\\left)?[\[(].+,.+[\])]\.?$")
MIXED_BRACKETS_PATTERN = re.compile(r"\[.*\)|\(.*\]|\[.*\]|\\infty|\\cup")
SET_PATTERN = re.compile(r"(?:\\left)?\\\{.*\\\}$|\{.*\}$")
# A list of values without brackets; `1,000` is one number.
LIST_PATTERN = re.compile(r"[^()\[\]]+,(?!\d{3}(?!\d))[^()\[\]]+$")
CODE_PATTERN = re.compile(r"```|^\s*(?:def |class |import |from \w+ import )", re.M)
MAX_PROSE_CHARACTERS = 4000  # from the end; of a text without a statement
MAX_TRIED_LETTERS = 200  # from the end, in search of a label
MAX_SHAPE_CHARACTERS = 1000  # of an expression whose shape is looked at


@dataclass(frozen=True)
class Reading:
    """The answer that was read in a response.

    Attributes:
        kind: its type, such as `NUMBER`; `NO_ANSWER` if there is none.
        start: position of its first character in the response; None if there is none.
        end: position after its last character.
    """

    kind: str
    start: int | None = None
    end: int | None = None

    def moved(self, offset: int) -> Reading:
        """The same in a text that has this many characters more before it."""
        if self.start is None or self.end is None:
            return self
        return replace(self, start=self.start + offset, end=self.end + offset)


NOTHING_READ = Reading(NO_ANSWER)


@dataclass(frozen=True)
class _Answer:
    """An answer before it is looked up in the response.

    Attributes:
        kind: its type.
        text: what was read, in the readable text.
        start: from where on it is looked for; -1 to take its last occurrence.
    """

    kind: str
    text: str
    start: int = -1


def read_answer(
    scorer: str, response: str, references: Sequence[str], choices: Choices = ()
) -> Reading:
    """Find what a built-in scorer reads of a response.

    Args:
        scorer: a key of `READERS`.
        response: text of a model.
        references: reference answers.
        choices: label and text of each choice.

    Returns:
        the type of the answer, and its span in the response.
    """
    text = final.readable_text(response)
    if not text.strip():
        return NOTHING_READ
    answer = READERS[scorer](text, references, choices)
    if answer is None:
        return NOTHING_READ
    start = text.find(answer.text, answer.start) if answer.start >= 0 else -1
    if start < 0:
        start = text.rfind(answer.text)
    end = start + len(answer.text)
    if start < 0:  # it has escapes or markup there that were not read: take the line
        start = max(answer.start, 0)
        line_end = text.find("\n", start + 1)
        end = len(text) if line_end < 0 else line_end
    part = final.readable_part(response)
    start, end = final.unfolded_positions(part.text, (start, end))
    return Reading(answer.kind, part.start + start, part.start + end)


def _read_number(text: str, references: Sequence[str], choices: Choices) -> _Answer | None:
    reading = read_number(text)
    if reading.is_formula:
        return _read_formula(text, references, choices)
    if reading.value is None:
        return None
    statement = reading.text.strip()
    start = _start_of(text, statement)
    written = position_of_number(statement, reading.value)
    if written is not None:
        # A statement may have another number before: look behind that.
        position = text.find(statement, start) if start >= 0 else text.rfind(statement)
        return _Answer(NUMBER, statement[slice(*written)], max(position, 0) + written[0])
    if start < 0:
        # In prose the last sentence with a number counts, which need not be the last one.
        tail = max(0, len(text) - MAX_PROSE_CHARACTERS)
        written = position_of_number(text[tail:], reading.value)
        if written is not None:
            first, last = written
            return _Answer(NUMBER, text[tail + first : tail + last], tail + first)
    return _Answer(NUMBER, statement, start)


def _start_of(text: str, statement: str) -> int:
    """Position in a text from where on a statement stands; -1 if no form introduces it."""
    for find in (final.declared, final.boxed, final.marked, final.cued):
        form = find(text)
        if form is not None and (statement in form.text or form.text.strip() in statement):
            return form.start
    return -1


def _read_labels(text: str, references: Sequence[str], choices: Choices) -> _Answer | None:
    labels = sorted(stated_labels(text, choices))
    if not labels:
        if label_of_text(text, choices) is None:
            return None
        stated = final.stated(text)
        if stated is None:
            return _Answer(LABEL, text.strip())
        return _Answer(LABEL, stated.text.strip(), stated.start)
    form = final.declared(text) or final.boxed(text)
    start = 0 if form is None else form.start
    kind = LABEL if len(labels) == 1 else LABELS
    if kind == LABELS and not any(map(labels_of_reference, references)):
        kind = NO_ANSWER  # two answers to a question that has one
    spans = [_span_of_label(text, label, start) for label in labels]
    first = min(span[0] for span in spans)
    last = max(span[1] for span in spans)
    if len(labels) > 1 and text[first - 1 : first] == "(" and text[last : last + 1] == ")":
        first -= 1
        last += 1
    return _Answer(kind, text[first:last], first)


def _span_of_label(text: str, label: str, start: int) -> tuple[int, int]:
    """Span of a label behind the words that introduce it, else of its last occurrence."""
    position = text.find(label, start) if start else -1
    if position >= 0 and _is_separate(text, position):
        return position, position + 1
    for written in (label, label.lower()):
        position = len(text)
        for _ in range(MAX_TRIED_LETTERS):
            position = text.rfind(written, 0, position)
            if position < 0:
                break
            if _is_separate(text, position):
                return position, position + 1
    return start, start


def _is_separate(text: str, position: int) -> bool:
    """Whether the letter at a position is no part of a word."""
    before = text[position - 1 : position] if position else ""
    return not before.isalnum() and not text[position + 1 : position + 2].isalnum()


def _read_formula(text: str, references: Sequence[str], choices: Choices) -> _Answer | None:
    expression = final_expressions(text)[-1]
    if not expression:
        return None
    return _Answer(kind_of_expression(expression), expression, _start_of(text, expression))


def kind_of_expression(expression: str) -> str:
    """The type of an expression by its shape: number, interval, set, or just an expression."""
    if parse_number(expression) is not None:
        return NUMBER
    shape = expression[:MAX_SHAPE_CHARACTERS].strip().strip("$ ")
    if INTERVAL_PATTERN.match(shape) and MIXED_BRACKETS_PATTERN.search(shape):
        return INTERVAL
    if SET_PATTERN.match(shape) or LIST_PATTERN.match(shape):
        return SET
    return EXPRESSION


def _read_text(text: str, references: Sequence[str], choices: Choices) -> _Answer | None:
    statement = final.stated(text)
    is_code = any(CODE_PATTERN.search(reference) for reference in references)
    if statement is None:
        output = final.output_text(text)
        answer = text.strip() if output is None or is_code else output
        return _Answer(CODE if is_code else TEXT, answer)
    return _Answer(CODE if is_code else TEXT, statement.text.strip(), statement.start)


Reader = Callable[[str, Sequence[str], Choices], _Answer | None]
# By the name of a scorer.
READERS: dict[str, Reader] = {
    "numeric": _read_number,
    "choice": _read_labels,
    "boxed": _read_formula,
    "exact_match": _read_text,
}
