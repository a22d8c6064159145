"""A question with its reference answers, and how a query is named."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hierrouter_cache.errors import InputError
from hierrouter_cache.keys import query_key, references_key
from hierrouter_cache.tree import RouteTree

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


SHOWN = 4  # of the names that a beginning could mean


def full_names(tree: RouteTree) -> list[str]:
    """`dataset/id` of each query, in the order of the tree."""
    return [f"{name}/{id}" for name, id in zip(tree.datasets, tree.query_ids, strict=True)]


def find_query(tree: RouteTree, name: str) -> int:
    """The position in `tree` of the query of this name.

    Raises:
        InputError: there is none, or there are several.
    """
    full = full_names(tree)
    whole, begun = _called(full, tree.query_ids, name), _beginning(full, tree.query_ids, name)
    found = whole or begun
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(_ambiguous(name, [full[row] for row in found]))
    raise InputError(_unknown(name, full, tree.query_ids))


def _called(full: Sequence[str], ids: Sequence[str], name: str) -> list[int]:
    return [row for row, id in enumerate(ids) if name in (id, full[row])]


def _beginning(full: Sequence[str], ids: Sequence[str], name: str) -> list[int]:
    return [row for row, id in enumerate(ids) if id.startswith(name) or full[row].startswith(name)]


def _ambiguous(name: str, found: Sequence[str]) -> str:
    some = ", ".join(found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
    return f"{len(found)} queries are meant by {name!r}: {some}; give more of the name"


def _unknown(name: str, full: Sequence[str], ids: Sequence[str]) -> str:
    known = full if "/" in name else list(ids)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"names look like {full[0]}" if full else ""
    return f"no such query in this tree: {name}; {hint}".rstrip("; ")
