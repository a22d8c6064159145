"""A question with its reference answers.

The one value that datasets produce and everything else consumes. Not covered: reading files
(`hierrouter.collect.datasets`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hierrouter_cache.fingerprint import query_key, references_key

SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}")


def storable(text: str) -> str:
    """The text with lone surrogates replaced by U+FFFD: neither a digest nor a file takes them."""
    return text.translate(SURROGATES)


@dataclass(frozen=True)
class Query:
    """One question of one dataset.

    Attributes:
        id: unique within its dataset.
        dataset: name of the dataset.
        question: the text the models see, with a line for each choice.
        answers: reference answers; a response is scored against the best match.
        split: "train", "validation" or "test".
        choices: label and text of each choice, for scorers; none where any answer goes.
    """

    id: str
    dataset: str
    question: str
    answers: tuple[str, ...]
    split: str
    choices: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """Content key: a query whose text, answers, choices or fold changed is another query."""
        return query_key(
            self.dataset, self.id, self.question, self.answers, self.split, self.choices
        )

    @property
    def references(self) -> str:
        """Content key of the answers and choices: what a score depends on besides a response."""
        return references_key(self.answers, self.choices)


def stored_choices(stored: Sequence[Mapping[str, str]] | None) -> tuple[tuple[str, str], ...]:
    """Label and text of each choice in a row of `queries`; none where the column is null."""
    return tuple((choice["label"], choice["text"]) for choice in stored or ())
