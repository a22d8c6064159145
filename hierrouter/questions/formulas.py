r"""Read the formula that a text states as its answer, and compare formulas.

Formulas are compared by math-verify in a separate process: computer algebra is slow to import, and
on some answers it would run for ever. What math-verify gets wrong is checked first: units and bases
that differ, and, in `algebra_worker`, numbers that are both so small that it rounds them to 0.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from fractions import Fraction
from functools import cache
from pathlib import Path
from threading import Lock

from hierrouter.questions import final
from hierrouter.questions.numbers import parse_number
from hierrouter_cache.errors import WorldError

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
# A number is none of these: an inequality, plus or minus, a pair, a list, alternatives.
SEVERAL_VALUES_PATTERN = re.compile(
    r"\\(?:pm|mp|geq?|leq?|neq?|lt|gt|in|cup|cap)(?![a-zA-Z])|[<>\u2264\u2265\u2260\xb1;]"
    r"|,(?!\d{3}(?!\d))|\b(?:or|and|between)\b"
)
UNIT_PATTERN = re.compile(
    r"\d[\d.,}\s]*(?:\\[ ,;!]|~|\s)*"
    r"(?:\\(?:text|textrm|mathrm|mbox|rm)\s*\{\s*(?P<command>[a-zA-Z][a-zA-Z/ ]*?)\s*\}"
    r"|(?<=\s)(?P<word>[a-zA-Z]{1,14}))"
    r"\s*(?:\^\s*\{?(?P<power>[23])\}?)?\s*[.$]*\s*$"
)
# Long names of units, singular, and their symbols.
UNIT_SPELLINGS = {
    **dict.fromkeys(["kilometer", "kilometre"], "km"),
    **dict.fromkeys(["meter", "metre"], "m"),
    **dict.fromkeys(["centimeter", "centimetre"], "cm"),
    **dict.fromkeys(["millimeter", "millimetre"], "mm"),
    **dict.fromkeys(["kilogram", "kilogramme"], "kg"),
    **dict.fromkeys(["gram", "gramme"], "g"),
    **dict.fromkeys(["liter", "litre"], "l"),
    **dict.fromkeys(["second", "sec"], "s"),
    **dict.fromkeys(["minute", "mins"], "min"),
    **dict.fromkeys(["hour", "hr", "hrs"], "h"),
    **dict.fromkeys(["inch", "inche", "inches"], "in"),
    **dict.fromkeys(["foot", "feet"], "ft"),
    "yard": "yd",
    "mile": "mi",
    "pound": "lb",
}
BASE_PATTERN = re.compile(r"(?<![a-zA-Z])[0-9A-F]+_\{?(\d{1,2})\}?\s*[.$]*\s*$")
MAX_EXPRESSION_CHARACTERS = 1000  # longer expressions are compared as texts only


def final_expressions(text: str) -> tuple[str, ...]:
    """The readings of the expression that a text states as its answer.

    An answer field with words is read with them and without them. Without a field and a box, the
    expression is in the sentence after "answer is", else in the last sentence: its last formula or
    number if the sentence has words. If there is none, it is the sentence.
    """
    declared = final.declared_text(text)
    box = final.boxed_statement(text if declared is None else declared)
    if box is not None:
        readings = [box]
    elif declared is not None:
        readings = [declared, _last_expression(declared) or declared]
    else:
        cued = final.cued_text(text)
        last_sentence = final.last_sentence(text.strip().rstrip("."))
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


def reference_expression(text: str) -> str:
    box = final.boxed_text(text)
    return (text if box is None else box).strip().rstrip(".")


def equivalent_to_number(number: Fraction, expression: str) -> bool:
    """Whether a formula has this value; false for a range, a pair or several values.

    Raises:
        WorldError: see `Algebra.is_equivalent`.
    """
    if SEVERAL_VALUES_PATTERN.search(expression):
        return False
    return is_equivalent(str(number), expression)


def is_equivalent(reference: str, expression: str) -> bool:
    """Whether two expressions are equivalent; an equation counts by its right side.

    Raises:
        WorldError: see `Algebra.is_equivalent`.
    """
    if "=" not in reference and "," not in expression:
        # The answer is q(x) = 3x, and the reference 3x.
        expression = expression.rpartition("=")[2]
    compact_reference = without_layout(reference)
    compact_expression = without_layout(expression)
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
    if _differ(_unit(reference), _unit(expression)) or _differ(_base(reference), _base(expression)):
        return False
    return _algebra(os.getpid()).is_equivalent(reference, expression)


def _differ(left: str | None, right: str | None) -> bool:
    """Whether both are known and not the same: a unit that only one has is not asked for."""
    return left is not None and right is not None and left != right


def _unit(expression: str) -> str | None:
    """The unit after a number, in one spelling; None without one."""
    match = UNIT_PATTERN.search(expression)
    if match is None:
        return None
    unit = (match["command"] or match["word"]).strip().lower()
    unit = UNIT_SPELLINGS.get(unit, unit)
    singular = unit[:-1] if len(unit) > 2 and unit.endswith("s") else unit
    return UNIT_SPELLINGS.get(singular, singular) + (match["power"] or "")


def _base(expression: str) -> str | None:
    """The base of a number that is written with one, `413_5`; None without one."""
    match = BASE_PATTERN.search(expression)
    return match[1] if match else None


def without_layout(expression: str) -> str:
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
