"""Sums and made-up words, each in exactly one split.

In: a random number generator and a split. Out: expressions such as `17+25` and words such as
`tolu`. A hash of the operands or the letters says to which split a piece belongs, so no sum and
no word of the test questions can have been a training example. Not covered: names that belong
to the world (`world`), questions made from the pieces (`families`).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from random import Random
from typing import Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
LETTERS = CONSONANTS + VOWELS
LARGEST_OPERAND = 40

_TRAIN_PERCENT = 75
_VALIDATION_PERCENT = 10


@dataclass(frozen=True)
class Expression:
    """A sum or a difference of two whole numbers, never negative."""

    left: int
    sign: Literal["+", "-"]
    right: int

    def __str__(self) -> str:
        return f"{self.left}{self.sign}{self.right}"

    @property
    def value(self) -> int:
        return self.left + self.right if self.sign == "+" else self.left - self.right

    @property
    def split(self) -> Split:
        """The split of the operands; `3+5` and `5+3` go together."""
        if self.sign == "+":
            low, high = sorted((self.left, self.right))
            return _hashed(f"{low}+{high}")
        return _hashed(str(self))


def any_expression(rng: Random) -> Expression:
    """An expression of any split with operands from 1 to `LARGEST_OPERAND`."""
    left, right = rng.randint(1, LARGEST_OPERAND), rng.randint(1, LARGEST_OPERAND)
    if rng.random() < 0.5:
        return Expression(left, "+", right)
    return Expression(max(left, right), "-", min(left, right))


def any_word(rng: Random) -> str:
    """Two syllables and, half the time, a last consonant: four or five letters."""
    syllables = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(2))
    return syllables + rng.choice(CONSONANTS) if rng.random() < 0.5 else syllables


def word_split(word: str) -> Split:
    """The split of a word; a word and its reverse go together."""
    return _hashed(min(word, word[::-1]))


def _hashed(text: str) -> Split:
    percent = zlib.crc32(text.encode()) % 100
    if percent < _TRAIN_PERCENT:
        return "train"
    return "validation" if percent < _TRAIN_PERCENT + _VALIDATION_PERCENT else "test"
