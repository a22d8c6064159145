"""What a response states as its answer, and whether it is right: words, numbers, choices, formulas.

LaTeX is compared by computer algebra in a process of its own: it is slow to load, and an answer may
be made to take for ever.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from threading import Lock

from hierrouter_cache.errors import WorldError
from hierrouter_cache.keys import Choices

PUNCTUATION = re.compile(r"[^\w\s]")


def tokens(text: str) -> list[str]:
    """Lower-case words, punctuation replaced by a blank (paper appendix C)."""
    return PUNCTUATION.sub(" ", text.lower()).split()


def token_f1(response: str, references: Sequence[str]) -> float:
    """Token-level F1 with multiset overlap, maximum over references (paper appendix C)."""
    return max(_f1(tokens(response), tokens(reference)) for reference in references)


def exact_match(response: str, references: Sequence[str]) -> float:
    """1 where the response equals a reference but for case, white space and outer punctuation.

    Signs, decimal points and operators count: -5 is not 5 and 1.5 is not 15.
    """
    found = plain(response)
    return float(any(found == plain(reference) for reference in references))


def plain(text: str) -> str:
    """The text without what `exact_match` does not look at."""
    return " ".join(text.lower().split()).strip(" .,;:!?\"'")


def _f1(response: list[str], reference: list[str]) -> float:
    shared = (Counter(response) & Counter(reference)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(response), shared / len(reference)
    return 2 * precision * recall / (precision + recall)


BOX = re.compile(r"\\(?:boxed|fbox)\b\s*")
BOXES = 8  # so many are tried, the last ones; a response cut short may have open ones
LONGEST_BOX = 2000  # characters
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
    for position in range(start, min(len(text), start + LONGEST_BOX)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + 1 : position]
    return None


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

    The response's final number stands in its last `\boxed`, after its last `####`, after its last
    "answer is" or "A:", or is its last number; the first of these that has a number counts.
    """
    found = final_number(response)
    return float(found is not None and any(found == final_number(one) for one in references))


def final_number(text: str) -> Fraction | None:
    """The number that a text states as its answer, or None."""
    text = plain_digits(text)
    stated = (
        (boxed_text(text), _result),
        (marked_text(text), _first),
        (cued_text(text), _result),
        (text, _last),
    )
    for answer, pick in stated:
        if answer is not None and (number := pick(answer)) is not None:
            return number
    return None


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
        value = _value(match)
        if value is not None:
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
# What may follow a choice's text that is stated as the answer: its reason.
TEXT_END = r"(?=$|[,;:]\s|\s+(?:because|since|as)\b|\s*\()"
MARKS = " .,;:!?\"'*_`$\ufeff"
MENTION = re.compile(r"(?<!\bnot )\(([A-Ja-j])\)|^[ \t]*([A-J])[.):]", re.M)


def choice(response: str, references: Sequence[str], choices: Choices = ()) -> float:
    """1 where the label that the response states is that of a reference.

    Args:
        response: what a model said.
        references: labels.
        choices: label and text of each choice, where they are known.
    """
    found = stated_label(response) or label_of_text(response, choices)
    return float(found is not None and any(found == one.strip(" ().") for one in references))


def stated_label(text: str) -> str | None:
    """The capital label that a text states as its answer, or None.

    Where nothing is stated, a label that opens the text counts, then the only one mentioned.
    """
    text = _without_markup(text)
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

    What is given is in the last box, else after the last "answer is", where a reason may follow
    it; else it is the whole text. Case, white space and outer punctuation do not count.
    """
    texts = [(label, _folded(said)) for label, said in choices if _folded(said)]
    stated = boxed_text(text) or cued_text(text)
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
    text = BOX.sub("\nanswer: ", WRAPPERS.sub("", text))
    return MARKUP.sub("", ENCLOSED.sub(r"(\1)", text))


def _enumerates(text: str) -> bool:
    """Whether lines of the text begin with several labels: the choices, said again."""
    return len({match[1] for match in re.finditer(r"^[ \t(]*([A-J])[.):]", text, re.M)}) > 1


def _label(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group).upper()


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

    The final expression stands in the last `\boxed{...}`, else in the sentence after the last
    "answer is", else in the last sentence.
    """
    found = final_expression(response)
    return float(any(_same(_reference(one), found) for one in references))


def final_expression(text: str) -> str:
    """The expression that a text states as its answer.

    Without a box it is the sentence after "answer is", else the last one: where that has words,
    its last formula or number, and where it has neither, the words.
    """
    stated = boxed_text(text)
    if stated is None:
        said, last = cued_text(text), sentences(text.strip().rstrip("."))[-1]
        stated = _expression(said or "") or _expression(last) or said or last
    return stated.strip(" \n.\"'*")


def _expression(sentence: str) -> str | None:
    if not PROSE.search(sentence):
        return sentence
    found = [next(filter(None, match.groups())) for match in FORMULA.finditer(sentence)]
    return found[-1] if found else None


def _reference(text: str) -> str:
    stated = boxed_text(text)
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

        Raises:
            WorldError: the worker does not start, or was ended from outside.
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
