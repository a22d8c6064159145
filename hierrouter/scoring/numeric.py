r"""Does the final number of a response match?

In: a response and references that end in a number, bare or after `####` (GSM8K). Out: 1 or 0.
Numbers are compared as exact fractions: 0.50, 1/2 and \frac{1}{2} are one number, 0.333 and 1/3
are two. A currency or per cent sign and a unit are ignored. Not covered: decimal commas, numbers
in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from hierrouter.scoring.stated import boxed_text, cued_text, marked_text

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
