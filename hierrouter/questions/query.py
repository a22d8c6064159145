"""A query: a question with its reference answers; and how a query is found by its name."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from hierrouter.questions.files import number_text
from hierrouter_cache.errors import InputError, suggestion
from hierrouter_cache.keys import query_key, references_key, root_context, sound_text
from hierrouter_cache.tree import RouteTree

MAX_GROUP_NAME = 200  # characters of the name of a dataset or of a label that takes its place
MAX_LISTED_QUERIES = 4  # in the message for a name that several queries match


@dataclass(frozen=True)
class Query:
    """One question of one dataset.

    Attributes:
        id: unique within its dataset.
        dataset: name of the dataset.
        question: text that the models see, with a line for each choice.
        answers: reference answers; a response is scored against the best match.
        split: "train", "validation" or "test"; "" before the folds are made.
        choices: label and text of each choice, for scorers; empty if any answer is allowed.
        has_own_calls: whether the query shares no calls with another query of this text: it was
            imported from a file in which several ids have this text.
        tests: statements that run after a program in a response, in order, such as assertions;
            empty if responses are judged by the reference answers.
        answer_type: a key of `hierrouter.questions.scoring.TYPE_SCORERS`; "" if the look of each
            answer tells its type.
    """

    id: str
    dataset: str
    question: str
    answers: tuple[str, ...]
    split: str
    choices: tuple[tuple[str, str], ...] = ()
    has_own_calls: bool = False
    tests: tuple[str, ...] = ()
    answer_type: str = ""

    @property
    def key(self) -> str:
        """Content key: a query with another text, answer, choice or fold is another query."""
        return query_key(
            self.dataset,
            self.id,
            self.question,
            self.answers,
            self.split,
            self.choices,
            self.has_own_calls,
            self.tests,
            self.answer_type,
        )

    @property
    def context(self) -> str:
        """Key of the context before any call, see `hierrouter_cache.keys.root_context`."""
        return root_context(self.question, (self.dataset, self.id) if self.has_own_calls else ())

    @property
    def references(self) -> str:
        """Content key of all that a score depends on but the response."""
        return references_key(self.answers, self.choices, self.tests, self.answer_type)


def is_blank(text: str) -> bool:
    """Whether a text has only white space and characters of no width."""
    return not any(character.isprintable() and not character.isspace() for character in text)


def group_name(value: object) -> str | None:
    """Return the name of a question's group as text: a text, a number, true or false.

    Returns:
        None if the value is none of these, blank, or too long.
    """
    if isinstance(value, bool):
        value = json.dumps(value)
    elif isinstance(value, int) or (isinstance(value, float | Decimal) and math.isfinite(value)):
        value = number_text(value)  # an int may be too large for a float
    if not isinstance(value, str) or is_blank(value) or len(value) > MAX_GROUP_NAME:
        return None
    return sound_text(value)


def stored_choices(stored: Sequence[Mapping[str, str]] | None) -> tuple[tuple[str, str], ...]:
    """Label and text of each choice in a row of `queries`; empty if the column is null."""
    return tuple((choice["label"], choice["text"]) for choice in stored or ())


def full_names(tree: RouteTree) -> list[str]:
    """`dataset/id` of each query, in the order of the tree."""
    return [f"{dataset}/{id}" for dataset, id in zip(tree.datasets, tree.query_ids, strict=True)]


def find_query(tree: RouteTree, name: str) -> int:
    """Find a query by its name, or by the beginning of its name.

    Args:
        tree: any tree.
        name: an id, `dataset/id`, or the beginning of one of them. Only if no query has exactly
            this name are beginnings compared.

    Returns:
        the position of the query in the tree.

    Raises:
        InputError: no query matches, or several do.
    """
    full = full_names(tree)
    names = list(zip(tree.query_ids, full, strict=True))
    rows = [row for row, both in enumerate(names) if name in both]
    if not rows:
        rows = [
            row
            for row, (id, full_name) in enumerate(names)
            if id.startswith(name) or full_name.startswith(name)
        ]
    if len(rows) == 1:
        return rows[0]
    if rows:
        listed = ", ".join(full[row] for row in rows[:MAX_LISTED_QUERIES])
        ellipsis = ", …" if len(rows) > MAX_LISTED_QUERIES else ""
        raise InputError(
            f"{len(rows)} queries are meant by {name!r}: {listed}{ellipsis}; give more of the name"
        )
    example = f"names look like {full[0]}" if full else ""
    hint = suggestion(name, full if "/" in name else tree.query_ids, example)
    raise InputError(f"no such query in this tree: {name}; {hint}".rstrip("; "))
