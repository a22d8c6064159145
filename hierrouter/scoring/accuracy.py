r"""Right or wrong, by the form of the references.

In: a response and its references. Out: 1 where one of them is met, else 0. A reference with
`####`, or that is a plain number, is met by `numeric`; one with `\boxed` by `boxed`; a single
capital letter A to J by `choice`; any other by `exact_match`. Not covered: partial credit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hierrouter.scoring.boxed import boxed
from hierrouter.scoring.choice import choice
from hierrouter.scoring.numeric import numeric, plain_number
from hierrouter.scoring.scorer import ScoreFunction
from hierrouter.scoring.stated import BOX, MARK
from hierrouter.scoring.text import exact_match
from hierrouter_cache.fingerprint import Choices

LABEL = re.compile(r"[A-J]")


def accuracy(response: str, references: Sequence[str], choices: Choices = ()) -> float:
    """1 where the response is right, by the scorer that each reference's form asks for."""
    return max(_judged(response, reference, choices) for reference in references)


def _judged(response: str, reference: str, choices: Choices) -> float:
    judge = judged_by(reference)
    if judge is choice:
        return choice(response, [reference], choices)
    return judge(response, [reference])


def with_final(answers: Sequence[str], final: str) -> tuple[str, ...]:
    """The references of a query whose result is `final`.

    That is one reference more where no answer states its result in a form of its own.
    """
    if any(judged_by(answer) is not exact_match for answer in answers):
        return tuple(answers)
    return tuple(dict.fromkeys((*answers, final)))


def judged_by(reference: str) -> ScoreFunction:
    """The scorer that tells right from wrong for a reference of this form."""
    if MARK in reference or plain_number(reference) is not None:
        return numeric
    if BOX.search(reference):
        return boxed
    return choice if LABEL.fullmatch(reference.strip()) else exact_match
