"""Which questions are taken, into which fold, and whether folds overlap."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hierrouter.questions.query import Query
from hierrouter_cache.errors import InputError
from hierrouter_cache.keys import digest

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


THRESHOLD = 0.8  # distinct questions of six datasets reach 0.51, see docs/decisions.md
FEATURES = 1 << 20  # 4-grams are hashed into so many: memory does not grow with the texts
ROWS = 256  # of test compared together
NAMED = 3
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Pair:
    """A question of test, and the nearest one of another fold.

    Attributes:
        similarity: cosine, in [0, 1]; 1 where only case and white space differ.
    """

    test: Query
    other: Query
    similarity: float


def near_pairs(queries: Sequence[Query], threshold: float = THRESHOLD) -> list[Pair]:
    """The questions of test with one that is near in another fold, the nearest pairs first."""
    tested = [query for query in queries if query.split == "test"]
    others = [query for query in queries if query.split != "test"]
    if not tested or not others:
        return []
    found = []
    for query, candidates in _candidates(tested, others, threshold):
        numbers = _numbers(query)
        for place, similarity in candidates:
            if _numbers(others[place]) == numbers:
                found.append(Pair(query, others[place], min(similarity, 1.0)))
                break
    return sorted(found, key=lambda pair: -pair.similarity)


def near_line(pairs: Sequence[Pair]) -> str:
    """How many there are, and the nearest of them, in one line."""
    what = "1 question of test is" if len(pairs) == 1 else f"{len(pairs):,} questions of test are"
    named = ", ".join(
        f"{_name(pair.test)} ~ {_name(pair.other)} ({pair.similarity:.2f})"
        for pair in pairs[:NAMED]
    )
    more = ", ..." if len(pairs) > NAMED else ""
    return f"{what} nearly the same as one in another fold: {named}{more}"


def _name(query: Query) -> str:
    return f"{query.dataset}/{query.id}"


def _numbers(query: Query) -> Counter[str]:
    return Counter(NUMBER.findall(query.question))


def _candidates(
    tested: Sequence[Query], others: Sequence[Query], threshold: float
) -> Iterator[tuple[Query, list[tuple[int, float]]]]:
    """Each question of test with (place, similarity) of what is near it, the nearest first."""
    vectors = _vectors([query.question for query in (*tested, *others)])
    against = vectors[len(tested) :].T.tocsr()
    for start in range(0, len(tested), ROWS):
        block = tested[start : start + ROWS]
        near = (vectors[start : start + len(block)] @ against).tocoo()
        hits: dict[int, list[tuple[int, float]]] = {}
        for hit in (near.data >= threshold).nonzero()[0].tolist():
            place = int(near.col[hit]), float(near.data[hit])
            hits.setdefault(int(near.row[hit]), []).append(place)
        for row, candidates in hits.items():
            yield block[row], sorted(candidates, key=lambda item: -item[1])


def _vectors(texts: Sequence[str]) -> Any:
    """float32[texts, FEATURES], sparse, rows of length 1."""
    import numpy as np
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

    counts = HashingVectorizer(
        analyzer="char_wb",
        ngram_range=(4, 4),
        n_features=FEATURES,
        alternate_sign=False,
        norm=None,
        dtype=np.float32,
    ).transform(texts)
    return TfidfTransformer().fit_transform(counts)
