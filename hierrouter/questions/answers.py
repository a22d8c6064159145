"""What a response states as its answer, and whether it is right: words, numbers, choices, formulas.

LaTeX is compared by computer algebra in a process of its own: it is slow to load, and an answer may
be made to take for ever.
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
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from threading import Lock

from hierrouter.questions import final
from hierrouter_cache.errors import WorldError
from hierrouter_cache.keys import Choices

PUNCTUATION = str.maketrans("", "", string.punctuation)


def tokens(text: str) -> list[str]:
    """Lower-case words without ASCII punctuation, articles kept (paper appendix C)."""
    return text.lower().translate(PUNCTUATION).split()


def token_f1(response: str, references: Sequence[str]) -> float:
    """Token-level F1 with multiset overlap, maximum over references (paper appendix C)."""
    return max(_f1(tokens(response), tokens(reference)) for reference in references)


def exact_match(response: str, references: Sequence[str]) -> float:
    """1 where the response, or what it states as its answer, equals a reference.

    Case, white space and outer punctuation do not count; signs, decimal points and operators do:
    -5 is not 5 and 1.5 is not 15. A reference that is a literal of Python, such as 'abc' or [1, 2],
    is compared as its value, and letters by their case.
    """
    stated = final.stated_text(response)
    said = (response, final.output_text(response) if stated is None else stated)
    return float(
        any(_matches(one, reference) for reference in references for one in said if one is not None)
    )


def plain(text: str) -> str:
    """The text without what `exact_match` does not look at."""
    return " ".join(text.lower().split()).strip(" .,;:!?\"'")


LONGEST_LITERAL = 2000  # characters
NOTHING = object()
OF_JSON = {"true": True, "false": False, "null": None}


def _matches(found: str, reference: str) -> bool:
    value = _literal(reference)
    if isinstance(value, str):
        inside = reference.strip()[1:-1]
        return found.strip() in (value, inside) or found == value or _literal(found) == value
    if isinstance(value, list | tuple | dict | set) and _literal(found) == value:
        return True
    return plain(found) == plain(reference)


def _literal(text: str) -> object:
    """The value of a literal of Python or JSON; `NOTHING` for a text that is none."""
    text = text.strip().strip("`").strip()
    if text in OF_JSON:
        return OF_JSON[text]
    if len(text) > LONGEST_LITERAL:
        return NOTHING
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return NOTHING


def _f1(response: list[str], reference: list[str]) -> float:
    shared = (Counter(response) & Counter(reference)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(response), shared / len(reference)
    return 2 * precision * recall / (precision + recall)


MINUS = dict.fromkeys(map(ord, "−–﹣－"), "-")
FRACTION = re.compile(r"\\[dtc]?frac\s*\{\s*(-?[\d.,]+)\s*\}\s*\{\s*(-?[\d.,]+)\s*\}")
LATEX = [  # what LaTeX puts into a number: separators, escapes, thin spaces
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[!,;]|(?<=\d)[\u00a0\u2009\u202f](?=\d{3})"), ""),
    (re.compile(r"\\(?=[$%])"), ""),
]
# Longer digits are no answer, and their arithmetic would take for ever.
DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,130}(?![0-9])|[0-9]{1,400})"
DECIMAL = rf"(?:{DIGITS}(?:\.[0-9]{{1,400}})?|\.[0-9]{{1,400}})"
POWER = r"(?:[eE]|\s?(?:[×xX*]|\\times|\\cdot)\s?10\s?(?:\^|\*\*)\{?)"
NUMBER = re.compile(
    r"(?<![\w^])(?<!\^\{)(?<!\d\.)"  # not inside a word, and not an exponent
    r"(?P<sign>(?<![\w)])-)?(?:[$€£](?P<inner>-)?)?"
    rf"(?:(?:(?P<whole>{DIGITS})[ ])?(?P<over>{DECIMAL})\s?/\s?(?P<under>-?{DECIMAL})"
    rf"|(?P<decimal>{DECIMAL})(?:{POWER}(?P<power>[-+]?[0-9]{{1,3}})(?![0-9])\}}?)?)"
)
PREFIX_END = re.compile(r"-[A-Za-z]")
PLAIN_END = re.compile(r"\s*%?\s*\.?\s*")


def numeric(response: str, references: Sequence[str]) -> float:
    r"""1 where the final number of the response is that of a reference.

    The response's final number stands in its answer field, in its last `\boxed`, after its last
    `####`, after its last "answer is" or "A:", or is its last number; the first of these that has a
    number counts, but a field without one is no number.
    """
    found = final_number(response)
    return float(found is not None and any(found == final_number(one) for one in references))


def final_number(text: str) -> Fraction | None:
    """The number that a text states as its answer, or None."""
    declared = final.declared_text(text)
    text = plain_digits(text if declared is None else declared)
    stated = (
        (final.boxed_text(text), _result),
        (final.marked_text(text), _first),
        (final.cued_text(text), _result),
        (text, _last if declared is None else _result),
    )
    numbers = (pick(answer) for answer, pick in stated if answer is not None)
    return next((number for number in numbers if number is not None), None)


def plain_number(text: str) -> Fraction | None:
    """The value of a text that is nothing but one number, else None."""
    text = plain_digits(text.strip().strip("$"))
    match = NUMBER.match(text)
    return _value(match) if match and PLAIN_END.fullmatch(text, match.end()) else None


def plain_digits(text: str) -> str:
    """The text with one kind of minus, and without what LaTeX puts into a number."""
    text = text.translate(MINUS)
    for pattern, instead in LATEX:
        text = pattern.sub(instead, text)
    return FRACTION.sub(r" \1/\2", text)


def _result(text: str) -> Fraction | None:
    """What the last equation gives, else the first number: "3 + 4 = 7", "7 in 2 days"."""
    _, equation, right = text.rpartition("=")
    return _first(right) if equation else _first(text)


def _first(text: str) -> Fraction | None:
    return next((value for _, value in _numbers(text)), None)


def _last(text: str) -> Fraction | None:
    # A number that begins a word ("9-digit") is no answer.
    free = [value for end, value in _numbers(text) if not PREFIX_END.match(text, end)]
    return free[-1] if free else None


def _numbers(text: str) -> Iterator[tuple[int, Fraction]]:
    for match in NUMBER.finditer(text):
        if (value := _value(match)) is not None:
            yield match.end(), value


def _value(match: re.Match[str]) -> Fraction | None:
    part = match.groupdict()
    if part["decimal"]:
        value = _fraction(part["decimal"]) * Fraction(10) ** int(part["power"] or 0)
    elif under := _fraction(part["under"]):
        value = _fraction(part["whole"] or "0") + _fraction(part["over"]) / under
    else:
        return None
    return -value if part["sign"] or part["inner"] else value


def _fraction(digits: str) -> Fraction:
    return Fraction(digits.replace(",", ""))


WRAPPERS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|rm|bf)\b\s*")
ENCLOSED = re.compile(r"(?<!\w)[*_`\"'“‘\[{($]{1,6}([A-Ja-j])[.:]?[*_`\"'”’\]})$]{1,6}(?!\w)")
MARKUP = re.compile(r"[*_`$]+")

# A label in brackets is one. A capital that is no English word is one unless it starts a name
# ("C-reactive", "D.C."). "A", "I" and small letters need to be cut off from what follows.
LABEL_END = r"(?=\s*(?:[,;:!?)]|\.(?!\w)|$))"
REASON = r"(?=\s+(?:because|since|is)\b)"
LABEL = (
    r"(?:\(([A-Ja-j])\)|([B-HJ])(?![\w'’-]|\.\w)"
    rf"|(?<!\w)([A-Ja-j]){LABEL_END}|(?<!\w)([AI]){REASON})"
)
CHOICE_CUE = (
    r"(?:\b(?:answer|option|choice)\b(?:[^\n.:=]{0,40}?\bis\b|\s*[:=–-])"
    r"|\b(?:therefore|thus|hence|so)\b,?(?:\s+it\s+is\b|\s+it's\b)?"
    r"|\b(?:it\s+is|it's|(?:must|would|should)\s+be|choose|pick|select|go\s+with)\b)"
    r"\s*(?::\s*)?(?:(?:the|option|choice|letter|answer|probably|likely|clearly)\s+){0,3}"
)
VERDICT = r"\s+is\s+(?:the\s+|most\s+|only\s+){0,2}(?:correct|right|best|answer|true)\b"
STATED = re.compile(
    rf"(?i:{CHOICE_CUE}){LABEL}"
    rf"|(?:\(([A-Ja-j])\)|(?<![\w'’-])([A-J]))(?i:{VERDICT})"
    r"|^[^\w\n]*(?:(?i:option|choice|letter|answer)[ ])?([A-Ja-j])[^\w\n]*$",
    re.M,
)
LEADING = re.compile(
    r"\s*(?:\(([A-Ja-j])\)|([A-Ja-j])(?=\s*(?:[),;:!?\n]|\.(?!\w))|\s+(?:[–-]|because|since)\s))"
    r"(?!\s*(?:is\s+(?:not|wrong|incorrect|false)|(?:and|or|,)\s+\(?[A-J])\b)"
)
# What an answer field that names a choice begins with; "A" may begin a sentence.
OPENING = re.compile(r"\s*\(?([A-Ja-j])(?:\s*[).:]|\s*$|\s+[-–])")
# What may follow a choice's text that is stated as the answer: its reason.
TEXT_END = r"(?=$|[,;:]\s|\s+(?:because|since|as)\b|\s*\()"
MARKS = " .,;:!?\"'*_`$\ufeff"
MENTION = re.compile(r"(?<!\bnot )\(([A-Ja-j])\)|^[ \t]*([A-J])[.):]", re.M)


def choice(response: str, references: Sequence[str], choices: Choices = ()) -> float:
    """1 where the label that the response states is that of a reference.

    `response`: what a model said; `references`: labels; `choices`: label and text of each choice,
    where they are known.
    """
    found = stated_label(response) or label_of_text(response, choices)
    return float(found is not None and any(found == one.strip(" ().") for one in references))


def stated_label(text: str) -> str | None:
    """The capital label that a text states as its answer, or None.

    In an answer field it is all there is, or what opens it. Elsewhere, where nothing is stated, a
    label that opens the text counts, then the only one mentioned.
    """
    declared = final.declared_text(text)
    text = _without_markup(text if declared is None else declared)
    if declared is not None and (opening := OPENING.match(text)):
        return _label(opening)
    stated = [_label(match) for match in STATED.finditer(text)]
    if stated:
        return stated[-1]
    mentioned = {_label(match) for match in MENTION.finditer(text)}
    leading = LEADING.match(text)
    if leading and not _enumerates(text):
        return _label(leading)
    return mentioned.pop() if len(mentioned) == 1 else None


def label_of_text(text: str, choices: Choices) -> str | None:
    """The label of the one choice whose text is given as the answer, or None.

    What is given is in the answer field or the last box, else after the last "answer is", where a
    reason may follow it; else it is the whole text. Case, white space and outer punctuation do not
    count.
    """
    texts = [(label, _folded(said)) for label, said in choices if _folded(said)]
    stated = final.stated_text(text)
    if stated is None:
        found = [label for label, said in texts if said == _folded(text)]
    else:
        begun = [
            (len(said), label)
            for label, said in texts
            if re.match(re.escape(said) + TEXT_END, _folded(stated))
        ]
        longest = max(begun, default=(0, ""))[0]
        found = [label for length, label in begun if length == longest]
    return found[0] if len(found) == 1 else None


def _folded(text: str) -> str:
    return " ".join(text.replace("\ufeff", "").casefold().split()).strip(MARKS)


def _without_markup(text: str) -> str:
    text = final.BOX.sub("\nanswer: ", WRAPPERS.sub("", text))
    return MARKUP.sub("", ENCLOSED.sub(r"(\1)", text))


def _enumerates(text: str) -> bool:
    """Whether lines of the text begin with several labels: the choices, said again."""
    return len({match[1] for match in re.finditer(r"^[ \t(]*([A-J])[.):]", text, re.M)}) > 1


def _label(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group).upper()


SHORT = 80  # characters: a response that is an answer and nothing else


def agreement_key(text: str) -> str:
    """What responses share that give the same final answer, in whatever words.

    That is the number or the label that they state, else the text of it; where nothing is stated
    the last number of prose, else the whole response.
    """
    said = final.stated_text(text)
    if said is None:
        number = None if len(text) <= SHORT or "```" in text else final_number(text)
        if number is not None:
            return str(number)
        said = text
    elif opening := OPENING.match(_without_markup(said)):
        said = _label(opening)
    number = plain_number(said)
    return plain(_plain(said)) if number is None else str(number)


FORMULA = re.compile(
    r"\$\$?([^$]+)\$\$?|\\\((.{1,1000}?)\\\)|\\\[(.{1,1000}?)\\\]"
    r"|(?<![\w^.,])(-?[0-9][0-9,]*(?:\.[0-9]+)?(?:/[0-9]+)?)(?![\w-])"
)
# A word, or a sign that encloses a formula: without either, a sentence is one expression.
PROSE = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2}|\$|\\[(\[]")
INDEX = re.compile(r"(?<=[_^])\{(\w)\}")
LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|[!,;:])(?![a-zA-Z])|\$|(?<!\d)\s+|\s+(?!\d)|(?<=\\)[dtc](?=frac)"
)
LONGEST_EXPRESSION = 1000  # characters; longer ones compare as texts only


def boxed(response: str, references: Sequence[str]) -> float:
    r"""1 where the final expression of the response is equivalent to that of a reference.

    The final expression stands in the answer field, else in the last `\boxed{...}`, else in the
    sentence after the last "answer is", else in the last sentence.
    """
    found = final_expressions(response)
    return float(any(_same(_reference(one), each) for one in references for each in found))


def final_expressions(text: str) -> tuple[str, ...]:
    """The expression that a text states as its answer; with words around it, also without them.

    Without a field or a box it is the sentence after "answer is", else the last one: where that has
    words, its last formula or number, and where it has neither, the words.
    """
    declared = final.declared_text(text)
    stated = final.boxed_text(text if declared is None else declared)
    if stated is not None:
        found = [stated]
    elif declared is not None:
        found = [declared, _expression(declared) or declared]
    else:
        said, last = final.cued_text(text), final.sentences(text.strip().rstrip("."))[-1]
        found = [_expression(said or "") or _expression(last) or said or last]
    return tuple(dict.fromkeys(one.strip(" \n.\"'*") for one in found))


def _expression(sentence: str) -> str | None:
    if not PROSE.search(sentence):
        return sentence
    found = [next(filter(None, match.groups())) for match in FORMULA.finditer(sentence)]
    return found[-1] if found else None


def _reference(text: str) -> str:
    stated = final.boxed_text(text)
    return (text if stated is None else stated).strip().rstrip(".")


def _same(reference: str, found: str) -> bool:
    if "=" not in reference and "," not in found:  # q(x) = 3x where 3x is asked for
        found = found.rpartition("=")[2]
    plain, other = _plain(reference), _plain(found)
    if plain == other:
        return bool(plain)
    if not plain or not other or max(len(reference), len(found)) > LONGEST_EXPRESSION:
        return False
    number, other_number = plain_number(plain), plain_number(other)
    if number is not None and other_number is not None:
        return number == other_number
    return _judge(os.getpid()).equivalent(reference, found)


def _plain(expression: str) -> str:
    """The expression without what only changes its looks."""
    return INDEX.sub(r"\1", LAYOUT.sub("", expression))


@cache
def _judge(process: int) -> Judge:
    """The judge of this process: one that was inherited by a fork would be asked by two."""
    return Judge()


# How a worker ends by an answer: its processor time is up, or its stack.
TOO_MUCH = (-signal.SIGPROF, -signal.SIGSEGV)
WORKER = Path(__file__).with_name("judge_worker.py")


class Judge:
    """Asks one worker process, started at the first question; safe to use from threads."""

    def __init__(self, worker: Path = WORKER) -> None:
        self._worker = worker
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()

    def equivalent(self, reference: str, found: str) -> bool:
        """Whether `found` is equivalent to `reference`; false where that cannot be told.

        Raises WorldError: the worker does not start, or was ended from outside.
        """
        with self._lock:
            # Held again only after an answer: one that was interrupted would answer late.
            process, self._process = self._process or self._started(), None
            if answer := _ask(process, json.dumps([reference, found])):
                self._process = process
                return answer == "1"
            if (ended := process.wait()) not in TOO_MUCH:
                raise WorldError(f"scorer boxed was ended from outside: {ended}; run it again")
            return False

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(  # noqa: S603 - our own file, no shell
            [sys.executable, "-P", str(self._worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
            start_new_session=True,  # a Ctrl-C is not meant for it
        )
        # Without this a worker that never runs would pass for wrong answers.
        if not _ask(process, json.dumps(["x", "x"])):
            raise WorldError(
                f"scorer boxed does not start: {self._worker}; is math-verify installed for "
                f"{sys.executable}?"
            )
        return process


def _ask(process: subprocess.Popen[str], question: str) -> str:
    """The worker's line; empty where it has ended."""
    assert process.stdin and process.stdout
    try:
        process.stdin.write(question + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    return process.stdout.readline().strip()
