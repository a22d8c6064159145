"""Answers of models to queries, as others keep them.

In: `Answer`s, one a (query, model), or one a node where later hops saw earlier ones. Out:
`Answers`: the queries with folds and, for each, what stands at which path. Not covered: columns of
a format (`table`, `llmrouter`, `routerbench`), and storing (`storing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hierrouter.collect.datasets.folds import refuse_leaks, with_folds
from hierrouter.query import Query
from hierrouter_cache.errors import InputError

Route = tuple[str, ...]  # models called, in order


@dataclass(frozen=True)
class Answer:
    """One response of one model, in the file's own names.

    Attributes:
        where: the row it stands in, for messages.
        query: its question, with split "" where the file does not say.
        path: the models called, in order; the last one gave the response.
        prompt: what that model was shown.
        response: its text.
        tokens_in, tokens_out: of this call.
        latency_s: seconds, None where unknown.
        score: the file's own value for the response, in [0, 1], None where it has none.
    """

    where: str
    query: Query
    path: Route
    prompt: str
    response: str
    tokens_in: int
    tokens_out: int
    latency_s: float | None = None
    score: float | None = None


@dataclass(frozen=True)
class Answers:
    """The answers of a file, by query.

    Attributes:
        queries: in the order of the file, with folds.
        models: names in the order of the file.
        at: the answers to each query, by path.
    """

    queries: tuple[Query, ...]
    models: tuple[str, ...]
    at: tuple[Mapping[Route, Answer], ...]

    @property
    def hops(self) -> int:
        """The length of the longest path; 1 where all answers are independent."""
        return max(len(path) for answers in self.at for path in answers)

    @property
    def lacking(self) -> int:
        """Queries that not every model has answered at the first hop."""
        return sum(any((name,) not in found for name in self.models) for found in self.at)


def gather(answers: Iterable[Answer], seed: int) -> Answers:
    """The answers by query, with folds cut where the file says none.

    Args:
        answers: in any order.
        seed: of the folds.

    Raises:
        InputError: two answers at one place, one whose earlier hop is missing, a query with two
            questions, or a question in both train and test.
    """
    first: dict[tuple[str, str], Answer] = {}
    found: dict[tuple[str, str], dict[Route, Answer]] = {}
    models: dict[str, None] = {}
    for answer in answers:
        name = answer.query.dataset, answer.query.id
        _require_same_query(first.setdefault(name, answer), answer)
        _add(found.setdefault(name, {}), answer)
        models.setdefault(answer.path[-1])
    for by_path in found.values():
        _require_parents(by_path)
    queries = with_folds([answer.query for answer in first.values()], seed)
    refuse_leaks(queries)
    return Answers(tuple(queries), tuple(models), tuple(found.values()))


def _require_same_query(first: Answer, answer: Answer) -> None:
    if answer.query != first.query:
        raise InputError(
            f"query {answer.query.id} has two questions, answers or splits: {first.where} and "
            f"{answer.where}; give different queries different ids"
        )


def _add(found: dict[Route, Answer], answer: Answer) -> None:
    earlier = found.setdefault(answer.path, answer)
    if earlier is not answer:
        raise InputError(
            f"duplicate answer of {' > '.join(answer.path)} to query {answer.query.id}: "
            f"{earlier.where} and {answer.where}; keep one"
        )


def _require_parents(found: Mapping[Route, Answer]) -> None:
    for path, answer in found.items():
        if len(path) > 1 and path[:-1] not in found:
            raise InputError(
                f"hop {len(path)} without its earlier hop {' > '.join(path[:-1])}: {answer.where}; "
                "add that row"
            )
