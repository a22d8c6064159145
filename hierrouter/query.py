"""A question with its reference answers.

The one value that datasets produce and everything else consumes. Not covered: reading files
(`hierrouter.collect.datasets`).
"""

from __future__ import annotations

from dataclasses import dataclass

from hierrouter_cache.fingerprint import query_key

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
        question: the text the models see.
        answers: reference answers; a response is scored against the best match.
        split: "train", "validation" or "test".
    """

    id: str
    dataset: str
    question: str
    answers: tuple[str, ...]
    split: str

    @property
    def key(self) -> str:
        """Content key: a query whose text, answers or fold changed is another query."""
        return query_key(self.dataset, self.id, self.question, self.answers, self.split)
