"""Datasets in a few words: folds and samples.

In: queries. Out: for each dataset how many questions each fold has, and the first few of them. Not
covered: showing them to people (`hierrouter_cli.datasets`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hierrouter.query import Query
from hierrouter_cache.tree import SPLITS


@dataclass(frozen=True)
class Described:
    """One dataset.

    Attributes:
        name: as its rows say.
        folds: number of questions of each fold.
        samples: the first questions.
    """

    name: str
    folds: Mapping[str, int]
    samples: tuple[Query, ...]


def describe(queries: Sequence[Query], samples: int) -> list[Described]:
    """Each dataset, in the order of the queries."""
    found: dict[str, list[Query]] = {}
    for query in queries:
        found.setdefault(query.dataset, []).append(query)
    return [
        Described(name, _folds(questions), tuple(questions[:samples]))
        for name, questions in found.items()
    ]


def _folds(queries: Sequence[Query]) -> Mapping[str, int]:
    counts = Counter(query.split for query in queries)
    return {split: counts[split] for split in SPLITS}
