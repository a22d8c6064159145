"""A named, versioned scorer, and scoring many responses.

In: a function of a response and its references. Out: `Scorer`, whose key names what is stored.
Not covered: which scorers there are (`registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hierrouter_cache.errors import InputError


class ScoreFunction(Protocol):
    """Quality of `response` in [0, 1] against the best matching of `references`."""

    def __call__(self, response: str, references: Sequence[str], /) -> float: ...


@dataclass(frozen=True)
class Scorer:
    """One way to measure Q.

    Attributes:
        name: what a user types.
        version: changes whenever the same response could get another value.
        function: computes the value from stored text alone.
    """

    name: str
    version: str
    function: ScoreFunction

    @property
    def key(self) -> str:
        """What a cache stores beside a value: one of another version is never read as this one."""
        return f"{self.name}@{self.version}"

    def __call__(self, response: str, references: Sequence[str]) -> float:
        """The quality of `response` in [0, 1].

        Raises:
            InputError: there are no references, or a user's own function failed or gave no number
                in [0, 1].
        """
        if not references:
            raise InputError(
                f"{self.name} needs reference answers, and a query has none; "
                "imported without them it has given scores: --scorer given"
            )
        return self.function(response, references)


def score_all(
    scorer: Scorer,
    pairs: Sequence[tuple[str, Sequence[str]]],
    on_scored: Callable[[int, int], None] = lambda done, total: None,
) -> list[float]:
    """The value of each (response, references); equal pairs are computed once.

    Args:
        scorer: how to measure.
        pairs: what to measure.
        on_scored: told (done, total) of the distinct pairs after each.

    Raises:
        InputError: a user's own function failed or gave no number in [0, 1].
    """
    asked = [(response, tuple(references)) for response, references in pairs]
    distinct = dict.fromkeys(asked, 0.0)
    for done, pair in enumerate(distinct, start=1):
        distinct[pair] = scorer(*pair)
        on_scored(done, len(distinct))
    return [distinct[pair] for pair in asked]
