"""The texts of answers, for routers that read them.

In: a cache and a tree opened from it. Out: `Answers` of set A, the direct calls, and of set B, the
routes. Texts are encoded by the built-in hashed n-grams whatever encoder the tree was opened with:
fast, no model. Each distinct text is read and encoded once. Not covered: answers before a route's
last one, and what is made of all this (`answer_scorer`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hierrouter.baselines.arms import Answers
from hierrouter.collect.encoders import HashedNgrams
from hierrouter.scoring.text import plain
from hierrouter.tree_texts import calls_of
from hierrouter_cache.errors import IncompleteTree
from hierrouter_cache.fingerprint import text_digest
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import RouteTree
from hierrouter_cache.walk import Nodes

# Shorter than the vectors that policies see: 144 routes of 3,000 queries take 442 MB at most.
WIDTH = 256
TEXTS_AT_A_TIME = 16_384


def load_answers(root: Path, tree: RouteTree, pool: str | None = None) -> tuple[Answers, Answers]:
    """The last answer of each arm of set A and of set B, in the order of the tree's queries.

    Args:
        root: the cache that the tree was opened from.
        tree: all of what was opened, or some of its queries.
        pool: as in `hierrouter.trees.Selection`.

    Raises:
        CacheError: nothing there, damaged, or not the cache of this tree.
    """
    reader, spec, forest = calls_of(root, tree, pool)
    asked = [name for name, _ in spec.direct]
    direct = [model for model in tree.direct.models if model in tree.models]
    ours = [tree.direct.models.index(model) for model in direct]
    calls = np.concatenate(
        [
            _calls(forest.direct)[:, [asked.index(model) for model in direct]],
            _calls(forest.tree.columns(tree.routes.leaves)),
        ],
        axis=1,
    )
    texts, row = _texts(reader, calls)
    single, routes = row[:, : len(direct)], row[:, len(direct) :]
    leaves = tree.tokens_out[:, tree.routes.leaves]
    return texts.at(single, tree.direct.tokens_out[:, ours]), texts.at(routes, leaves)


@dataclass(frozen=True)
class _Texts:
    """Distinct texts: vectors, float32[texts, width], and which say the same, int64[texts]."""

    vectors: NDArray[np.float32]
    group: NDArray[np.int64]

    def at(self, row: NDArray[np.int64], tokens: NDArray[np.int64]) -> Answers:
        return Answers(self.vectors, row, self.group[row], tokens)


def _calls(nodes: Nodes) -> NDArray[np.uint64]:
    """uint64[queries, columns]: hash of each call's key.

    Raises:
        IncompleteTree: a call is missing.
    """
    if not nodes.found.all():
        raise IncompleteTree(
            f"{np.count_nonzero(~nodes.found)} answers of the tree are not in the cache; open it "
            "again"
        )
    return nodes.key


def _texts(reader: CacheReader, calls: NDArray[np.uint64]) -> tuple[_Texts, NDArray[np.int64]]:
    """The distinct responses of some calls, and int64[*calls.shape], which one is each call's."""
    _, first, row = np.unique(reader.answers(calls), return_index=True, return_inverse=True)
    chosen = calls.ravel()[first]
    encoder = HashedNgrams(WIDTH)
    vectors = np.empty((len(chosen), WIDTH), np.float32)
    groups: dict[str, int] = {}
    group = np.empty(len(chosen), np.int64)
    for start in range(0, len(chosen), TEXTS_AT_A_TIME):
        part = slice(start, start + TEXTS_AT_A_TIME)
        found = reader.texts(chosen[part])
        texts = [found[call].response for call in chosen[part].tolist()]
        vectors[part] = encoder.encode(texts)
        # A digest, so that not all texts of a large cache are kept.
        group[part] = [groups.setdefault(text_digest(plain(text)), len(groups)) for text in texts]
    return _Texts(vectors, group), row.reshape(calls.shape)
