r"""Scorers: read the answer of a response, and compare it with the reference answers.

`hierrouter.questions.final` finds the text that a response states as its answer. This module reads
that text as words (`token_f1`, `exact_match`), a number (`numeric`), the label of a choice
(`choice`) or a formula (`boxed`). Each scorer takes a response and references and returns a
quality from 0 to 1; `hierrouter.questions.scoring` lists the scorers by name.

Formulas are compared by math-verify in a separate process: computer algebra is slow to import, and
on some answers it would run for ever.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import string
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from threading import Lock

from hierrouter.questions import final
from hierrouter_cache.errors import WorldError
from hierrouter_cache.keys import Choices

# Words: `token_f1` and `exact_match`.

ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)


def token_f1(response: str, references: Sequence[str]) -> float:
    """Token-level F1 with multiset overlap, the maximum over the references.

    Source: paper, appendix C.
    """
    return max(_f1(tokens(response), tokens(reference)) for reference in references)


def tokens(text: str) -> list[str]:
    """The lower-case words of a text without ASCII punctuation; articles are kept.

    Source: paper, appendix C.
    """
    return text.lower().translate(ASCII_PUNCTUATION).split()


def _f1(response: list[str], reference: list[str]) -> float:
    common = (Counter(response) & Counter(reference)).total()
    if not common:
        return 0.0
    precision = common / len(response)
    recall = common / len(reference)
    return 2 * precision * recall / (precision + recall)


def exact_match(response: str, references: Sequence[str]) -> float:
    """1 if the response, or the answer that it states, equals a reference, else 0.

    Case, white space and outer punctuation do not count. Signs, decimal points and operators do:
    -5 is not 5, and 1.5 is not 15. A reference that is a Python literal, such as 'abc' or [1, 2],
    is compared by its value, and then case counts.
    """
    stated = final.stated_text(response)
    if stated is None:
        stated = final.output_text(response)
    answers = [response] if stated is None else [response, stated]
    return float(
        any(_is_match(answer, reference) for reference in references for answer in answers)
    )


MAX_LITERAL_CHARACTERS = 2000
JSON_LITERALS = {"true": True, "false": False, "null": None}
NO_LITERAL = object()  # None is the value of a literal


def _is_match(answer: str, reference: str) -> bool:
    value = _literal_value(reference)
    if isinstance(value, str):
        # The reference is in quotes; the answer may have them or not.
        unquoted = reference.strip()[1:-1]
        return (
            answer.strip() in (value, unquoted)
            or answer == value
            or _literal_value(answer) == value
        )
    if isinstance(value, list | tuple | dict | set) and _literal_value(answer) == value:
        return True
    return normalized_text(answer) == normalized_text(reference)


def _literal_value(text: str) -> object:
    """The value of a Python or JSON literal; `NO_LITERAL` if the text is something else."""
    text = text.strip().strip("`").strip()
    if text in JSON_LITERALS:
        return JSON_LITERALS[text]
    if len(text) > MAX_LITERAL_CHARACTERS:
        return NO_LITERAL
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return NO_LITERAL


def normalized_text(text: str) -> str:
    """The text in lower case, with single spaces and without outer punctuation."""
    return " ".join(text.lower().split()).strip(" .,;:!?\"'")


# Numbers: `numeric`.

MINUS_SIGNS = dict.fromkeys(map(ord, "−–﹣－"), "-")
LATEX_FRACTION_PATTERN = re.compile(r"\\[dtc]?frac\s*\{\s*(-?[\d.,]+)\s*\}\s*\{\s*(-?[\d.,]+)\s*\}")
# (pattern, replacement) of the marks within a number: separators, thin spaces, escapes.
NUMBER_MARKUP = [
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[!,;]|(?<=\d)[\u00a0\u2009\u202f](?=\d{3})"), ""),
    (re.compile(r"\\(?=[$%])"), ""),
]
# The lengths are bounded: longer digits are no answer, and arithmetic on them would run for ever.
INTEGER_REGEX = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,130}(?![0-9])|[0-9]{1,400})"
DECIMAL_REGEX = rf"(?:{INTEGER_REGEX}(?:\.[0-9]{{1,400}})?|\.[0-9]{{1,400}})"
TIMES_TEN_REGEX = r"(?:[eE]|\s?(?:[×xX*]|\\times|\\cdot)\s?10\s?(?:\^|\*\*)\{?)"
NUMBER_PATTERN = re.compile(
    r"(?<![\w^])(?<!\^\{)(?<!\d\.)"  # not inside a word, and not an exponent
    r"(?P<sign>(?<![\w)])-)?(?:[$€£](?P<inner_sign>-)?)?"  # -$5 and $-5
    # A fraction or a mixed number, such as 2 1/3,
    rf"(?:(?:(?P<integer>{INTEGER_REGEX})[ ])?"
    rf"(?P<numerator>{DECIMAL_REGEX})\s?/\s?(?P<denominator>-?{DECIMAL_REGEX})"
    # or a decimal, perhaps times a power of ten.
    rf"|(?P<decimal>{DECIMAL_REGEX})"
    rf"(?:{TIMES_TEN_REGEX}(?P<exponent>[-+]?[0-9]{{1,3}})(?![0-9])\}}?)?)"
)
COMPOUND_WORD_PATTERN = re.compile(r"-[A-Za-z]")  # "-digit" of "9-digit"
AFTER_NUMBER_PATTERN = re.compile(r"\s*%?\s*\.?\s*")  # what may follow in a text of one number


def numeric(response: str, references: Sequence[str]) -> float:
    r"""1 if the final number of the response is that of a reference, else 0.

    The final number is in the answer field of the response, in its last `\boxed`, after its last
    `####`, after its last "answer is" or "A:", or it is its last number. The first of these that
    has a number counts. But if there is an answer field, nothing outside it counts.
    """
    number = final_number(response)
    if number is None:
        return 0.0
    return float(any(number == final_number(reference) for reference in references))


def final_number(text: str) -> Fraction | None:
    """The number that a text states as its answer; None if there is none."""
    declared = final.declared_text(text)
    text = normalize_digits(text if declared is None else declared)
    forms: tuple[tuple[Callable[[str], str | None], Callable[[str], Fraction | None]], ...] = (
        (final.boxed_text, _result_number),
        (final.marked_text, _first_number),
        (final.cued_text, _result_number),
    )
    for read, pick in forms:
        answer = read(text)
        number = None if answer is None else pick(answer)
        if number is not None:
            return number
    return _last_number(text) if declared is None else _result_number(text)


def parse_number(text: str) -> Fraction | None:
    """The value of a text that is one number and nothing else; None for any other text."""
    text = normalize_digits(text.strip().strip("$"))
    match = NUMBER_PATTERN.match(text)
    if match is None or not AFTER_NUMBER_PATTERN.fullmatch(text, match.end()):
        return None
    return _number_value(match)


def normalize_digits(text: str) -> str:
    r"""The text with plain minus signs, and with `1/2` instead of `\frac{1}{2}`."""
    text = text.translate(MINUS_SIGNS)
    for pattern, replacement in NUMBER_MARKUP:
        text = pattern.sub(replacement, text)
    return LATEX_FRACTION_PATTERN.sub(r" \1/\2", text)


def _result_number(text: str) -> Fraction | None:
    """The right side of the last equation, "3 + 4 = 7", else the first number, "7 in 2 days"."""
    _, equals_sign, right_side = text.rpartition("=")
    return _first_number(right_side) if equals_sign else _first_number(text)


def _first_number(text: str) -> Fraction | None:
    return next((value for _, value in _numbers(text)), None)


def _last_number(text: str) -> Fraction | None:
    # A number that begins a word, as in "9-digit", is no answer.
    values = [value for end, value in _numbers(text) if not COMPOUND_WORD_PATTERN.match(text, end)]
    return values[-1] if values else None


def _numbers(text: str) -> Iterator[tuple[int, Fraction]]:
    """(end position, value) of each number of a text."""
    for match in NUMBER_PATTERN.finditer(text):
        value = _number_value(match)
        if value is not None:
            yield match.end(), value


def _number_value(match: re.Match[str]) -> Fraction | None:
    """The value of a match of `NUMBER_PATTERN`; None if its denominator is 0."""
    parts = match.groupdict()
    if parts["decimal"]:
        value = _fraction(parts["decimal"]) * Fraction(10) ** int(parts["exponent"] or 0)
    else:
        denominator = _fraction(parts["denominator"])
        if not denominator:
            return None
        value = _fraction(parts["integer"] or "0") + _fraction(parts["numerator"]) / denominator
    return -value if parts["sign"] or parts["inner_sign"] else value


def _fraction(digits: str) -> Fraction:
    return Fraction(digits.replace(",", ""))


# Labels of choices: `choice`.

LATEX_FONT_PATTERN = re.compile(r"\\(?:text|textbf|mathrm|mathbf|rm|bf)\b\s*")
MARKED_LABEL_PATTERN = re.compile(  # **B**, "B.", [b]
    r"(?<!\w)[*_`\"'“‘\[{($]{1,6}([A-Ja-j])[.:]?[*_`\"'”’\]})$]{1,6}(?!\w)"
)
MARKUP_PATTERN = re.compile(r"[*_`$]+")

# A letter is a label if it is in brackets. A capital that is no English word is a label unless it
# begins a name ("C-reactive", "D.C."). "A", "I" and small letters are labels only if something
# separates them from the words that follow.
LABEL_END_REGEX = r"(?=\s*(?:[,;:!?)]|\.(?!\w)|$))"
REASON_REGEX = r"(?=\s+(?:because|since|is)\b)"
LABEL_REGEX = (
    r"(?:\(([A-Ja-j])\)|([B-HJ])(?![\w'’-]|\.\w)"
    rf"|(?<!\w)([A-Ja-j]){LABEL_END_REGEX}|(?<!\w)([AI]){REASON_REGEX})"
)
CHOICE_CUE_REGEX = (
    r"(?:\b(?:answer|option|choice)\b(?:[^\n.:=]{0,40}?\bis\b|\s*[:=–-])"
    r"|\b(?:therefore|thus|hence|so)\b,?(?:\s+it\s+is\b|\s+it's\b)?"
    r"|\b(?:it\s+is|it's|(?:must|would|should)\s+be|choose|pick|select|go\s+with)\b)"
    r"\s*(?::\s*)?(?:(?:the|option|choice|letter|answer|probably|likely|clearly)\s+){0,3}"
)
VERDICT_REGEX = r"\s+is\s+(?:the\s+|most\s+|only\s+){0,2}(?:correct|right|best|answer|true)\b"
STATED_LABEL_PATTERN = re.compile(
    # "the answer is B", "B is correct", or a line with nothing but a label
    rf"(?i:{CHOICE_CUE_REGEX}){LABEL_REGEX}"
    rf"|(?:\(([A-Ja-j])\)|(?<![\w'’-])([A-J]))(?i:{VERDICT_REGEX})"
    r"|^[^\w\n]*(?:(?i:option|choice|letter|answer)[ ])?([A-Ja-j])[^\w\n]*$",
    re.M,
)
# A label at the beginning of a response, unless the response rejects it or lists several.
LEADING_LABEL_PATTERN = re.compile(
    r"\s*(?:\(([A-Ja-j])\)|([A-Ja-j])(?=\s*(?:[),;:!?\n]|\.(?!\w))|\s+(?:[–-]|because|since)\s))"
    r"(?!\s*(?:is\s+(?:not|wrong|incorrect|false)|(?:and|or|,)\s+\(?[A-J])\b)"
)
# A label at the beginning of an answer field. "A" may begin a sentence there.
FIELD_LABEL_PATTERN = re.compile(r"\s*\(?([A-Ja-j])(?:\s*[).:]|\s*$|\s+[-–])")
MENTIONED_LABEL_PATTERN = re.compile(r"(?<!\bnot )\(([A-Ja-j])\)|^[ \t]*([A-J])[.):]", re.M)
LISTED_LABEL_PATTERN = re.compile(r"^[ \t(]*([A-J])[.):]", re.M)
# A choice that is stated by its text may be followed by a reason.
CHOICE_TEXT_END_REGEX = r"(?=$|[,;:]\s|\s+(?:because|since|as)\b|\s*\()"
OUTER_MARKS = " .,;:!?\"'*_`$\ufeff"


def choice(response: str, references: Sequence[str], choices: Choices = ()) -> float:
    """1 if the response states the label of a reference, or the text of that choice, else 0.

    Args:
        response: text of a model.
        references: labels, A to J.
        choices: label and text of each choice, if they are known.
    """
    label = stated_label(response) or label_of_text(response, choices)
    if label is None:
        return 0.0
    return float(any(label == reference.strip(" ().") for reference in references))


def stated_label(text: str) -> str | None:
    """The label that a text states as its answer, as a capital; None if there is none.

    In an answer field, the label is at the beginning. Elsewhere the last statement counts, such as
    "the answer is B" or "B is correct". Without a statement it is a label that begins the text,
    else the only label that the text mentions.
    """
    declared = final.declared_text(text)
    text = _without_markup(text if declared is None else declared)
    if declared is not None:
        field_label = FIELD_LABEL_PATTERN.match(text)
        if field_label:
            return _label(field_label)
    statements = list(STATED_LABEL_PATTERN.finditer(text))
    if statements:
        return _label(statements[-1])
    leading_label = LEADING_LABEL_PATTERN.match(text)
    if leading_label and not _lists_choices(text):
        return _label(leading_label)
    mentioned = {_label(match) for match in MENTIONED_LABEL_PATTERN.finditer(text)}
    return mentioned.pop() if len(mentioned) == 1 else None


def label_of_text(text: str, choices: Choices) -> str | None:
    """The label of the choice whose text is given as the answer; None if it is not exactly one.

    The answer is in the answer field or the last box, else after the last "answer is", where a
    reason may follow it; else it is the complete text. Case, white space and outer punctuation do
    not count.
    """
    folded_choices = [(label, _folded(choice_text)) for label, choice_text in choices]
    folded_choices = [(label, folded) for label, folded in folded_choices if folded]
    stated = final.stated_text(text)
    if stated is None:
        labels = [label for label, folded in folded_choices if folded == _folded(text)]
    else:
        answer = _folded(stated)
        matches = [
            (len(folded), label)
            for label, folded in folded_choices
            if re.match(re.escape(folded) + CHOICE_TEXT_END_REGEX, answer)
        ]
        # One choice may begin like another: "red", "red, then blue". The longest one is meant.
        longest = max((length for length, _ in matches), default=0)
        labels = [label for length, label in matches if length == longest]
    return labels[0] if len(labels) == 1 else None


def _folded(text: str) -> str:
    return " ".join(text.replace("\ufeff", "").casefold().split()).strip(OUTER_MARKS)


def _without_markup(text: str) -> str:
    """The text without LaTeX fonts and Markdown; a box becomes a line that states the answer."""
    text = final.BOX_PATTERN.sub("\nanswer: ", LATEX_FONT_PATTERN.sub("", text))
    return MARKUP_PATTERN.sub("", MARKED_LABEL_PATTERN.sub(r"(\1)", text))


def _lists_choices(text: str) -> bool:
    """Whether lines of the text begin with different labels: it repeats the choices."""
    return len({match[1] for match in LISTED_LABEL_PATTERN.finditer(text)}) > 1


def _label(match: re.Match[str]) -> str:
    """The label of a match, as a capital: its only group that is not empty."""
    return next(group for group in match.groups() if group).upper()


# Agreement of responses, without references.

# A response of this length at most is an answer and nothing else: its last number is not taken out.
MAX_BARE_ANSWER_CHARACTERS = 80


def agreement_key(text: str) -> str:
    """The final answer of a response in a normal form.

    Two responses agree if their keys are equal, in whatever words they give the answer. The key is
    the number or the label that the response states, else the text of the answer. If nothing is
    stated, it is the last number of prose, else the complete response.
    """
    answer = final.stated_text(text)
    if answer is None:
        is_prose = len(text) > MAX_BARE_ANSWER_CHARACTERS and "```" not in text
        number = final_number(text) if is_prose else None
        if number is not None:
            return str(number)
        answer = text
    else:
        label = FIELD_LABEL_PATTERN.match(_without_markup(answer))
        if label:
            answer = _label(label)
    number = parse_number(answer)
    return normalized_text(_without_layout(answer)) if number is None else str(number)


# Formulas: `boxed`.

FORMULA_PATTERN = re.compile(
    r"\$\$?([^$]+)\$\$?|\\\((.{1,1000}?)\\\)|\\\[(.{1,1000}?)\\\]"
    r"|(?<![\w^.,])(-?[0-9][0-9,]*(?:\.[0-9]+)?(?:/[0-9]+)?)(?![\w-])"
)
# A word, or a sign that encloses a formula. A sentence without them is one expression.
PROSE_PATTERN = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2}|\$|\\[(\[]")
BRACED_INDEX_PATTERN = re.compile(r"(?<=[_^])\{(\w)\}")  # x_{1}, which is x_1
LAYOUT_PATTERN = re.compile(
    r"\\(?:left|right|displaystyle|[!,;:])(?![a-zA-Z])|\$|(?<!\d)\s+|\s+(?!\d)|(?<=\\)[dtc](?=frac)"
)
MAX_EXPRESSION_CHARACTERS = 1000  # longer expressions are compared as texts only


def boxed(response: str, references: Sequence[str]) -> float:
    r"""1 if the final expression of the response is equivalent to that of a reference, else 0.

    The final expression is in the answer field, else in the last `\boxed{...}`, else in the
    sentence after the last "answer is", else in the last sentence.

    Raises:
        WorldError: math-verify does not start, or its process was killed.
    """
    expressions = final_expressions(response)
    return float(
        any(
            _is_equivalent(_reference_expression(reference), expression)
            for reference in references
            for expression in expressions
        )
    )


def final_expressions(text: str) -> tuple[str, ...]:
    """The readings of the expression that a text states as its answer.

    An answer field with words is read with them and without them. Without a field and a box, the
    expression is in the sentence after "answer is", else in the last sentence: its last formula or
    number if the sentence has words. If there is none, it is the sentence.
    """
    declared = final.declared_text(text)
    box = final.boxed_text(text if declared is None else declared)
    if box is not None:
        readings = [box]
    elif declared is not None:
        readings = [declared, _last_expression(declared) or declared]
    else:
        cued = final.cued_text(text)
        last_sentence = final.sentences(text.strip().rstrip("."))[-1]
        expression = _last_expression(cued or "") or _last_expression(last_sentence)
        readings = [expression or cued or last_sentence]
    return tuple(dict.fromkeys(reading.strip(" \n.\"'*") for reading in readings))


def _last_expression(sentence: str) -> str | None:
    """The sentence if it has no words, else its last formula or number."""
    if not PROSE_PATTERN.search(sentence):
        return sentence
    matches = list(FORMULA_PATTERN.finditer(sentence))
    if not matches:
        return None
    return next(group for group in matches[-1].groups() if group)


def _reference_expression(text: str) -> str:
    box = final.boxed_text(text)
    return (text if box is None else box).strip().rstrip(".")


def _is_equivalent(reference: str, expression: str) -> bool:
    if "=" not in reference and "," not in expression:
        # The answer is q(x) = 3x, and the reference 3x.
        expression = expression.rpartition("=")[2]
    compact_reference = _without_layout(reference)
    compact_expression = _without_layout(expression)
    if compact_reference == compact_expression:
        return bool(compact_reference)
    if not compact_reference or not compact_expression:
        return False
    if max(len(reference), len(expression)) > MAX_EXPRESSION_CHARACTERS:
        return False
    # Most expressions are numbers, which need no computer algebra.
    reference_number = parse_number(compact_reference)
    number = parse_number(compact_expression)
    if reference_number is not None and number is not None:
        return reference_number == number
    return _algebra(os.getpid()).is_equivalent(reference, expression)


def _without_layout(expression: str) -> str:
    """The expression without the spaces and commands that only change how it looks."""
    return BRACED_INDEX_PATTERN.sub(r"\1", LAYOUT_PATTERN.sub("", expression))


@cache
def _algebra(process_id: int) -> Algebra:
    """The worker of this process; a fork must not share the pipes of its parent's worker."""
    return Algebra()


# Signals that end a worker because of the answer: its processor time or its stack is used up.
ANSWER_SIGNALS = (-signal.SIGPROF, -signal.SIGSEGV)
WORKER_FILE = Path(__file__).with_name("algebra_worker.py")


class Algebra:
    """A worker process that compares LaTeX expressions; it starts at the first question.

    Safe to use from several threads.
    """

    def __init__(self, worker_file: Path = WORKER_FILE) -> None:
        """Start nothing yet.

        Args:
            worker_file: a program that reads pairs of expressions as JSON lines, and writes `1` or
                `0` for each.
        """
        self._worker_file = worker_file
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()

    def is_equivalent(self, reference: str, expression: str) -> bool:
        """Whether two expressions are equivalent; false if that cannot be decided.

        Raises:
            WorldError: the worker does not start, or was killed by something else.
        """
        with self._lock:
            process = self._process or self._start()
            # The process is kept only after it has answered. If this call is interrupted, the
            # answer would come later and be taken for that of the next question.
            self._process = None
            answer = _ask(process, json.dumps([reference, expression]))
            if answer:
                self._process = process
                return answer == "1"
            exit_status = process.wait()
            if exit_status not in ANSWER_SIGNALS:
                raise WorldError(
                    f"scorer boxed was ended from outside: {exit_status}; run it again"
                )
            return False

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(  # noqa: S603 - our own file, no shell
            [sys.executable, "-P", str(self._worker_file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
            start_new_session=True,  # Ctrl-C must not end it
        )
        # Without this question, a worker that never runs would look like wrong answers.
        if not _ask(process, json.dumps(["x", "x"])):
            raise WorldError(
                f"scorer boxed does not start: {self._worker_file}; is math-verify installed for "
                f"{sys.executable}?"
            )
        return process


def _ask(process: subprocess.Popen[str], question: str) -> str:
    """The line that the worker answers; empty if it has ended."""
    assert process.stdin and process.stdout
    try:
        process.stdin.write(question + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    return process.stdout.readline().strip()
