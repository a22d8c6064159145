r"""Scorers: read the answer of a response, and compare it with the reference answers.

`hierrouter.questions.final` removes what is no answer, such as thoughts, and finds the text that a
response states as its answer. That text is read as words (`exact_match`), a number (`numeric`,
`hierrouter.questions.numbers`), labels of choices (`choice`, `hierrouter.questions.labels`) or a
formula (`boxed`, `hierrouter.questions.formulas`). Two different answers are none.

The paper's `token_f1` reads nothing: it compares the words of the complete response.

Each scorer takes a response and references and returns a quality from 0 to 1;
`hierrouter.questions.scoring` lists the scorers by name.
"""

from __future__ import annotations

import ast
import string
import warnings
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from hierrouter.questions import final
from hierrouter.questions.final import fold, without_emphasis
from hierrouter.questions.formulas import (
    equivalent_to_number,
    final_expressions,
    is_equivalent,
    reference_expression,
    without_layout,
)
from hierrouter.questions.labels import (
    label_of_reference,
    label_of_text,
    labels_of_field,
    labels_of_reference,
    stated_labels,
)
from hierrouter.questions.numbers import final_number, parse_number, read_number
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
    text = final.readable_text(response)
    if response and not text:
        return 0.0
    stated = final.stated_text(text)
    if stated is None:
        stated = final.output_text(text)
    answers = [text] if stated is None else [text, stated]
    return float(
        any(_is_match(answer, fold(reference)) for reference in references for answer in answers)
    )


MAX_LITERAL_CHARACTERS = 2000
# A much longer text cannot be the reference with marks around it.
MAX_LENGTH_RATIO = 2
MAX_MARKUP_CHARACTERS = 100
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
    if len(answer.strip()) > MAX_LENGTH_RATIO * len(reference) + MAX_MARKUP_CHARACTERS:
        return False
    return normalized_text(answer) == normalized_text(reference)


@lru_cache(final.CACHED_TEXTS)
def _literal_value(text: str) -> object:
    """The value of a Python or JSON literal; `NO_LITERAL` if the text is something else."""
    text = text.strip().strip("`").strip()
    if text in JSON_LITERALS:
        return JSON_LITERALS[text]
    if len(text) > MAX_LITERAL_CHARACTERS:
        return NO_LITERAL
    try:
        with warnings.catch_warnings():
            # Some answers look like broken literals, such as "3and 4".
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return NO_LITERAL


def normalized_text(text: str) -> str:
    """The text in lower case, with single spaces, without emphasis and outer punctuation."""
    return " ".join(without_emphasis(text).lower().split()).strip(" .,;:!?\"'$`")


# Numbers: `numeric`.


def numeric(response: str, references: Sequence[str]) -> float:
    r"""1 if the final number of the response is that of a reference, else 0.

    See `hierrouter.questions.numbers.read_number`. If the response states a formula instead, such
    as `\sqrt{16}`, its value is compared.

    Raises:
        WorldError: a formula has to be evaluated, and math-verify does not start.
    """
    text = final.readable_text(response)
    reading = read_number(text)
    if reading.value is None and not reading.is_formula:
        return 0.0
    numbers = [number for number in map(_reference_number, references) if number is not None]
    if reading.value is not None:
        return float(reading.value in numbers)
    expression = final_expressions(text)[-1]
    return float(any(equivalent_to_number(number, expression) for number in numbers))


def _reference_number(reference: str) -> Fraction | None:
    return final_number(fold(reference))


# Labels of choices: `choice`.


def choice(response: str, references: Sequence[str], choices: Choices = ()) -> float:
    """1 if the response states the label of a reference, or the text of that choice, else 0.

    A response that states several labels is right only for a reference that has the same ones.

    Args:
        response: text of a model.
        references: labels, perhaps in brackets; or several labels, "A, C".
        choices: label and text of each choice, if they are known.
    """
    text = final.readable_text(response)
    labels = stated_labels(text, choices)
    if not labels:
        label = label_of_text(text, choices)
        labels = frozenset() if label is None else frozenset({label})
    return float(
        bool(labels) and any(labels == _reference_labels(reference) for reference in references)
    )


def _reference_labels(reference: str) -> frozenset[str]:
    label = label_of_reference(reference)
    if label is not None:
        return frozenset({label})
    return labels_of_reference(reference) or frozenset({reference.strip(" ().")})


# Formulas: `boxed`.


def boxed(response: str, references: Sequence[str]) -> float:
    r"""1 if the final expression of the response is equivalent to that of a reference, else 0.

    The final expression is in the answer field, else in the last `\boxed{...}`, else in the
    sentence after the last "answer is", else in the last sentence.

    Raises:
        WorldError: math-verify does not start, or its process was killed.
    """
    text = final.readable_text(response)
    if not text.strip():
        return 0.0
    expressions = final_expressions(text)
    return float(
        any(
            is_equivalent(reference_expression(fold(reference)), expression)
            for reference in references
            for expression in expressions
        )
    )


# Agreement of responses, without references.


def agreement_key(text: str) -> str:
    """The final answer of a response in a normal form.

    Two responses agree if their keys are equal, in whatever words they give the answer. The key is
    the number or the label that the response states, else the text of the answer. If nothing is
    stated, it is the last number of prose, else the complete response.
    """
    text = final.readable_text(text)
    answer = final.stated_text(text)
    if answer is None:
        is_prose = len(text) > final.MAX_BARE_ANSWER_CHARACTERS and "```" not in text
        number = final_number(text) if is_prose else None
        if number is not None:
            return str(number)
        answer = text
    else:
        labels = labels_of_field(answer)
        if labels:
            answer = ", ".join(sorted(labels))
    number = parse_number(answer)
    return normalized_text(without_layout(answer)) if number is None else str(number)
