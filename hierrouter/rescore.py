"""Score stored responses; no model is called.

In: a cache, a forest, a scorer. Out: a value for every call of the forest. What is not stored yet
is computed from the responses and stored, so that the next reader finds it. Not covered: what a
scorer does (`hierrouter.scoring`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter.scoring import Scorer, score_all
from hierrouter_cache.errors import CacheLocked
from hierrouter_cache.fingerprint import references_key
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.schema import SCORES
from hierrouter_cache.scores import Scores, stored_scores
from hierrouter_cache.walk import Forest
from hierrouter_cache.writer import PartWriter, collector_lock, writable

ROWS_A_PART = 131_072
OnScored = Callable[[int, int], None]


def score_forest(
    reader: CacheReader,
    forest: Forest,
    scorer: Scorer,
    on_scored: OnScored = lambda done, total: None,
) -> Scores:
    """The value of every call of a forest; NaN only where a call is missing.

    Args:
        reader: the cache that the forest comes from.
        forest: what was found.
        scorer: gives the values.
        on_scored: told (done, total) while values are computed.

    Raises:
        InputError: a user's scorer fails or gives something that is no number in [0, 1].
    """
    stored = stored_scores(reader, forest, scorer.key)
    holes = [
        np.argwhere(nodes.found & np.isnan(values))
        for nodes, values in ((forest.tree, stored.tree), (forest.direct, stored.direct))
    ]
    if not any(len(places) for places in holes):
        return stored
    keys = np.concatenate(
        [
            nodes.key[tuple(places.T)]
            for nodes, places in zip((forest.tree, forest.direct), holes, strict=True)
        ]
    )
    position = np.concatenate([places[:, 0] for places in holes])
    values = _compute(reader, forest, keys, position, scorer, on_scored)
    tree, direct = stored.tree.copy(), stored.direct.copy()
    tree[tuple(holes[0].T)] = values[: len(holes[0])]
    direct[tuple(holes[1].T)] = values[len(holes[0]) :]
    return Scores(tree, direct)


def _compute(
    reader: CacheReader,
    forest: Forest,
    keys: NDArray[np.uint64],
    position: NDArray[np.int64],
    scorer: Scorer,
    on_scored: OnScored,
) -> NDArray[np.float64]:
    """float64[n]: the values of these calls against the answers of these queries; stores them."""
    # A call that several nodes share is scored once for each set of references.
    pairs = np.stack([keys, forest.references[position]], axis=1)
    distinct, first, where = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    calls = reader.texts(distinct[:, 0])
    rows = reader.queries([forest.keys[row] for row in position[first]], ("answers",))[
        "answers"
    ].to_pylist()
    found = [calls[number] for number in distinct[:, 0].tolist()]
    values = score_all(
        scorer,
        [(call.response, answers) for call, answers in zip(found, rows, strict=True)],
        on_scored,
    )
    columns = [
        [call.key for call in found],
        [references_key(answers) for answers in rows],
        [scorer.key] * len(values),
        values,
    ]
    _store(reader.root, pa.table(columns, schema=SCORES))
    return np.array(values)[where.ravel()]


def _store(root: Path, scores: pa.Table) -> None:
    """Keep the scores where that is possible: not beside a collector, not in a read-only cache."""
    if writable(root):
        with contextlib.suppress(CacheLocked), collector_lock(root):
            writer = PartWriter(root)
            for start in range(0, scores.num_rows, ROWS_A_PART):
                writer.append("scores", scores.slice(start, ROWS_A_PART))
