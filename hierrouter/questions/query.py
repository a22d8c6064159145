"""A question with its reference answers, and how a query is named."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import query_key, references_key
from hierrouter_cache.tree import RouteTree

NAMED = 4  # of the queries that a name could mean
SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}")


def storable(text: str) -> str:
    """The text with lone surrogates replaced by U+FFFD: neither a digest nor a file takes them."""
    return text.translate(SURROGATES)


@dataclass(frozen=True)
class Query:
    """One question of one dataset.

    Attributes:
        id: unique within its dataset.
        question: the text the models see, with a line for each choice.
        answers: reference answers; a response is scored against the best match.
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


def full_names(tree: RouteTree) -> list[str]:
    """`dataset/id` of each query, in the order of the tree."""
    return [f"{name}/{id}" for name, id in zip(tree.datasets, tree.query_ids, strict=True)]


def find_query(tree: RouteTree, name: str) -> int:
    """The position in `tree` of the query of this name, or whose name alone begins so.

    Raises InputError: there is none, or there are several.
    """
    full = full_names(tree)
    names = list(zip(tree.query_ids, full, strict=True))
    whole = [row for row, either in enumerate(names) if name in either]
    found = whole or [
        row for row, (id, long) in enumerate(names) if id.startswith(name) or long.startswith(name)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(full[row] for row in found[:NAMED])
        more = ", …" if len(found) > NAMED else ""
        raise InputError(
            f"{len(found)} queries are meant by {name!r}: {some}{more}; give more of the name"
        )
    example = f"names look like {full[0]}" if full else ""
    hint = suggestion(name, full if "/" in name else tree.query_ids, example)
    raise InputError(f"no such query in this tree: {name}; {hint}".rstrip("; "))
