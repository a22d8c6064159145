"""Which questions are taken, and into which fold.

In: queries. Out: a seeded draw of them, and folds by question text (paper section 4: 70/30, no
overlap). A draw goes by digests, so a larger one holds the smaller one, and an edited question
moves hardly any other. Not covered: questions that are nearly the same (`near`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hierrouter.query import Query
from hierrouter_cache.errors import InputError
from hierrouter_cache.fingerprint import digest

TEST_SHARE = 0.3  # paper section 4
VALIDATION_SHARE = 0.2  # of what is not test; ours, the paper names no validation fold


def sample(queries: list[Query], limit: int, seed: int) -> list[Query]:
    """At most `limit` of the queries, in their order."""
    chosen = _draw((f"{query.dataset}/{query.id}" for query in queries), limit, "sample", seed)
    return [query for query in queries if f"{query.dataset}/{query.id}" in chosen]


def with_folds(queries: list[Query], seed: int) -> list[Query]:
    """Cut test where the file does not say, then validation out of train; by question text.

    Queries with the same text always fall into the same fold, or test would be seen in training.
    """
    texts = {query.question for query in queries if not query.split}
    test = _draw(texts, _share(len(texts), TEST_SHARE), "test", seed)
    queries = [
        query
        if query.split
        else replace(query, split="test" if query.question in test else "train")
        for query in queries
    ]
    if any(query.split == "validation" for query in queries):
        return queries
    texts = {query.question for query in queries if query.split == "train"}
    held = _draw(texts, _share(len(texts), VALIDATION_SHARE), "validation", seed)
    return [
        replace(query, split="validation")
        if query.split == "train" and query.question in held
        else query
        for query in queries
    ]


def _draw(names: Iterable[str], count: int, purpose: str, seed: int) -> set[str]:
    """So many of the names, the ones with the smallest digests.

    A larger draw holds the smaller one, and an edited name moves no other: what was collected for
    the old draw is used again, and what was tested on does not slip into training.
    """
    return set(sorted(names, key=lambda name: digest([purpose, seed, name]))[:count])


def _share(count: int, share: float) -> int:
    """So many of `count`, at least one where that leaves two for training."""
    return max(round(count * share), 1 if count > 2 else 0)


def refuse_twins(queries: list[Query]) -> None:
    """Refuse two queries of one name.

    Two files may hold the same rows; counted twice, they would pass for independent.

    Raises:
        InputError: with the name.
    """
    counts = Counter((query.dataset, query.id) for query in queries)
    (dataset, name), times = max(counts.items(), key=lambda item: item[1])
    if times > 1:
        raise InputError(
            f"duplicate id {name} in dataset {dataset}: it comes from {times} places; "
            "name each file once, or give rows of different files different datasets"
        )


def refuse_leaks(queries: list[Query]) -> None:
    """Refuse a question that stands in test and in another fold.

    Raises:
        InputError: with the question.
    """
    folds: dict[str, Counter[str]] = {}
    for query in queries:
        folds.setdefault(query.question, Counter())[query.split] += 1
    for question, splits in folds.items():
        if splits["test"] and len(splits) > 1:
            raise InputError(
                f"question in both {' and '.join(sorted(splits, reverse=True))}, they must not "
                f"overlap: {question[:80]!r}; remove it from one of them"
            )
