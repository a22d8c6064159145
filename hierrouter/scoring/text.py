"""Scorers that compare words: token F1, exact match.

In: a response and its references. Out: a number in [0, 1]. Not covered: what a text means; see
`numeric`, `boxed` and `choice` for answers that can be written in several ways.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

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
