"""The texts behind a tree's numbers.

In: a cache and some queries of a tree opened from it. Out: `Texts`: question, reference answers and
the answer at each node. Nothing is computed. Not covered: many queries at once; these texts are
all in memory (`baselines.answers` encodes those of a whole tree part by part).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hierrouter.opened_pool import opened_pool
from hierrouter_cache.errors import CacheError, IncompleteTree
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import RouteTree
from hierrouter_cache.walk import Forest, TreeSpec, walk


@dataclass(frozen=True)
class Texts:
    """What was asked and answered in one query's tree.

    Attributes:
        question: text of the query.
        references: the answers that count as right.
        answers: the response at each node, by number; that of the root is empty.
    """

    question: str
    references: tuple[str, ...]
    answers: tuple[str, ...]


def load_texts(root: Path, tree: RouteTree, pool: str | None = None) -> list[Texts]:
    """The texts of each query of `tree`, in its order.

    Args:
        root: the cache that the tree was opened from.
        tree: the queries that are wanted, no more.
        pool: as in `hierrouter.trees.Selection`.

    Raises:
        CacheError: nothing there, damaged, or not the cache of this tree.
    """
    reader, _, forest = calls_of(root, tree, pool)
    nodes = forest.tree
    if not nodes.complete.all():
        raise IncompleteTree(f"answers of the tree are not in the cache: {root}; open it again")
    calls = nodes.key[:, 1:]
    found = reader.texts(calls.ravel())
    rows = reader.queries(forest.keys, ("question", "answers")).to_pylist()
    return [
        Texts(
            row["question"],
            tuple(row["answers"]),
            ("", *(found[call].response for call in mine)),
        )
        for row, mine in zip(rows, calls.tolist(), strict=True)
    ]


def calls_of(
    root: Path, tree: RouteTree, pool: str | None = None
) -> tuple[CacheReader, TreeSpec, Forest]:
    """The cache, what makes up the tree there, and its calls in the order of the tree's queries.

    Args and errors are those of `load_texts`.
    """
    reader = CacheReader(root)
    plan = reader.latest_plan()
    keys = _keys(reader, plan.queries, tree)
    spec = opened_pool(plan.pool, pool, tree.models, tree.hops).spec
    return reader, spec, walk(reader, spec, keys)


def _keys(reader: CacheReader, planned: Sequence[str], tree: RouteTree) -> list[str]:
    """The content key of each query of the tree.

    Args:
        planned: the keys to look among, those of the cache's plan.

    Raises:
        CacheError: a query that is not among them.
    """
    names = reader.queries(planned, ("dataset", "id")).to_pylist()
    keys = {(row["dataset"], row["id"]): key for row, key in zip(names, planned, strict=True)}
    wanted = list(zip(tree.datasets, tree.query_ids, strict=True))
    lacking = sum(name not in keys for name in wanted)
    if lacking:
        raise CacheError(
            f"{lacking} of {len(tree)} queries are not in the cache: {reader.root}; give the "
            "cache that the tree was opened from"
        )
    return [keys[name] for name in wanted]
