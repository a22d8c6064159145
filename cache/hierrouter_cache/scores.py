"""Stored scores, joined to the nodes of a forest.

In: a `CacheReader`, a `Forest`, the key of a scorer. Out: `Scores`, NaN where there is none yet.
A score belongs to a call and a set of reference answers, never to a route. Not covered: computing
what is missing (`hierrouter.rescore`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter_cache.errors import CacheError
from hierrouter_cache.reader import CacheReader, first_match
from hierrouter_cache.walk import Forest, Nodes

# Any odd number: makes (call, references) and (references, call) different.
ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Scores:
    """Values of one scorer in [0, 1]; NaN where a call is not there or not scored.

    Attributes:
        tree: float64[queries, nodes]; the root's is 0.
        direct: float64[queries, K].
    """

    tree: NDArray[np.float64]
    direct: NDArray[np.float64]


def stored_scores(reader: CacheReader, forest: Forest, scorer: str) -> Scores:
    """What the cache holds of one scorer.

    Args:
        scorer: the scorer's key, name and version.

    Raises:
        CacheError: a value is not in [0, 1].
    """
    columns = reader.columns(
        'SELECT hash(call) AS call, hash("references") AS refs, value FROM scores_rows '
        "WHERE scorer = ?",
        [scorer],
    )
    value = columns["value"].astype(np.float64)
    if not ((value >= 0) & (value <= 1)).all():
        raise CacheError(
            f"a score out of range [0, 1] or NaN: {scorer} in {reader.root}; not written by this "
            "program, find the part with `hierrouter cache sql`"
        )
    known = columns["call"] * ODD + columns["refs"]
    tree = _look_up(forest.tree, forest.references, known, value)
    tree[:, 0] = 0
    return Scores(tree, _look_up(forest.direct, forest.references, known, value))


def _look_up(
    nodes: Nodes,
    references: NDArray[np.uint64],
    known: NDArray[np.uint64],
    value: NDArray[np.float64],
) -> NDArray[np.float64]:
    place = first_match(nodes.key * ODD + references[:, None], known)
    padded = np.append(value, np.nan)  # the place of what is missing is -1: the last
    scores: NDArray[np.float64] = np.where(nodes.found, padded[place], np.nan)
    return scores
