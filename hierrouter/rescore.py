"""Score stored responses; no model is called.

In: a cache, a forest, a scorer. Out: a value for every call of the forest. What is not stored yet
is computed from the responses and stored, so that the next reader finds it. Not covered: what a
scorer does (`hierrouter.scoring`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hierrouter.query import stored_choices
from hierrouter.scoring import Scorer, score_all
from hierrouter_cache.errors import CacheLocked
from hierrouter_cache.locks import collector_lock
from hierrouter_cache.reader import CacheReader, StoredCall
from hierrouter_cache.schema import SCORES
from hierrouter_cache.scores import Scores, stored_scores
from hierrouter_cache.walk import Forest
from hierrouter_cache.writer import PartWriter, writable

FIRST_PART = 256
LARGEST_PART = 131_072
HELD = 1 << 20  # texts held at once; each time all parts are read for them
SECONDS_PER_PART = 5.0
OnScored = Callable[[int, int], None]
Scored = tuple[StoredCall, Mapping[str, Any]]  # a call, and the row of its query


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
    values: list[float] = []
    size = FIRST_PART
    for start in range(0, len(distinct), HELD):
        held = slice(start, start + HELD)
        found = _texts(reader, distinct[held, 0], forest, position[first[held]])
        while len(values) < start + len(found):
            at = len(values) - start
            part = found[at : at + size]
            started = perf_counter()
            values += _score_part(reader.root, scorer, part)
            on_scored(len(values), len(distinct))
            # A slow scorer's work is kept every few seconds, a quick one's in large parts.
            rate = len(part) / max(perf_counter() - started, 1e-3)
            size = min(LARGEST_PART, max(1, round(rate * SECONDS_PER_PART)))
    return np.array(values)[where.ravel()]


def _texts(
    reader: CacheReader, calls: NDArray[np.uint64], forest: Forest, position: NDArray[np.int64]
) -> list[Scored]:
    """Each of these calls, with the row of its query, which stands at `position` in the forest."""
    said = reader.texts(calls)
    columns = ("answers", "choices", '"references"')
    rows = reader.queries([forest.keys[row] for row in position], columns).to_pylist()
    return [(said[number], row) for number, row in zip(calls, rows, strict=True)]


def _score_part(root: Path, scorer: Scorer, part: Sequence[Scored]) -> list[float]:
    """The values of some calls, each with the row of its query, kept where that is possible.

    It is not beside a collector, nor in a cache that cannot be written to.
    """
    values = score_all(
        scorer,
        [
            (call.response, query["answers"], stored_choices(query["choices"]))
            for call, query in part
        ],
    )
    if writable(root):
        columns = [
            [call.key for call, _ in part],
            [query["references"] for _, query in part],
            [scorer.key] * len(part),
            values,
        ]
        with contextlib.suppress(CacheLocked), collector_lock(root):
            PartWriter(root).append("scores", pa.table(columns, schema=SCORES))
    return values
