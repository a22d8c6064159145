"""A named, versioned scorer, and scoring many responses.

In: a function of a response and its references, and perhaps of the choices that the question
offers. Out: `Scorer`, whose key names what is stored.
Not covered: which scorers there are (`registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hierrouter_cache.errors import InputError
from hierrouter_cache.fingerprint import Choices


class ScoreFunction(Protocol):
    """Quality of `response` in [0, 1] against the best matching of `references`."""

    def __call__(self, response: str, references: Sequence[str], /) -> float: ...


class ChoiceFunction(Protocol):
    """The same, where the question offers `choices`: label and text of each."""

    def __call__(self, response: str, references: Sequence[str], choices: Choices, /) -> float: ...


@dataclass(frozen=True)
class Scorer:
    """One way to measure Q.

    Attributes:
        name: what a user types.
        version: changes whenever the same response could get another value.
        function: computes the value from stored text alone.
        with_choices: takes its place where the question offers choices; None where they tell this
            scorer nothing.
    """

    name: str
    version: str
    function: ScoreFunction
    with_choices: ChoiceFunction | None = None

    @property
    def key(self) -> str:
        """What a cache stores beside a value: one of another version is never read as this one."""
        return f"{self.name}@{self.version}"

    def __call__(self, response: str, references: Sequence[str], choices: Choices = ()) -> float:
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
        if choices and self.with_choices:
            return self.with_choices(response, references, choices)
        return self.function(response, references)


def score_all(
    scorer: Scorer,
    asked: Sequence[tuple[str, Sequence[str], Choices]],
    on_scored: Callable[[int, int], None] = lambda done, total: None,
) -> list[float]:
    """The value of each (response, references, choices); equal ones are computed once.

    Args:
        scorer: how to measure.
        asked: what to measure.
        on_scored: told (done, total) of the distinct ones after each.

    Raises:
        InputError: a user's own function failed or gave no number in [0, 1].
    """
    items = [
        (response, tuple(references), tuple(choices)) for response, references, choices in asked
    ]
    distinct = dict.fromkeys(items, 0.0)
    for done, item in enumerate(distinct, start=1):
        distinct[item] = scorer(*item)
        on_scored(done, len(distinct))
    return [distinct[item] for item in items]
