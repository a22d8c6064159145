"""Questions of test that nearly stand in another fold.

In: queries with folds. Out: pairs of which one is tested on and the other one may be learned from.
Two texts are near where the cosine of their character 4-grams, weighted by rarity (TF-IDF), is at
least 0.8 and they name the same numbers: with other numbers it is another question. Not covered:
the same question in other words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hierrouter.query import Query

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
