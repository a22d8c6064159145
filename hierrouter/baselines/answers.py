"""The texts of answers, for routers that read them.

In: a cache and a tree opened from it. Out: `Answers` of set A, the direct calls, of set B, the
routes, or of both; no more is read than they need. Texts are encoded by the built-in hashed n-grams
whatever encoder the tree was opened with: fast, no model. Each distinct text is read and encoded
once. Not covered: answers before a route's last one, and what is made of all this
(`answer_scorer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hierrouter.baselines.arms import Answers
from hierrouter.baselines.baseline import Baseline
from hierrouter.collect.encoders import HashedNgrams
from hierrouter.scoring.text import plain
from hierrouter.tree_texts import calls_of
from hierrouter_cache.errors import IncompleteTree
from hierrouter_cache.fingerprint import text_digest
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import RouteTree
from hierrouter_cache.walk import Forest, Nodes, TreeSpec

# Shorter than the vectors that policies see: 144 routes of 3,000 queries take 442 MB at most.
WIDTH = 256
TEXTS_AT_A_TIME = 16_384


def load_answers(
    root: Path, tree: RouteTree, sets: Sequence[str], pool: str | None = None
) -> dict[str, Answers]:
    """The last answer of each arm of each set, in the order of the tree's queries.

    Args:
        root: the cache that the tree was opened from.
        tree: all of what was opened, or some of its queries.
        sets: names in `sets.SETS`, at least one; their answers share the vectors of their texts.
        pool: as in `hierrouter.trees.Selection`.

    Raises:
        CacheError: nothing there, damaged, or not the cache of this tree.
    """
    reader, spec, forest = calls_of(root, tree, pool)
    by_set = {name: OF_SET[name](tree, spec, forest) for name in sets}
    texts, row = _texts(reader, np.concatenate([last.calls for last in by_set.values()], axis=1))
    ends = np.cumsum([last.calls.shape[1] for last in by_set.values()])
    rows = np.split(row, ends[:-1], axis=1)
    return {
        name: texts.at(mine, last.tokens)
        for (name, last), mine in zip(by_set.items(), rows, strict=True)
    }


def answers_for(
    root: Path,
    tree: RouteTree,
    baselines: Sequence[Baseline],
    sets: Sequence[str],
    pool: str | None = None,
) -> dict[str, Answers] | None:
    """`load_answers` where a baseline reads them, else None."""
    if not any(baseline.reads_answers for baseline in baselines):
        return None
    return load_answers(root, tree, sets, pool)


@dataclass(frozen=True)
class _Last:
    """The last call of each arm: hash of its key, uint64[queries, arms], and tokens, int64."""

    calls: NDArray[np.uint64]
    tokens: NDArray[np.int64]


def _direct(tree: RouteTree, spec: TreeSpec, forest: Forest) -> _Last:
    asked = [name for name, _ in spec.direct]
    models = [model for model in tree.direct.models if model in tree.models]
    ours = [tree.direct.models.index(model) for model in models]
    calls = _calls(forest.direct)[:, [asked.index(model) for model in models]]
    return _Last(calls, tree.direct.tokens_out[:, ours])


def _routes(tree: RouteTree, spec: TreeSpec, forest: Forest) -> _Last:
    leaves = tree.routes.leaves
    return _Last(_calls(forest.tree.columns(leaves)), tree.tokens_out[:, leaves])


OF_SET = {"A": _direct, "B": _routes}


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
