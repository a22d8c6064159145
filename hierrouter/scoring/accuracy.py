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

LABEL = re.compile(r"[A-J]")


def accuracy(response: str, references: Sequence[str]) -> float:
    """1 where the response is right, by the scorer that each reference's form asks for."""
    return max(judged_by(reference)(response, [reference]) for reference in references)


def judged_by(reference: str) -> ScoreFunction:
    """The scorer that tells right from wrong for a reference of this form."""
    if MARK in reference or plain_number(reference) is not None:
        return numeric
    if BOX.search(reference):
        return boxed
    return choice if LABEL.fullmatch(reference.strip()) else exact_match
