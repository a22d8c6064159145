r"""Read the number that a text states as its answer.

A statement, such as the content of a box, counts only if it gives one number: "5 or 6", `(3,4)` and
`x > 3` give none, and a formula such as `3\sqrt{2}` is not 3. Units and words around the number do
not count: "7 apples in 2 boxes" is 7.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from hierrouter.questions import final

# Marks within a number.

MINUS_SIGNS = dict.fromkeys(map(ord, "−–﹣－"), "-")
FRACTION_ARGUMENT_REGEX = r"(?:\{\s*(-?[\d.,]+)\s*\}|(\d))"
LATEX_FRACTION_PATTERN = re.compile(
    rf"(?P<sign>-\s*)?\\[dtc]?frac\s*{FRACTION_ARGUMENT_REGEX}\s*{FRACTION_ARGUMENT_REGEX}"
)
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

# Other parts of a statement than its number.

MAX_STATEMENT_CHARACTERS = 2000
DENIAL_PATTERN = re.compile(r"\bnot\s[^.;\n]{1,40}?\bbut\s+(?:rather\s+)?", re.I)  # "not 5 but 6"
# "6, not 5", "6 rather than 5"
AFTER_DENIAL_PATTERN = re.compile(
    r"(?:,|\band)?\s+(?:not|rather\s+than|instead\s+of|as\s+opposed\s+to)\s.*", re.I | re.S
)
DENIED_PATTERN = re.compile(r"\W*(?:(?:definitely|certainly|clearly)\s+)?not\b", re.I)
LEADING_MINUS_PATTERN = re.compile(r"^\s*-\s+(?=[.\d])")  # "- 5"
EQUALS_SIGN_PATTERN = re.compile(r"(?<![<>!:=\\])=(?!=)|\\approx(?![a-zA-Z])|≈")
ASSIGNED_VARIABLE_PATTERN = re.compile(r"(?<![\w\\])([a-zA-Z])\s*=(?!=)")
LATEX_WORDS_PATTERN = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf)|mbox)\s*\{([^{}]*)\}"
)
# Units with an exponent, and degrees.
UNIT_POWER_PATTERN = re.compile(
    r"(?<=[a-z])\s*\^\s*(?:\{\s*-?[1-3]\s*\}|-?[1-3])|\^\s*\{?\s*(?:\\circ|\\degree|°)\s*\}?|\\degree|°"
)
LAYOUT_COMMAND_PATTERN = re.compile(
    r"\\(?:left|right|displaystyle|quad|qquad|dollars?|mbox|text|mathrm)(?![a-zA-Z])|\\[ :>]|~|\$"
)
# Signs and commands of a formula: a number beside them is a part of it.
FORMULA_SIGN_PATTERN = re.compile(r"\\[a-zA-Z]+|[\^<>≤≥≠±√π∞]|(?<=[\w)}])!(?!\w)")
# A letter directly after a number is a variable, "2x", unless it is a usual unit, "5m".
VARIABLE_REGEX = r"(?:(?![mgshlLkKMBWVJNCF])[a-zA-Z](?![a-zA-Z])|\()"
AFTER_PART_PATTERN = re.compile(
    rf"\s*(?:\^|\\(?:sqrt|pi|pm|mp|infty|cdot|times|frac|log|ln|sin|cos|tan|choose)|[√π∞])"
    rf"|{VARIABLE_REGEX}"
)
BEFORE_PART_PATTERN = re.compile(
    r"(?:\\(?:sqrt(?:\[\d\])?|pm|mp|geq?|leq?|neq?|lt|gt|log|ln)\s*\{?|[<>≤≥≠±√]=?)\s*[-$]?$"
)
GROUP_PATTERN = re.compile(r"^[\s$]*(?:\\left\s*|\\)?[\[({].*[,;].*[\])}][\s$.]*$", re.S)
# A second number directly after the first one: "5 or 6", "5, 6", "5 to 7", "5-7".
SECOND_NUMBER_PATTERN = re.compile(
    r"\s*[%°]?\s*(?:,?\s*(?P<word>\bor\b|\band\b|\bto\b|\bthrough\b|\bversus\b|\bvs\.?)|[,;~&]|-(?=\s*[\d$]))"
    r"\s*(?:also|maybe|perhaps|possibly|even|about|exactly)?\s*"
)
# "5 apples or 6": a unit between the number and the word "or".
OTHER_NUMBER_PATTERN = re.compile(r"\s*(?:[A-Za-z%°]+\s+){1,3}or\s+(?:maybe\s+|perhaps\s+)?")


@dataclass(frozen=True)
class NumberReading:
    """The number that a text states as its answer.

    Attributes:
        value: the number; None if the text states no number, several, or a formula.
        text: the statement from which it was read.
        is_formula: whether the statement is a formula that computer algebra may evaluate.
    """

    value: Fraction | None
    text: str
    is_formula: bool = False


def final_number(text: str) -> Fraction | None:
    """The number that a text states as its answer; None if there is none, or more than one."""
    return read_number(text).value


@lru_cache(final.CACHED_TEXTS)
def read_number(text: str) -> NumberReading:
    r"""Read the number in the clearest form of statement that has one.

    The forms are the answer field, the last `\boxed`, the line after the last `####`, and the
    sentence after the last "answer is" or "A:". If there is an answer field, nothing outside it
    counts. Without a statement it is the last number of the text.

    Args:
        text: a readable text, see `hierrouter.questions.final.readable_text`.
    """
    declared = final.declared_text(text)
    source = text if declared is None else declared
    forms = ((final.boxed_statement, True), (final.marked_text, False), (final.cued_text, False))
    for find, is_strict in forms:
        statement = find(source)
        if statement is None:
            continue
        reading = read_statement(statement, is_strict)
        if reading is not None:
            return reading
    if declared is not None:
        return read_statement(declared, is_strict=True) or NumberReading(None, declared)
    return _read_prose(normalize_digits(text))


def read_statement(statement: str, is_strict: bool) -> NumberReading | None:
    """Read the only number of a statement.

    Args:
        statement: text that gives an answer.
        is_strict: whether the statement is nothing but an answer, as in a box. Then a formula
            anywhere in it matters; else only what is directly beside the number.

    Returns:
        what the statement says; None if it has no number at all.
    """
    statement = statement[:MAX_STATEMENT_CHARACTERS]
    text = _without_denials(normalize_digits(statement))
    if text is None or _assigns_several(text):
        return NumberReading(None, statement)
    if is_strict and GROUP_PATTERN.match(text):
        return NumberReading(None, statement, is_formula=True)
    text = _right_side(LATEX_WORDS_PATTERN.sub(r" \1 ", text))
    text = LEADING_MINUS_PATTERN.sub("-", UNIT_POWER_PATTERN.sub(" ", text))
    text = LAYOUT_COMMAND_PATTERN.sub(" ", text.replace("\\text", " ")) if is_strict else text
    if is_strict and FORMULA_SIGN_PATTERN.search(text):
        return NumberReading(None, statement, is_formula=True)
    first = next(_matches(text), None)
    if first is None:
        return None
    value, match = first
    if _is_part_of_formula(text, match):
        return NumberReading(None, statement, is_formula=True)
    return NumberReading(_only_value(text, value, match), statement)


def _without_denials(text: str) -> str | None:
    """The text without the numbers that it denies; None if it denies all it says."""
    text = AFTER_DENIAL_PATTERN.sub("", DENIAL_PATTERN.sub("", text))
    return None if DENIED_PATTERN.match(text) else text


def _assigns_several(text: str) -> bool:
    """Whether a text gives the values of several variables, "x = 3, y = 4"."""
    return len({name.lower() for name in ASSIGNED_VARIABLE_PATTERN.findall(text)}) > 1


def _right_side(text: str) -> str:
    """The right side of the last equation, "3 + 4 = 7"; its left side if only that has a number."""
    sides = EQUALS_SIGN_PATTERN.split(text)
    right = sides[-1]
    if len(sides) > 1 and next(_matches(right), None) is None and parse_number(sides[-2]):
        return sides[-2]
    return right


def _is_part_of_formula(text: str, match: re.Match[str]) -> bool:
    after = AFTER_PART_PATTERN.match(text, match.end())
    return after is not None or BEFORE_PART_PATTERN.search(text[: match.start()]) is not None


def _only_value(text: str, value: Fraction, match: re.Match[str]) -> Fraction | None:
    """The value of a match, unless another number is named beside it."""
    second = SECOND_NUMBER_PATTERN.match(text, match.end())
    if second is None:
        second = OTHER_NUMBER_PATTERN.match(text, match.end())
    other = NUMBER_PATTERN.match(text, second.end()) if second else None
    if second is None or other is None:
        return value
    other_value = _number_value(other)
    if other_value is None or other_value == value:
        return value
    is_mixed = second.groupdict().get("word") == "and" and 0 < other_value < 1
    if is_mixed and value.denominator == 1 and other["denominator"]:
        return value + (other_value if value >= 0 else -other_value)  # "2 and 1/2"
    return None


def _read_prose(text: str) -> NumberReading:
    """The last number of a text that states nothing; of a short line, its only number."""
    line = text.strip()
    if len(line) <= final.MAX_BARE_ANSWER_CHARACTERS and "\n" not in line:
        value = _last_number(line)
        if value is None or _assigns_several(line):
            return NumberReading(None, line)
        numbers = list(_matches(line))
        first_value, first = numbers[0]
        if len({value for value, _ in numbers}) == 2:
            _, second = numbers[1]
            # "10-3" is a difference, and no two answers.
            has_dash = "-" in line[first.end() : second.start()] or second[0].startswith("-")
            if not has_dash and _only_value(line, first_value, first) is None:
                return NumberReading(None, line)
        if len(numbers) == 1 and _is_part_of_formula(line, first):
            return NumberReading(None, line, is_formula=True)
        return NumberReading(value, line)
    return NumberReading(_last_number(text), final.last_sentence(line).strip())


def position_of_number(text: str, value: Fraction) -> tuple[int, int] | None:
    """Start and end of the last number of this value in a text; None if it is written otherwise."""
    position = None
    for other_value, match in _matches(text):
        if other_value == value:
            position = match.span()
    return position


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
    return LATEX_FRACTION_PATTERN.sub(_plain_fraction, text) if "frac" in text else text


def _plain_fraction(match: re.Match[str]) -> str:
    numerator = match[2] or match[3]
    denominator = match[4] or match[5]
    # The space separates the fraction from the integer of a mixed number.
    sign = "-" if match["sign"] else " "
    return f"{sign}{numerator}/{denominator}"


def _last_number(text: str) -> Fraction | None:
    for match in reversed(list(NUMBER_PATTERN.finditer(text))):
        # A number that begins a word, as in "9-digit", is no answer.
        if COMPOUND_WORD_PATTERN.match(text, match.end()):
            continue
        value = _number_value(match)
        if value is not None:
            return value
    return None


def _matches(text: str) -> Iterator[tuple[Fraction, re.Match[str]]]:
    """Value and match of each number of a text."""
    for match in NUMBER_PATTERN.finditer(text):
        value = _number_value(match)
        if value is not None:
            yield value, match


def _number_value(match: re.Match[str]) -> Fraction | None:
    """The value of a match of `NUMBER_PATTERN`; None if its denominator is 0."""
    parts = match.groupdict()
    if parts["decimal"]:
        value = _fraction(parts["decimal"])
        if parts["exponent"]:
            value *= Fraction(10) ** int(parts["exponent"])
    else:
        denominator = _fraction(parts["denominator"])
        if not denominator:
            return None
        value = _fraction(parts["integer"] or "0") + _fraction(parts["numerator"]) / denominator
    return -value if parts["sign"] or parts["inner_sign"] else value


def _fraction(digits: str) -> Fraction:
    digits = digits.replace(",", "")
    return Fraction(int(digits)) if digits.isdigit() else Fraction(digits)
