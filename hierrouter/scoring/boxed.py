r"""Is the final expression of a response the reference's?

In: a response and references with a `\boxed{...}`, or the bare expression (MATH). Out: 1 or 0.
Equal texts and equal numbers are settled here, everything else by the library math-verify in a
process of its own (`judge`), which is loaded at first need. An answer that cannot be parsed, or
takes too long, is 0 and never an exception. Not covered: proofs, answers in words.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache

from hierrouter.scoring.judge import Judge
from hierrouter.scoring.numeric import plain_number
from hierrouter.scoring.stated import boxed_text, cued_text, sentences

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
LONGEST = 1000  # characters of an expression; longer ones compare as texts only


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
    if not plain or not other or max(len(reference), len(found)) > LONGEST:
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
