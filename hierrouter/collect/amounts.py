"""Numbers that are known, expected, or only bounded.

In: counts, and what one of a kind takes. Out: `Amount`s that add up. Not covered: where the
numbers come from (`estimate`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Amount:
    """A number of which not everything is known.

    Attributes:
        expected: the best guess; None where there is none.
        most: an upper bound; None where there is none.
    """

    expected: float | None
    most: float | None

    @property
    def is_exact(self) -> bool:
        """Whether it is no guess."""
        return self.expected is not None and self.expected == self.most

    def __add__(self, other: Amount) -> Amount:
        """The sum, as far as both are known."""
        return Amount(_sum(self.expected, other.expected), _sum(self.most, other.most))

    def times(self, expected: float | None, most: float | None) -> Amount:
        """So many of what is one by one expected to be `expected` and is at most `most`."""
        if self.most == 0:
            return NOTHING
        return Amount(_product(self.expected, expected), _product(self.most, most))


def exactly(number: float) -> Amount:
    """A number that is known."""
    return Amount(number, number)


NOTHING = exactly(0)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _product(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other
